"""kvaudit's own canonical table: Parquet passes through, rows in other clothes are read."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.fields import has_keys
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.readers import generic_jsonl
from kvaudit.forensics.row import Layer, LogRow

MARKS = ("record_id", "source_format", "source_layer", "dedup_group")


def _is_canonical(item: Mapping[str, Any]) -> bool:
    return has_keys(item, MARKS)


def _sniff(sample: Sample) -> float:
    return 0.97 * sample.share(_is_canonical)


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    yield from generic_jsonl.FORMAT.read(records, context)


FORMAT = Format(
    name="kvaudit-table",
    title="kvaudit's own `requests` table",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=MARKS,
)
