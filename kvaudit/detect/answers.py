"""Whether an answer holds what its own prompt asks for."""

from kvaudit.records import RequestRecord

CUT_CHARS_MIN = 3  # fewer agree by accident


def is_right(record: RequestRecord) -> bool:
    """Whether the answer holds what was asked for; case, spacing and hyphens don't matter."""
    if record.expected is None or not record.output_text:
        return False
    return _folded(record.expected) in _folded(record.output_text)


def is_cut_short(record: RequestRecord) -> bool:
    """Whether the answer ended by length inside what was asked for: neither right nor lost."""
    if record.finish_reason != "length" or record.expected is None:
        return False
    answer, expected = _folded(record.output_text or ""), _folded(record.expected)
    return any(answer.endswith(expected[:size]) for size in range(CUT_CHARS_MIN, len(expected)))


def _folded(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
