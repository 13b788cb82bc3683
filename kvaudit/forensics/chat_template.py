"""Chat templates and output markup off, with a map back to the raw offsets.

An engine logs the prompt as one templated string. Its markers are shared by every pair of tenants
and would be the most "leaked" text of all; the texts between them are the messages.
"""

import json
import re

from kvaudit.forensics.content import content_of, text_part
from kvaudit.forensics.row import Content, LoggedMessage, Part, PartKind

# ChatML, Llama 3, GLM, Phi, Harmony; DeepSeek's wide bars; Gemma; Mistral; sentence marks.
_MARKER = re.compile(
    r"<\|[A-Za-z0-9_/ -]{1,40}\|>"
    r"|<\uff5c[^\uff5c<>]{1,40}\uff5c>"
    r"|</?(?:start_of_turn|end_of_turn|bos|eos|s|pad|sop|gMASK)>"
    r"|\[/?INST\]|\[/?(?:gMASK|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]"
    r"|<</?SYS>>"
)
_ROLES = ("system", "user", "assistant", "tool", "model", "developer", "observation", "ipython")
_ROLE_HEAD = re.compile(rf"\s*({'|'.join(_ROLES)})(?=[\s:]|$)")
_MARKER_ROLES = {
    "<|system|>": "system", "<|user|>": "user", "<|assistant|>": "assistant",
    "<|observation|>": "tool", "[inst]": "user", "[/inst]": "assistant", "<<sys>>": "system",
    "<</sys>>": "user", "<\uff5cuser\uff5c>": "user", "<\uff5cassistant\uff5c>": "assistant",
    "[system_prompt]": "system", "[/system_prompt]": "user",
}  # fmt: skip
_HEADERS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>")


def templated_prompt(raw: str, *, gap: int | None = None, truncated: bool = False) -> Content:
    """Cut a templated prompt into messages; a prompt without markers is one user message.

    Args:
        raw: The prompt as the engine saw it.
        gap: Offset in `raw` where the log left something out.
        truncated: The end is missing.
    """
    markers = list(_MARKER.finditer(raw))
    if not markers:
        return content_of([LoggedMessage("user", _pieces(raw, 0, gap))], truncated=truncated)
    messages: list[LoggedMessage] = []
    role, start, is_header = "user", 0, False
    for marker in [*markers, None]:
        end = marker.start() if marker is not None else len(raw)
        text = raw[start:end]
        head = _ROLE_HEAD.match(text) if is_header else None
        if head is not None:
            role = "assistant" if head.group(1) == "model" else head.group(1)
            start += head.end()
        parts = _pieces(raw[start:end], start, gap)
        if parts:
            messages.append(LoggedMessage(role, parts))
        if marker is not None:
            name = marker.group().lower()
            role = _MARKER_ROLES.get(name, role)
            is_header = name in _HEADERS
            start = marker.end()
    return content_of(messages, truncated=truncated or gap is not None)


def _pieces(text: str, offset: int, gap: int | None) -> tuple[Part, ...]:
    """Return the text without outer white space, as parts that think and call tools apart."""
    stripped = text.strip()
    if not stripped:
        return ()
    start = offset + text.index(stripped[0])
    inside = gap is not None and start <= gap < start + len(stripped)
    return tuple(_marked_up(stripped, start, gap - start if inside and gap is not None else None))


_MARKUP = re.compile(
    r"<think(?:ing)?>(?P<think>.*?)(?:</think(?:ing)?>|\Z)"
    r"|<tool_call>(?P<call>.*?)(?:</tool_call>|\Z)"
    r"|<tool_response>(?P<result>.*?)(?:</tool_response>|\Z)",
    re.DOTALL,
)
_CLOSED_ONLY = re.compile(r"\A(?P<think>(?:(?!<think).)*?)</think(?:ing)?>", re.DOTALL)
_CALL_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,200})"')
_CALL_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*')


def raw_output(raw: str, *, gap: int | None = None, finish_reason: str | None = None,
               truncated: bool = False) -> Content:  # fmt: skip
    """Cut raw engine text into visible text, reasoning and tool calls."""
    parts = tuple(part for part in _marked_up(raw, 0, gap) if part.text.strip())
    message = LoggedMessage("assistant", parts, finish_reason)
    return content_of([message], truncated=truncated or gap is not None)


def _marked_up(raw: str, offset: int, gap: int | None) -> list[Part]:
    if "<" not in raw:
        return [_part(raw, 0, len(raw), PartKind.TEXT, offset, gap)]
    parts: list[Part] = []
    position = 0
    closed = _CLOSED_ONLY.match(raw)  # the template opened the tag, the answer only closes it
    if closed is not None:
        start, end = _trimmed(raw, 0, closed.end("think"))
        parts.append(_part(raw, start, end, PartKind.REASONING, offset, gap))
        position = closed.end()
    for match in _MARKUP.finditer(raw, position):
        start, end = _trimmed(raw, position, match.start())
        parts.append(_part(raw, start, end, PartKind.TEXT, offset, gap))
        parts.append(_tagged(raw, match, offset, gap))
        position = match.end()
    start, end = _trimmed(raw, position, len(raw))
    parts.append(_part(raw, start, end, PartKind.TEXT, offset, gap))
    return [part for part in parts if part.text]


def _tagged(raw: str, match: re.Match[str], offset: int, gap: int | None) -> Part:
    kinds = {
        "think": PartKind.REASONING, "call": PartKind.TOOL_CALL, "result": PartKind.TOOL_RESPONSE,
    }  # fmt: skip
    group = match.lastgroup or "think"
    start, end = _trimmed(raw, match.start(group), match.end(group))
    name = _CALL_NAME.search(raw, start, end) if group == "call" else None
    if name is not None:
        start, end = _arguments(raw, start, end)
    part = _part(raw, start, end, kinds[group], offset, gap)
    if name is None:
        return part
    return Part(part.kind, part.text, name.group(1), None, part.gaps, part.raw_offset)


def _arguments(raw: str, start: int, end: int) -> tuple[int, int]:
    """Return where a call's arguments stand; the whole call if they can't be told."""
    mark = _CALL_ARGUMENTS.search(raw, start, end)
    if mark is None:
        return start, end
    try:
        _, after = json.JSONDecoder().raw_decode(raw, mark.end())
    except (ValueError, RecursionError):
        return start, end
    return mark.end(), min(after, end)


def _trimmed(raw: str, start: int, end: int) -> tuple[int, int]:
    """Return the range without the white space that the template puts round its tags.

    The answer's own beginning and end are kept as they are.
    """
    if start > 0:
        while start < end and raw[start].isspace():
            start += 1
    if end < len(raw):
        while end > start and raw[end - 1].isspace():
            end -= 1
    return start, end


def _part(raw: str, start: int, end: int, kind: PartKind, offset: int, gap: int | None) -> Part:
    made = text_part(raw[start:end], kind, raw_offset=offset + start)
    if gap is None or not start <= gap < end:
        return made
    gaps = tuple(sorted({*made.gaps, gap - start}))
    return Part(made.kind, made.text, made.name, made.id, gaps, made.raw_offset)
