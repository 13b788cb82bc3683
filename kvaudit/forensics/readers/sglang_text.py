"""SGLang request log, text: `Receive:`, `Receive OpenAI:` and `Finish:` lines of Python reprs."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kvaudit.forensics.fields import mapping_of
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.pyrepr import scan_value
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow
from kvaudit.forensics.sglang import Logged, item_of, line_moment, logged_row, of_batch, rids_of

_HEAD = re.compile(
    r"(?P<kind>Receive OpenAI|Receive|Finish): obj="
    r"(?=GenerateReqInput\(|EmbeddingReqInput\(|\{)"
)
_MARKS = ("Receive: obj=", "Receive OpenAI: obj=", "Finish: obj=")
_BODIES_MAX = 4_096
_HEADERS = "\0headers"  # beside a body's own keys


def _sniff(sample: Sample) -> float:
    for line in sample.lines:
        if any(mark in line[:120] for mark in _MARKS):
            _, rest = line_moment(line)
            if _HEAD.match(rest):
                return 0.95
    return 0.0


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    pending: Pending[Logged] = Pending()
    bodies: list[dict[str, Any]] = []
    for record in records:
        if not any(mark in record.line[:120] for mark in _MARKS):
            continue
        moment, rest = line_moment(record.line)
        head = _HEAD.match(rest)
        if head is None:
            continue
        parts = _parts(rest, head.end())
        if parts is None:
            context.damage("request line is cut or damaged")
            continue
        if head["kind"] == "Receive OpenAI":
            bodies.append({**mapping_of(parts["obj"]), _HEADERS: parts.get("headers")})
            del bodies[:-_BODIES_MAX]
            continue
        obj = mapping_of(parts["obj"])
        for number, rid in enumerate(rids := rids_of(obj.get("rid"))):
            held = pending.get(rid) or Logged(record.row, record.offset, rid)
            held.take_obj(of_batch(obj, number, len(rids)))
            held.take_headers(parts.get("headers"))
            if head["kind"] == "Receive":
                held.received = held.received or moment
                held.body = _body_for(bodies, rid) or held.body
                held.take_headers(held.body.pop(_HEADERS, None))
            else:
                held.finished = moment
                held.out = mapping_of(item_of(parts.get("out"), number))
            pending.put(rid, held, len(rest))
            if held.out is not None and pending.pop(rid):
                yield logged_row(held)
        if not rids:
            context.damage("request line without rid")
        for found in pending.overflow():
            yield logged_row(found)
    for found in pending.drain():
        yield logged_row(found)


def _parts(text: str, start: int) -> dict[str, Any] | None:
    """Return obj, headers and out of a line, scanned in order, so that no text ends one early."""
    made: dict[str, Any] = {}
    found = scan_value(text, start)
    if found is None:
        return None
    made["obj"] = found.value
    for name in ("headers", "out"):
        mark = f", {name}="
        if text.startswith(mark, found.end):
            found = scan_value(text, found.end + len(mark))
            if found is None:
                return None
            made[name] = found.value
    return made


def _body_for(bodies: list[dict[str, Any]], rid: str) -> dict[str, Any]:
    """Return and take out the body that became this request: by its rid, else by adjacency."""
    for index in range(len(bodies) - 1, -1, -1):
        if bodies[index].get("rid") == rid:
            return bodies.pop(index)
    if bodies and bodies[-1].get("rid") is None:
        return bodies.pop()
    return {}


FORMAT = Format(
    name="sglang-text",
    title="SGLang request log, text",
    shape=Shape.LINES,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
    is_stateful=True,
)
