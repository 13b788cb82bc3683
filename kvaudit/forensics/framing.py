"""Bytes to records: lines, JSON lines, JSON documents and envelopes, each with its byte offset.

A record that can't be read costs that record and is counted by reason, never the file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kvaudit.forensics.fields import parse_json
from kvaudit.forensics.reader import RawRecord, ReadContext

RECORD_BYTES_MAX = 32 << 20
OVERSIZE = f"record over {RECORD_BYTES_MAX >> 20} MiB"
CUT = "cut or damaged JSON"
NOT_JSON = "no JSON object"
NOT_UTF8 = "bytes that are no UTF-8 (replaced, record kept)"
TOO_DEEP = "JSON nested too deep"

# An object whose list under one of these keys is the log, and whose other keys are decoration.
_ENVELOPE_KEYS = (
    "records", "result", "data", "logEvents", "events", "observations", "items", "logs", "value",
    "Records", "rows",
)  # fmt: skip
_DECORATION_KEYS = frozenset({
    "success", "result_info", "errors", "messages", "object", "has_more", "first_id", "last_id",
    "meta", "count", "total", "total_count", "totalCount", "nextToken", "nextForwardToken",
    "nextBackwardToken", "messageType", "owner", "logGroup", "logStream", "subscriptionFilters",
    "searchedLogStreams", "next_page", "page", "@odata.context", "@odata.nextLink", "next_cursor",
    "error",
})  # fmt: skip
_LOG_EVENT_KEYS = frozenset({
    "id", "timestamp", "message", "ingestionTime", "logStreamName", "eventId", "@timestamp",
    "@message", "@ptr",
})  # fmt: skip


class Line(NamedTuple):
    """One line of a file.

    Attributes:
        row: 1-based number.
        offset: Byte offset in the decompressed stream.
        data: The bytes without the line end; None when the line was over the limit.
    """

    row: int
    offset: int
    data: bytes | None


def lines(blocks: Iterable[bytes]) -> Iterator[Line]:
    """Cut blocks into lines, dropping one carriage return; an over-long line holds no data."""
    row = offset = 0
    held: list[bytes] = []
    held_bytes = 0
    for block in blocks:
        start = 0
        end = block.find(b"\n")
        while end >= 0:
            row += 1
            size = held_bytes + end - start
            if size > RECORD_BYTES_MAX:
                yield Line(row, offset, None)
            else:
                piece = block[start:end]
                data = b"".join([*held, piece]) if held else piece
                yield Line(row, offset, data[:-1] if data.endswith(b"\r") else data)
            held, held_bytes = [], 0
            offset += size + 1
            start = end + 1
            end = block.find(b"\n", start)
        if start < len(block):
            held_bytes += len(block) - start
            if held_bytes <= RECORD_BYTES_MAX:
                held.append(block[start:])
            else:
                held = []
    if held_bytes:
        yield Line(row + 1, offset, b"".join(held) if held_bytes <= RECORD_BYTES_MAX else None)


def text_records(blocks: Iterable[bytes], context: ReadContext) -> Iterator[RawRecord]:
    """Yield one record a line."""
    for line in lines(blocks):
        if line.data is None:
            context.damage(OVERSIZE)
            continue
        yield RawRecord(line.row, line.offset, line=bare_line(_decoded(line.data, context)))


# What container runtimes put round a program's line: CRI's prefix, or Docker's JSON.
_CRI = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ")
_DOCKER = '{"log":'


def bare_line(line: str) -> str:
    """Return the line that a program wrote, without what its container's runtime put round it."""
    if line.startswith(_DOCKER):
        item = parse_json(line)
        inner = item.get("log") if isinstance(item, dict) else None
        return inner.rstrip("\r\n") if isinstance(inner, str) else line
    match = _CRI.match(line) if line[:2] == "20" else None
    return line[match.end() :] if match is not None else line


def _decoded(data: bytes, context: ReadContext) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        context.damage(NOT_UTF8)
        return data.decode("utf-8", "replace")


def object_records(blocks: Iterable[bytes], context: ReadContext) -> Iterator[RawRecord]:
    """Yield the JSON objects of JSON lines, of a JSON array or of documents one after the other."""
    source = iter(blocks)
    head = next(source, b"")
    while len(head) < 64 and (more := next(source, b"")):
        head += more
    rest = _chain(head.removeprefix(b"\xef\xbb\xbf"), source)
    stream = _documents if _is_document(head) else _json_lines
    row = 0
    for offset, value in stream(rest, context):
        for item in unwrapped(value):
            row += 1
            yield RawRecord(row, offset, item)


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def _is_document(head: bytes) -> bool:
    """Whether the file is no JSON lines: an array, or an object that goes on in the next line."""
    text = head.lstrip().removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return re.match(rb"\[\s*[{\]]", text) is not None
    if not text.startswith(b"{"):
        return False
    first = text.split(b"\n", 1)[0].strip()
    if len(first) < 4096 or b"\n" in text:
        is_whole = parse_json(first.decode("utf-8", "replace")) is not None
        is_alone = len(first) == len(text.strip())
        return not is_whole and (not is_alone or _opens_envelope(first))
    return _opens_envelope(first)  # one line, longer than what was read so far


def _opens_envelope(first: bytes) -> bool:
    """Whether a line that is cut, or not yet whole, begins like a list of log records."""
    match = _ENVELOPE_HEAD.match(first[:_ENVELOPE_CHARS].decode("utf-8", "replace"))
    return match is not None and match.group(1) in _SURE_ENVELOPES


def _json_lines(blocks: Iterable[bytes], context: ReadContext) -> Iterator[tuple[int, Any]]:
    for line in lines(blocks):
        if line.data is None:
            context.damage(OVERSIZE)
            continue
        stripped = line.data.strip()
        if not stripped:
            continue
        try:
            value = json.loads(_decoded(stripped, context))
        except ValueError:
            context.damage(CUT if stripped[:1] in (b"{", b"[") else NOT_JSON)
        except RecursionError:
            context.damage(TOO_DEEP)
        else:
            if isinstance(value, dict | list):
                yield line.offset, value
            else:
                context.damage(NOT_JSON)


_ENVELOPE_HEAD = re.compile(
    r'\s*\{(?:\s*"[^"]{1,64}"\s*:\s*(?:"[^"]{0,512}"|[\w.+-]+)\s*,){0,16}\s*"('
    + "|".join(_ENVELOPE_KEYS)
    + r')"\s*:\s*\[(?=\s*\{)'
)
_RESYNC = re.compile(r"\n\s{0,64}[\[{]")
_ENVELOPE_CHARS = 16_384
_SURE_ENVELOPES = frozenset({"records", "Records", "result", "logEvents", "value"})


def _documents(blocks: Iterable[bytes], context: ReadContext) -> Iterator[tuple[int, Any]]:
    """Yield the items of a JSON array or envelope, or whole documents, one by one."""
    buffer = _TextBuffer(blocks, context)
    decoder = json.JSONDecoder()
    buffer.fill(BUFFER_CHARS)
    opened = _open_list(buffer)
    while True:
        skipped = _SEPARATORS.match(buffer.text)
        buffer.drop(skipped.end() if skipped else 0)
        if not buffer.text:
            if not buffer.fill(BUFFER_CHARS):
                return
            continue
        if opened and buffer.text[0] == "]":
            if not _skip_record(buffer):
                return
            opened = _open_list(buffer)
            continue
        try:
            value, end = decoder.raw_decode(buffer.text)
        except RecursionError:
            context.damage(TOO_DEEP)
            if not _skip_record(buffer):
                return
        except ValueError:
            if len(buffer.text) <= RECORD_BYTES_MAX and buffer.fill(len(buffer.text)):
                continue
            context.damage(OVERSIZE if len(buffer.text) > RECORD_BYTES_MAX else CUT)
            if not _skip_record(buffer):
                return
        else:
            if isinstance(value, dict | list):
                yield buffer.offset, value
            buffer.drop(end)


def _open_list(buffer: "_TextBuffer") -> bool:
    """Step into the array or envelope that begins here; False if a plain document does."""
    opened = re.match(r"\s*\[", buffer.text) or _ENVELOPE_HEAD.match(buffer.text[:_ENVELOPE_CHARS])
    if opened is None:
        return False
    buffer.drop(opened.end())
    return True


BUFFER_CHARS = 1 << 20
_SEPARATORS = re.compile(r"[\s,]*")


def _skip_record(buffer: "_TextBuffer") -> bool:
    """Go on at the next line that opens an object; False at the end."""
    buffer.drop(1)
    while True:
        found = _RESYNC.search(buffer.text)
        if found is not None:
            buffer.drop(found.start() + 1)
            return True
        buffer.drop(max(0, len(buffer.text) - 80))
        if not buffer.fill(BUFFER_CHARS):
            buffer.drop(len(buffer.text))
            return False


class _TextBuffer:
    """Decoded text with the byte offset of its first character."""

    def __init__(self, blocks: Iterable[bytes], context: ReadContext) -> None:
        self.text = ""
        self.offset = 0
        self._blocks = iter(blocks)
        self._held = b""
        self._context = context

    def fill(self, chars: int) -> bool:
        """Read about so many characters more; False when the stream had none left."""
        pieces: list[str] = []
        size = 0
        while size < max(chars, 1):
            block = next(self._blocks, b"")
            if not block:
                if self._held:
                    pieces.append(_decoded(self._held, self._context))
                    self._held = b""
                break
            data = self._held + block
            whole = _whole_characters(data)
            self._held = data[whole:]
            pieces.append(_decoded(data[:whole], self._context))
            size += len(pieces[-1])
        added = "".join(pieces)
        self.text += added
        return bool(added)

    def drop(self, chars: int) -> None:
        """Forget so many characters."""
        if chars:
            dropped = self.text[:chars]
            self.offset += chars if dropped.isascii() else len(dropped.encode("utf-8", "replace"))
            self.text = self.text[chars:]


def _whole_characters(data: bytes) -> int:
    """Return the length without a UTF-8 character that the block's end cuts."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if need > back else len(data)
    return len(data)


def unwrapped(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the log records inside arrays, envelopes and log-event wrappers."""
    if isinstance(value, list):
        for item in value:
            if depth < 4:
                yield from unwrapped(item, depth + 1)
        return
    if not isinstance(value, dict):
        return
    items = _enveloped(value)
    single = value.get("result")
    if items is None and isinstance(single, dict) and value.keys() - {"result"} <= _DECORATION_KEYS:
        items = [single] if "success" in value else None
    if items is not None:
        for item in items:
            if depth < 4:
                yield from unwrapped(item, depth + 1)
        return
    if len(value) <= len(_LOG_EVENT_KEYS) and value.keys() <= _LOG_EVENT_KEYS:
        inner = parse_json(value.get("message", value.get("@message")))
        if isinstance(inner, dict):
            value = inner
    yield value


def _enveloped(value: Mapping[str, Any]) -> list[Any] | None:
    if len(value) > 24:
        return None
    for key in _ENVELOPE_KEYS:
        items = value.get(key)
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            others = value.keys() - {key}
            if others <= _DECORATION_KEYS:
                return items
    return None
