"""One file opened: container, format and records, or the reason why it can't be read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from kvaudit.forensics.containers import (
    REFUSALS,
    Container,
    canonical_frames,
    container_of,
    csv_records,
    duckdb_records,
    parquet_records,
    renamed,
    spooled,
)  # fmt: skip
from kvaudit.forensics.formats import (
    SNIFF_BYTES,
    Sniffed,
    format_named,
    records_of,
    sample_of,
    sniff,
)  # fmt: skip
from kvaudit.forensics.options import FieldRule, IngestOptions
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.source import LogFile, Progress, blocks

_SNIFF_DEEP_BYTES = 64 << 20
_TABLE_SAMPLE = 100
READER_ERRORS_MAX = 1_000
# What a reader may stumble over in hostile data; a failing disk is none of them.
_DATA_ERRORS = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError,
)  # fmt: skip


@dataclass(slots=True)
class Opened:
    """One log file, ready to be read.

    Attributes:
        file: The file.
        container: What its bytes are.
        format: Its format; None when it can't be read.
        sniffed: What the sniffing said.
        refusal: Why it can't be read; None when it can.
        records: Its records; empty when it can't be read.
        progress: How far the reading is.
        context: What the reader reports into.
        frames: Frames of the canonical schema, for a file that is such a table already.
    """

    file: LogFile
    container: Container
    format: Format | None
    sniffed: Sniffed | None
    refusal: str | None
    records: Iterator[RawRecord]
    progress: Progress
    context: ReadContext
    frames: Iterator[pl.DataFrame] | None = None


def open_log(file: LogFile, options: IngestOptions, now_us: int, folder: Path) -> Opened:
    """Open one file and find out what it is; `folder` takes tables that must be unpacked."""
    progress = Progress()
    context = ReadContext(file.name, _modified_us(file, now_us), options.year)
    source = blocks(file.path, progress)
    held, head = _head(source, SNIFF_BYTES)
    container = container_of(head)
    refusal = REFUSALS.get(container)
    if refusal is not None:
        return Opened(file, container, None, None, refusal, iter(()), progress, context)
    stream = _chain(held, source)
    if container is not Container.TEXT:
        return _open_table(file, container, stream, options, progress, context, folder)
    sniffed = _sniffed(sample_of(head), options)
    if sniffed.format is None:
        more, head = _head(source, _SNIFF_DEEP_BYTES, held)
        stream = _chain(more, source)
        sniffed = _sniffed(sample_of(head), options) if len(more) > len(held) else sniffed
    if sniffed.format is None:
        reason = unknown_reason(sniffed)
        return Opened(file, container, None, sniffed, reason, iter(()), progress, context)
    records = records_of(sniffed.format.shape, stream, context)
    if options.columns and sniffed.format.shape is Shape.OBJECTS:
        records = renamed(records, options.columns)
    return Opened(file, container, sniffed.format, sniffed, None, records, progress, context)


def _modified_us(file: LogFile, now_us: int) -> int:
    if str(file.path) == "-":
        return now_us
    return file.path.stat().st_mtime_ns // 1_000


def _head(
    source: Iterator[bytes], size: int, held: list[bytes] | None = None
) -> tuple[list[bytes], bytes]:
    """Read blocks until they hold so many bytes; returns the blocks and their first bytes."""
    kept = list(held or [])
    total = sum(map(len, kept))
    while total < size and (block := next(source, b"")):
        kept.append(block)
        total += len(block)
    return kept, b"".join(kept)[:size]


def _chain(held: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while held:
        yield held.pop(0)
    yield from rest


def _sniffed(sample: Sample, options: IngestOptions) -> Sniffed:
    if options.format != "auto":
        return Sniffed(format_named(options.format), 1.0)
    if options.columns and sample.objects:
        sample = replace(sample, objects=tuple(_rename(item, options) for item in sample.objects))
    return sniff(sample)


def _rename(item: object, options: IngestOptions) -> dict[str, object]:
    assert isinstance(item, dict), "a sample holds objects"
    return {options.columns.get(key, key): value for key, value in item.items()}


def unknown_reason(sniffed: Sniffed) -> str:
    """Say why nobody knows the format: the first keys seen, and the nearest formats."""
    if not sniffed.keys:
        return "no format that is known: neither JSON objects nor request lines of a known server"
    keys = ", ".join(f"`{key[:40]}`" for key in sniffed.keys[:8])
    near = f"; nearest formats: {', '.join(sniffed.nearest)}" if sniffed.nearest else ""
    return f"no format that is known; first keys: {keys}{near}"


def _open_table(
    file: LogFile,
    container: Container,
    stream: Iterator[bytes],
    options: IngestOptions,
    progress: Progress,
    context: ReadContext,
    folder: Path,
) -> Opened:
    if container is Container.CSV:
        records = csv_records(stream, context)
    else:
        path = spooled(stream, folder)
        frames = canonical_frames(path) if container is Container.PARQUET else None
        if frames is not None:
            found = format_named("kvaudit-table")
            return Opened(file, container, found, None, None, iter(()), progress, context, frames)
        if container is Container.PARQUET:
            records = parquet_records(path, context)
        else:
            records = duckdb_records(path, options.columns.get("table"), context)
        records = _then_remove(records, path)
    records = renamed(records, {k: v for k, v in options.columns.items() if k != "table"})
    first: list[RawRecord] = []
    for record in records:
        first.append(record)
        if len(first) == _TABLE_SAMPLE:
            break
    sample = Sample(tuple(record.data for record in first))
    sniffed = (
        Sniffed(format_named(options.format), 1.0) if options.format != "auto" else sniff(sample)
    )
    refusal = None if sniffed.format is not None else unknown_reason(sniffed)
    rows = _chain_records(first, records) if refusal is None else iter(())
    return Opened(file, container, sniffed.format, sniffed, refusal, rows, progress, context)


def _then_remove(records: Iterator[RawRecord], path: Path) -> Iterator[RawRecord]:
    try:
        yield from records
    finally:
        path.unlink(missing_ok=True)


def _chain_records(first: list[RawRecord], rest: Iterator[RawRecord]) -> Iterator[RawRecord]:
    yield from first
    yield from rest


def rows_of(
    opened: Opened, records: Iterable[RawRecord], options: IngestOptions
) -> Iterator[LogRow]:
    """Yield the rows of an opened file, with the user's rules applied.

    A reader that fails on a record loses what it held open, counted, and goes on with the next.
    """
    assert opened.format is not None, "a refused file has no rows"
    tenant_rules = [FieldRule.parse(text) for text in options.tenant_fields]
    replica_rule = FieldRule.parse(options.replica_field) if options.replica_field else None
    source = iter(records)
    for _ in range(READER_ERRORS_MAX):
        try:
            for row in opened.format.read(source, opened.context):
                yield _ruled(row, tenant_rules, replica_rule)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ):
            opened.context.damage("record that its reader could not take")
        else:
            return
    opened.context.note(f"reading stopped after {READER_ERRORS_MAX} records that failed")


def _ruled(row: LogRow, tenant_rules: list[FieldRule], replica_rule: FieldRule | None) -> LogRow:
    for rule in tenant_rules:
        tenant = rule.value(row.fields)
        if tenant is not None:
            row = replace(row, tenant_id=tenant, tenant_id_source=rule.text)
            break
    if replica_rule is not None:
        replica = replica_rule.value(row.fields)
        row = replace(row, replica=replica) if replica is not None else row
    return row
