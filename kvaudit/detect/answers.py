"""Whether an answer holds what its own prompt asks for."""

from kvaudit.records import RequestRecord


def is_right(record: RequestRecord) -> bool:
    """Whether the answer holds what was asked for; case, spacing and hyphens don't matter."""
    if record.expected is None or not record.output_text:
        return False
    return _folded(record.expected) in _folded(record.output_text)


def _folded(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
