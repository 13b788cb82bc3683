"""What a file is before it is a log: text, JSON, a table, or something that is not read at all."""

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kvaudit.errors import ConfigError
from kvaudit.forensics.framing import CUT, RECORD_BYTES_MAX
from kvaudit.forensics.reader import RawRecord, ReadContext
from kvaudit.forensics.sql_files import sql
from kvaudit.forensics.table import SCHEMA

_BATCH_ROWS = 2_000
_NULS_MAX = 4
_HEAD_BYTES = 4_096


class Container(StrEnum):
    """How the bytes of a file are to be taken."""

    TEXT = "text"
    PARQUET = "parquet"
    DUCKDB = "duckdb"
    CSV = "csv"
    EMPTY = "empty"
    PICKLE = "pickle"
    BINARY = "binary"


REFUSALS = {
    Container.PICKLE: (
        "a Python pickle runs code when it is opened; on the server's own machine, convert it to "
        "JSON lines with the requests' texts and ids, and scan those"
    ),
    Container.BINARY: "not a log that can be read: binary data",
    Container.EMPTY: "empty file",
}

_PICKLE_HEAD = re.compile(rb"\x80[\x02-\x05](?:\x95.{8}|[\]}(cq\x8c\x94Xhu])", re.DOTALL)


def container_of(head: bytes) -> Container:
    """Tell the container by the first decompressed bytes."""
    if not head.strip(b" \t\r\n\x00"):
        return Container.BINARY if b"\x00" in head else Container.EMPTY
    if head.startswith(b"PAR1"):
        return Container.PARQUET
    if head[8:12] == b"DUCK":
        return Container.DUCKDB
    if _PICKLE_HEAD.match(head):
        return Container.PICKLE
    if head[:_HEAD_BYTES].count(b"\x00") > _NULS_MAX:
        return Container.BINARY
    return Container.CSV if _is_csv(head) else Container.TEXT


_COLUMN_NAME = re.compile(r"[\w .:$@/\[\]()-]{1,100}")


def _is_csv(head: bytes) -> bool:
    """Whether the first line is a header of at least 3 plain names."""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().removeprefix("\ufeff")
    if not first or first[0] in "{[<" or b"\n" not in head:
        return False
    names = _csv_row(first, delimiter_of(first))
    plain = [name.strip() for name in names if _COLUMN_NAME.fullmatch(name.strip())]
    return len(names) >= 3 and len(plain) == len(names) == len(set(plain))


def delimiter_of(header: str) -> str:
    """Return the delimiter that cuts the header into most pieces."""
    return max(",\t;|", key=header.count)


def _csv_row(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def csv_records(blocks: Iterable[bytes], context: ReadContext) -> Iterator[RawRecord]:
    """Yield one record a row, keyed by the header; every value is a string, "" is None."""
    csv.field_size_limit(RECORD_BYTES_MAX)
    text = io.TextIOWrapper(
        io.BufferedReader(_BlockReader(blocks)), encoding="utf-8-sig", errors="replace", newline=""
    )
    header = text.readline()
    delimiter = delimiter_of(header)
    names = [name.strip() for name in _csv_row(header.rstrip("\r\n"), delimiter)]
    rows = csv.reader((line.replace("\0", "") for line in text), delimiter=delimiter)
    number = 0
    while True:
        try:
            values = next(rows, None)
        except csv.Error:
            context.damage("damaged CSV row")
            continue
        if values is None:
            return
        number += 1
        if len(values) != len(names):
            if values:
                context.damage(CUT if len(values) < len(names) else "CSV row with too many columns")
            continue
        yield RawRecord(
            number, 0, {name: value or None for name, value in zip(names, values, strict=True)}
        )


class _BlockReader(io.RawIOBase):
    """Blocks as a raw stream for `io.TextIOWrapper`."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._held = b""

    def readable(self) -> bool:
        """Always: it is a reader."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what the next block has."""
        if not self._held:
            self._held = next(self._blocks, b"")
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size


def parquet_records(path: Path, context: ReadContext) -> Iterator[RawRecord]:
    """Yield one record a row of a Parquet file."""
    try:
        file = pq.ParquetFile(path)
        yield from _batch_records(file.iter_batches(batch_size=_BATCH_ROWS))
    except (pa.ArrowException, OSError):
        context.damage("damaged Parquet")


def canonical_frames(path: Path) -> Iterator[pl.DataFrame] | None:
    """Return the frames of a Parquet file that has the canonical schema; None if it has another.

    The file is removed after its last frame.
    """
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError):
        return None
    if not set(SCHEMA) <= set(file.schema_arrow.names):
        return None
    return _frames(file, path)


def _frames(file: pq.ParquetFile, path: Path) -> Iterator[pl.DataFrame]:
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            frame = pl.from_arrow(pa.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
            yield frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    finally:
        path.unlink(missing_ok=True)


def duckdb_records(path: Path, table: str | None, context: ReadContext) -> Iterator[RawRecord]:
    """Yield one record a row of a table of a DuckDB file, opened read-only and locked.

    Raises:
        ConfigError: The file can't be opened, or holds several tables and none was named.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    try:
        connection = duckdb.connect(str(path), read_only=True, config=config)
    except duckdb.Error as error:
        raise ConfigError(
            f"can't open `{path}` as a DuckDB database",
            hint=str(error).splitlines()[0][:200],
        ) from None
    with connection:
        names = [row[0] for row in connection.execute(sql("tables")).fetchall()]
        chosen = _chosen_table(path, names, table)
        quoted = '"' + chosen.replace('"', '""') + '"'
        try:
            reader = connection.table(quoted).to_arrow_reader(_BATCH_ROWS)
            yield from _batch_records(reader)
        except duckdb.Error:
            context.damage("damaged DuckDB table")


def _chosen_table(path: Path, names: list[str], table: str | None) -> str:
    if table is None and "requests" in names:
        table = "requests"
    elif table is None and len(names) == 1:
        table = names[0]
    if table is None or table not in names:
        raise ConfigError(
            f"`{path}` holds no table `{table}`" if table else f"`{path}` holds several tables",
            hint=f"name one with `--map table=NAME`: {', '.join(names) or 'it has none'}",
        )
    return table


def _batch_records(batches: Iterable[Any]) -> Iterator[RawRecord]:
    number = 0
    for batch in batches:
        for item in batch.to_pylist():
            number += 1
            yield RawRecord(number, 0, item)


def spooled(blocks: Iterable[bytes], folder: Path) -> Path:
    """Write a decompressed table to a temporary file, since tables need random access."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".table", delete=False) as handle:
        for block in blocks:
            handle.write(block)
    return Path(handle.name)


def renamed(records: Iterable[RawRecord], columns: Mapping[str, str]) -> Iterator[RawRecord]:
    """Yield the records with keys renamed as `--map column=canonical` says; others stay."""
    for record in records:
        data = dict(record.data)
        for column, canonical in columns.items():
            if column in data:
                data[canonical] = data.pop(column)
        yield RawRecord(record.row, record.offset, data, record.line)
