"""The texts of a canonical table, row by row, as the comparison of tenants reads them.

A request's context is all that it carries: prompt, attachments, retrieved items, tools, response
format. Its answer is output, reasoning and tool arguments. Where the log left something out or
masked it, and between texts of different origin, stands a barrier that no match crosses.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow.parquet as pq

from kvaudit.detect.semijoin.texts import BARRIER, SCHEMA
from kvaudit.findings import Span

BATCH_ROWS = 256
# What loggers and privacy filters put where they took text out.
_MASK_PATTERN = (
    r"\[(?:REDACTED|MASKED|FILTERED|REMOVED|CENSORED|TRUNCATED|OMITTED)[^\]\n]{0,40}\]"
    r"|<(?:REDACTED|MASKED|PII)[^>\n]{0,40}>|\{\{?(?:REDACTED|MASKED)[^}\n]{0,40}\}\}?"
)
_MASK = re.compile(_MASK_PATTERN, re.IGNORECASE)
_APART_PATTERN = rf"(?i)\x00|{_MASK_PATTERN}"
_CONTEXT_COLUMNS = ("input_text", "context_text", "retrieved_items", "input_gaps")
_ANSWER_COLUMNS = ("output_text", "output_reasoning_text", "output_tool_text", "output_gaps")
_ALWAYS = ("tenant_id", "is_primary", "is_partner")
# What must be read of the table for a field of TextRow.
_READ: dict[str, tuple[str, ...]] = {
    "row": (), "tenant": (), "organisation": ("organisation",),
    "conversation": ("gen_ai_conversation_id",), "replica": ("service_instance_id",),
    "start_us": ("start_time",), "end_us": ("end_time",),
    "context": _CONTEXT_COLUMNS, "answer": _ANSWER_COLUMNS,
}  # fmt: skip
_IS_COMPARED = (
    pl.col("is_primary") & ~pl.col("is_partner") & (pl.col("tenant_id").str.len_bytes() > 0)
)
# Fields that are codes, and what of the table each code stands for.
_CODED: dict[str, pl.Expr] = {
    "organisation": pl.coalesce("organisation", "tenant_id"),
    "tenant": pl.col("tenant_id"),
    "conversation": pl.concat_str("tenant_id", "gen_ai_conversation_id", separator=BARRIER),
    "replica": pl.col("service_instance_id"),
}


class Piece(NamedTuple):
    """Part of a side: it begins at `start` and is `column` of the table from `offset` on."""

    start: int
    column: str
    offset: int


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a request.

    Attributes:
        text: With barriers, as it is compared.
        pieces: Where each piece of it stood.
        shown_from: Where each column begins in the text that reports show of this side.
    """

    text: str
    pieces: tuple[Piece, ...]
    shown_from: Mapping[str, int]

    def place(self, at: int) -> tuple[str, int]:
        """Return column and offset of a character."""
        held = max((piece for piece in self.pieces if piece.start <= at), key=lambda p: p.start)
        return held.column, held.offset + at - held.start

    def shown_span(self, start: int, end: int) -> Span:
        """Return where a stretch stands in the text that reports show of this side."""
        column, offset = self.place(start)
        last, last_offset = self.place(end - 1)
        return Span(
            start=self.shown_from[column] + offset, end=self.shown_from[last] + last_offset + 1
        )


class TableTexts:
    """A TextSource over one canonical table; codes are given in the order of the table.

    Only primary rows that have a tenant are in it: another view of a request, a join partner, or
    a record of nobody is neither source nor sink.
    """

    def __init__(self, table: Path) -> None:
        self._table = table
        self.codes: dict[str, dict[str, int]] = {name: {} for name in _CODED}
        self._groups: list[tuple[int, int]] = []  # first row, rows of each row group
        file = pq.ParquetFile(table)
        first = 0
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            self._groups.append((first, rows))
            first += rows

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named fields of the rows in order, a few megabytes at a time."""
        wanted = sorted({*_ALWAYS, *(name for column in columns for name in _READ[column])})
        first = 0
        for batch in pq.ParquetFile(self._table).iter_batches(
            batch_size=BATCH_ROWS, columns=wanted
        ):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame), "a batch becomes a frame"
            kept = frame.with_row_index("row", offset=first).filter(_IS_COMPARED)
            first += len(frame)
            if len(kept):
                yield pl.DataFrame([self._series(name, kept) for name in columns])

    def _series(self, name: str, frame: pl.DataFrame) -> pl.Series:
        """Return one field of TextRow for the rows of a frame of the table."""
        if name in _CODED:
            values = frame.select(_CODED[name].alias(name))[name]
            for value in values.drop_nulls().unique(maintain_order=True):
                self._code(name, value)
            codes = self.codes[name] or {"": 0}
            return values.replace_strict(codes, default=None, return_dtype=pl.Int64).cast(
                SCHEMA[name]
            )
        if name in _SIDES:
            return _texts_of(name, frame)
        made = frame["row"] if name == "row" else frame[name.replace("_us", "_time")].dt.epoch("us")
        return made.cast(SCHEMA[name]).alias(name)

    def fetch(self, rows: Sequence[int], column: str) -> Mapping[int, str]:
        """Return `context` or `answer` of some rows by their ordinals."""
        side = _SIDES[column]
        return {at: side(row).text for at, row in self.raw(rows, _READ[column])}

    def raw(
        self, rows: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield some rows of the table with their ordinals, in order."""
        wanted = sorted(set(rows))
        file = pq.ParquetFile(self._table)
        at = 0
        for number, (first, count) in enumerate(self._groups):
            here = []
            while at < len(wanted) and wanted[at] < first + count:
                here.append(wanted[at] - first)
                at += 1
            if not here:
                continue
            table = file.read_row_group(number, columns=list(columns)).take(here)
            for place, row in zip(here, table.to_pylist(), strict=True):
                yield first + place, row

    def _code(self, name: str, value: str) -> int:
        known = self.codes[name]
        return known.setdefault(value, len(known))


def _texts_of(name: str, frame: pl.DataFrame) -> pl.Series:
    """Return one side of the rows; those with gaps, masks or items are made one by one."""
    columns = [column for column in _JOINED[name] if column in frame.columns]
    gaps, *others = _APART[name]
    is_apart = pl.col(gaps).list.len().fill_null(0) > 0
    for column in others:
        is_apart |= pl.col(column).is_not_null()
    for column in columns:
        is_apart |= pl.col(column).str.contains(_APART_PATTERN).fill_null(value=False)
    parts = [pl.when(pl.col(c).str.len_bytes() > 0).then(pl.col(c)) for c in columns]
    made = frame.select(
        pl.concat_str(parts, separator=BARRIER, ignore_nulls=True).fill_null("").alias(name),
        is_apart.alias("apart"),
    )
    apart = made["apart"].arg_true().to_list()
    if not apart:
        return made[name]
    side = _SIDES[name]
    texts = [side(row).text for row in frame[apart].select(_READ[name]).iter_rows(named=True)]
    return made[name].scatter(apart, texts)


def context_side(row: Mapping[str, Any]) -> Side:
    """Return everything that the request carries."""
    context = row["context_text"] or ""
    items = [text for text in _retrieved(row["retrieved_items"]) if text not in context]
    return _side(
        [
            ("context_text", context, ()),
            *(("retrieved_items", text, ()) for text in items),
            ("input_text", row["input_text"] or "", row["input_gaps"] or ()),
        ],
        shown=("input_text", "context_text"),
    )


def answer_side(row: Mapping[str, Any]) -> Side:
    """Return everything that was answered."""
    return _side(
        [
            ("output_text", row["output_text"] or "", row["output_gaps"] or ()),
            ("output_reasoning_text", row["output_reasoning_text"] or "", ()),
            ("output_tool_text", row["output_tool_text"] or "", ()),
        ],
        shown=("output_text", "output_reasoning_text", "output_tool_text"),
    )


def _retrieved(text: str | None) -> list[str]:
    return [str(item.get("text") or "") for item in json.loads(text)] if text else []


def _side(parts: Sequence[tuple[str, str, Sequence[int]]], *, shown: Sequence[str]) -> Side:
    """Join the parts; barriers between them, at gaps, and in place of masks.

    Args:
        parts: Column, text and gaps of each.
        shown: Columns in the order in which reports join them, by newlines.
    """
    sizes = {column: len(text) for column, text, _ in parts}
    shown_from: dict[str, int] = {}
    at = 0
    for column in shown:
        shown_from[column] = at
        # A record's prompt is always followed by a newline; its answer leaves out what is empty.
        at += sizes.get(column, 0) + (1 if sizes.get(column) or column == "input_text" else 0)
    texts: list[str] = []
    pieces: list[Piece] = []
    length = 0
    for column, text, gaps in parts:
        if not text:
            continue
        clean = text.replace(BARRIER, " ")
        clean = _MASK.sub(lambda found: BARRIER * len(found[0]), clean)
        cuts = [0, *sorted({gap for gap in gaps if 0 < gap < len(clean)}), len(clean)]
        for start, end in pairwise(cuts):
            if texts:
                texts.append(BARRIER)
                length += 1
            pieces.append(Piece(length, column, start))
            texts.append(clean[start:end])
            length += end - start
    shown_from.setdefault("retrieved_items", at)
    return Side("".join(texts), tuple(pieces), shown_from)


_SIDES: dict[str, Callable[[Mapping[str, Any]], Side]] = {
    "context": context_side,
    "answer": answer_side,
}
# Columns of a side in the order in which it joins them, and those that need a row's own way.
_JOINED = {
    "context": ("context_text", "input_text"),
    "answer": ("output_text", "output_reasoning_text", "output_tool_text"),
}
_APART = {"context": ("input_gaps", "retrieved_items"), "answer": ("output_gaps",)}
