"""SGLang request log, JSON: events `request.received.openai`, `request.received`, `.finished`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.fields import mapping_of, parse_json, text_of
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow
from kvaudit.forensics.sglang import Logged, item_of, line_moment, logged_row, of_batch, rids_of
from kvaudit.forensics.times import moment_of

_MARK = '"event": "request.'
_MARK_TIGHT = '"event":"request.'


def _is_event(line: str) -> bool:
    return _MARK in line[:300] or _MARK_TIGHT in line[:300]


def _sniff(sample: Sample) -> float:
    return 0.97 if any(_is_event(line) for line in sample.lines) else 0.0


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    pending: Pending[Logged] = Pending()
    for record in records:
        if not _is_event(record.line):
            continue
        event = parse_json(record.line[record.line.find("{") :])
        if not isinstance(event, Mapping):
            context.damage("cut or damaged JSON")
            continue
        obj = mapping_of(event.get("obj"))
        for number, rid in enumerate(rids := rids_of(event.get("rid") or obj.get("rid"))):
            held = pending.get(rid) or Logged(record.row, record.offset, rid)
            _take(held, event, of_batch(obj, number, len(rids)), record.line, number)
            pending.put(rid, held, len(record.line))
            if held.out is not None and pending.pop(rid):
                yield logged_row(held)
        if not rids:
            context.damage("event without rid")
        for found in pending.overflow():
            yield logged_row(found)
    for found in pending.drain():
        yield logged_row(found)


def _take(
    held: Logged, event: Mapping[str, Any], obj: Mapping[str, Any], line: str, number: int
) -> None:
    moment = moment_of(event.get("timestamp")) or line_moment(line)[0]
    held.take_headers(event.get("headers"))
    kind = text_of(event.get("event"))
    if kind == "request.received.openai":
        held.body = dict(obj)
        held.received = held.received or moment
        return
    held.take_obj(obj)
    if kind == "request.finished":
        held.finished = moment
        held.out = mapping_of(item_of(event.get("out"), number))
    else:
        held.received = held.received or moment


FORMAT = Format(
    name="sglang-json",
    title="SGLang request log, JSON",
    shape=Shape.LINES,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
    is_stateful=True,
)
