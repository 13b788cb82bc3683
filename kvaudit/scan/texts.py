"""The texts of a canonical table, row by row, as the comparison of tenants reads them.

A request's context is all that it carries: prompt, attachments, retrieved items, tools, response
format. Its answer is output, reasoning and tool arguments. Where the log left something out or
masked it, and between texts of different origin, stands a barrier that no match crosses.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow.parquet as pq

from kvaudit.detect.semijoin.texts import BARRIER, SCHEMA
from kvaudit.findings import Span

BATCH_ROWS = 256
# What loggers and privacy filters put where they took text out.
_MASK = re.compile(
    r"\[(?:REDACTED|MASKED|FILTERED|REMOVED|CENSORED|TRUNCATED|OMITTED)[^\]\n]{0,40}\]"
    r"|<(?:REDACTED|MASKED|PII)[^>\n]{0,40}>|\{\{?(?:REDACTED|MASKED)[^}\n]{0,40}\}\}?",
    re.IGNORECASE,
)
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
_CODED = ("organisation", "tenant", "conversation", "replica")


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
        schema = {name: SCHEMA[name] for name in columns}
        first = 0
        for batch in pq.ParquetFile(self._table).iter_batches(
            batch_size=BATCH_ROWS, columns=wanted
        ):
            made = [
                tuple(self._value(name, first + at, row) for name in columns)
                for at, row in enumerate(batch.to_pylist())
                if is_compared(row)
            ]
            first += len(batch)
            if made:
                yield pl.DataFrame(made, schema=schema, orient="row")

    def fetch(self, rows: Sequence[int], column: str) -> Mapping[int, str]:
        """Return `context` or `answer` of some rows by their ordinals."""
        return {
            at: self._value(column, at, row)
            for at, row in self.raw(rows, [*_ALWAYS, *_READ[column]])
        }

    def raw(self, rows: Sequence[int], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
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

    def _value(self, name: str, at: int, row: Mapping[str, Any]) -> Any:
        match name:
            case "row":
                return at
            case "organisation":
                return self._code(name, row["organisation"] or row["tenant_id"])
            case "tenant":
                return self._code(name, row["tenant_id"])
            case "conversation":
                held = row["gen_ai_conversation_id"]
                return self._code(name, held and f"{row['tenant_id']}{BARRIER}{held}")
            case "replica":
                return self._code(name, row["service_instance_id"])
            case "start_us" | "end_us":
                moment = row[name.replace("_us", "_time")]
                return None if moment is None else round(moment.timestamp() * 1e6)
            case "context":
                return context_side(row).text
        assert name == "answer", "a field of TextRow"
        return answer_side(row).text

    def _code(self, name: str, value: str | None) -> int | None:
        if value is None:
            return None
        known = self.codes[name]
        return known.setdefault(value, len(known))


def is_compared(row: Mapping[str, Any]) -> bool:
    """Whether the row takes part: a request of its own, of a known tenant."""
    return bool(row["is_primary"] and not row["is_partner"] and row["tenant_id"])


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
        for start, end in zip(cuts, cuts[1:], strict=False):
            if texts:
                texts.append(BARRIER)
                length += 1
            pieces.append(Piece(length, column, start))
            texts.append(clean[start:end])
            length += end - start
    shown_from.setdefault("retrieved_items", at)
    return Side("".join(texts), tuple(pieces), shown_from)
