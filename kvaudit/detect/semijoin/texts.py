"""What the semi-join is given and what it returns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import polars as pl

BARRIER = "\x00"  # no gram and no match crosses it


class Engine(StrEnum):
    """Who joins; both give identical matches."""

    DUCKDB = "duckdb"
    POLARS = "polars"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One request of the canonical table, as the semi-join sees it.

    Attributes:
        row: Ordinal in the canonical table, ascending; gaps are allowed.
        organisation: Code of its organisation: text of another code is foreign.
        tenant: Code of its tenant.
        conversation: Code of its conversation.
        start_us: When it began; None without a usable order.
        end_us: When its last byte left.
        replica: Code of the replica that served it; None if not known.
        context: All that it carries in, parts joined by `BARRIER`, what grows last.
        answer: All that came out, parts joined by `BARRIER`.
    """

    row: int
    organisation: int
    tenant: int
    conversation: int | None
    start_us: int | None
    end_us: int | None
    replica: int | None
    context: str
    answer: str


SCHEMA: dict[str, type[pl.DataType]] = {
    "row": pl.Int64,
    "organisation": pl.Int32,
    "tenant": pl.Int32,
    "conversation": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "replica": pl.Int32,
    "context": pl.String,
    "answer": pl.String,
}


class TextSource(Protocol):
    """A log of any size, read several times in the same order.

    Rows are sorted by tenant, conversation and time: text that one tenant sends again and again
    is recognised best when it comes in one stretch.
    """

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield frames of the named fields of TextRow; each fits in memory many times."""
        ...

    def fetch(self, rows: Sequence[int], column: str) -> Mapping[int, str]:
        """Return one text, `context` or `answer`, of the given rows, which ascend."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiJoinSettings:
    """How to join.

    Attributes:
        engine: Who joins.
        memory_bytes: The join's own limit, and that of the hashes of the answers; beyond it the
            join spills and the contexts are read once for each range of hashes.
        threads: Of the join; results do not depend on it.
        skew_us: Clocks of two records may differ by so much.
        use_replicas: Take no source from another replica than the sink's.
        background_organisations: A text that so many organisations' prompts held, none of them
            after an answer had given it to them, is nobody's.
        background: Hashes of public text (`scan.gram_hashes`), as a sorted tuple.
    """

    engine: Engine = Engine.DUCKDB
    memory_bytes: int = 1 << 30
    threads: int = 1
    skew_us: int = 0
    use_replicas: bool = False
    background_organisations: int = 3
    background: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A stretch of an answer that another organisation's request holds.

    Attributes:
        sink_row: Request whose answer it is.
        sink_start: Where it begins in the answer, in characters.
        sink_end: Where it ends.
        source_row: First request of another organisation that holds it.
        source_side: `prompt` or `answer`: where that request holds it.
        source_start: Where it begins there, in characters.
        source_end: Where it ends.
        exact_bytes: Longest stretch without an edit, in canonical bytes.
        chained_bytes: All stretches without an edit together.
        edits: Places where the two differ.
        script: `ascii`, `two-byte` or `cjk`: what most of it is written in.
        is_decoy: The source began after the sink had ended: an accident, by its order in time.
        other_sources: Later rows of other organisations that held it before the sink ended.
        prompt_organisations: Organisations whose prompts held it before an answer gave it to them.
        answer_organisations: Organisations whose answers held it.
    """

    sink_row: int
    sink_start: int
    sink_end: int
    source_row: int
    source_side: str
    source_start: int
    source_end: int
    exact_bytes: int
    chained_bytes: int
    edits: int
    script: str
    is_decoy: bool
    other_sources: tuple[int, ...]
    prompt_organisations: int
    answer_organisations: int
