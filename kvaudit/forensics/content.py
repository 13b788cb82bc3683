"""Texts out of Content: what is compared, and where it stood in the raw log."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvaudit.forensics.fields import parse_json
from kvaudit.forensics.row import Content, ContentState, LoggedMessage, Part, PartKind

CHOICE_SEPARATOR = "\x1e"
_DEPTH_MAX = 32


class Text(NamedTuple):
    """One side's text.

    Attributes:
        text: The text parts, joined by newlines; choices are joined by U+001E.
        gaps: Character offsets in it where the log left something out; no run crosses one.
        raw_map: Pairs (offset in `text`, offset in the raw string), flattened; () = no map.
    """

    text: str
    gaps: tuple[int, ...]
    raw_map: tuple[int, ...]


def joined_text(content: Content, kinds: frozenset[PartKind], *, choices: bool = False) -> Text:
    """Join the parts of some kinds; `choices` puts U+001E between messages."""
    pieces: list[str] = []
    gaps: list[int] = []
    raw_map: list[int] = []
    length = last_number = 0
    for number, message in enumerate(content.messages):
        for part in message.parts:
            if part.kind not in kinds or not part.text:
                continue
            if pieces:
                separator = CHOICE_SEPARATOR if choices and number != last_number else "\n"
                pieces.append(separator)
                length += 1
            last_number = number
            gaps.extend(length + gap for gap in part.gaps)
            if part.raw_offset is not None:
                raw_map.extend((length, part.raw_offset))
            pieces.append(part.text)
            length += len(part.text)
    return Text("".join(pieces), tuple(gaps), tuple(raw_map))


PROMPT_KINDS = frozenset(
    {PartKind.TEXT, PartKind.REASONING, PartKind.TOOL_RESPONSE, PartKind.TOOL_CALL}
)
ANSWER_KINDS = frozenset({PartKind.TEXT})
REASONING_KINDS = frozenset({PartKind.REASONING})


def prompt_text(content: Content) -> Text:
    """Everything that the prompt holds: history, reasoning, tool calls and results among it."""
    if not any(part.kind is PartKind.TOOL_CALL for m in content.messages for part in m.parts):
        return joined_text(content, PROMPT_KINDS)
    opened = tuple(
        LoggedMessage(message.role, tuple(_tool_opened(part) for part in message.parts))
        for message in content.messages
    )
    return joined_text(Content(opened, content.state), PROMPT_KINDS)


def answer_text(content: Content) -> Text:
    """The answer's visible text."""
    return joined_text(content, ANSWER_KINDS, choices=True)


def reasoning_text(content: Content) -> str:
    """The answer's reasoning."""
    return joined_text(content, REASONING_KINDS, choices=True).text


def tool_text(content: Content) -> str:
    """Tool names and argument *values* of the answer, JSON unescaped, one a line."""
    return "\n".join(
        _tool_opened(part).text
        for message in content.messages
        for part in message.parts
        if part.kind is PartKind.TOOL_CALL
    )


def _tool_opened(part: Part) -> Part:
    if part.kind is not PartKind.TOOL_CALL:
        return part
    values = parse_json(part.text)
    lines = [part.text] if values is None else list(_leaves(values, 0))
    return Part(part.kind, "\n".join([*([part.name] if part.name else []), *lines]))


def _leaves(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, str):
        inner = parse_json(value) if value[:1] in ("{", "[") else None
        if inner is None:
            yield value
        else:
            yield from _leaves(inner, depth + 1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, depth + 1)
    elif value is not None:
        yield json.dumps(value)


def messages_json(content: Content) -> str | None:
    """The messages in OpenTelemetry's parts schema; None when there are none."""
    if not content.messages:
        return None
    return _ENCODER.encode([_message_json(message) for message in content.messages])


# `json.dumps` would make a new one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _message_json(message: LoggedMessage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "role": message.role,
        "parts": [_part_json(part) for part in message.parts],
    }
    if message.finish_reason is not None:
        made["finish_reason"] = message.finish_reason
    return made


def _part_json(part: Part) -> dict[str, Any]:
    if part.kind is PartKind.TOOL_CALL:
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.text}
    if part.kind is PartKind.TOOL_RESPONSE:
        return {"type": "tool_call_response", "id": part.id, "response": part.text}
    return {"type": part.kind.value, "content": part.text}


def text_part(text: str, kind: PartKind = PartKind.TEXT, *, name: str | None = None,
              part_id: str | None = None, raw_offset: int | None = None) -> Part:  # fmt: skip
    """Make a part from logged text: cut marks become gaps, lone surrogates U+FFFD."""
    clean, gaps = without_cut_marks(mended(text))
    return Part(kind, clean, name, part_id, gaps, raw_offset)


def blob_part(data: str, mime_type: str = "application/octet-stream") -> Part:
    """Stand for an image, a sound or a file: its kind, size and digest, never its bytes."""
    digest = hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()
    return Part(PartKind.BLOB, f"{mime_type} {len(data)} {digest}")


def mended(text: str) -> str:
    """Return the text with lone surrogates replaced, so that it can be stored as UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # Halves of one pair that two chunks were cut between meet again here.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# LiteLLM's spend logs, vLLM's response debug lines.
_CUT_MARK = re.compile(
    r"(?:\.\.\. )?\(litellm_truncated skipped \d+ chars\.[^()]{0,400}\)(?: \.\.\.)?"
    r"|\.\.\.\[truncated\]\Z"
)


def without_cut_marks(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the text without the marks that loggers leave at a cut, and the cuts' offsets."""
    if "truncated" not in text:
        return text, ()
    pieces: list[str] = []
    gaps: list[int] = []
    length = last = 0
    for match in _CUT_MARK.finditer(text):
        pieces.append(text[last : match.start()])
        length += match.start() - last
        gaps.append(length)
        last = match.end()
    pieces.append(text[last:])
    return "".join(pieces), tuple(gaps)


_REDACTED = re.compile(
    r"\s*(?:redacted-by-litellm|redacted by litellm\.?.*|\[?<?\(?redacted\)?>?\]?|\*{3,})\s*",
    re.IGNORECASE,
)
_REDACTED_MARK_MAX = 120


def is_redaction_mark(text: str) -> bool:
    """Whether the text is nothing but a logger's mark for text it left out."""
    return len(text) <= _REDACTED_MARK_MAX and _REDACTED.fullmatch(text) is not None


def content_of(messages: list[LoggedMessage], *, truncated: bool = False) -> Content:
    """Make one side from its messages, with the state that their texts show."""
    kept = tuple(message for message in messages if message.parts or message.finish_reason)
    parts = [part for message in kept for part in message.parts]
    if not parts:
        # An answer that ended and holds nothing is there, and empty.
        return Content(kept, ContentState.FULL if kept else ContentState.ABSENT)
    if all(is_redaction_mark(part.text) for part in parts):
        return Content((), ContentState.REDACTED)
    has_gap = truncated or any(part.gaps for part in parts)
    return Content(kept, ContentState.TRUNCATED if has_gap else ContentState.FULL)
