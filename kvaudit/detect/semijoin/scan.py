"""Three passes over a log: answers in, contexts against them, answers against what was met.

What comes out are two sets of Parquet files in one folder, all that the join needs:

    contexts-*.parquet  h, place          grams of answers that stand in another's context
    answers-*.parquet   h, place, is_wall  the answers' own grams of the same hashes
    lengths.parquet     context, answer   bytes of each row's texts

`h` is the gram's hash; `place` is the rank of the text (`ranks.py`) << 32 | the raw offset in it.
RAM holds the table of hashes, 12 bytes for each distinct block of the contexts, one batch and the
rows that go out next; where the hashes would not fit, the contexts are read once for each range.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvaudit.detect.semijoin import scan_kernels as kernels
from kvaudit.detect.semijoin.arrays import new_cache, new_scratch
from kvaudit.detect.semijoin.folding import fold_tables
from kvaudit.detect.semijoin.grams import AnswerGrams
from kvaudit.detect.semijoin.names import ANSWERS, CONTEXTS, LENGTHS
from kvaudit.detect.semijoin.ranks import META, Ranks, ranks_of
from kvaudit.detect.semijoin.texts import SemiJoinSettings, TextSource

_OUT_ROWS = 1 << 20
_BLOCKS_MIN = 1 << 14
_BLOCK_LOAD_MAX = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a step has come.

    Attributes:
        step: What is done, in words.
        rows: Rows of the table done in it.
        total: Rows of the table; None before it is known.
        text_bytes: Text read in it.
    """

    step: str
    rows: int
    total: int | None
    text_bytes: int


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What a scan saw.

    Attributes:
        answer_bytes: Text of the answers.
        context_bytes: Text of the contexts.
        looked_at_bytes: Text of the contexts that was no resent block.
        hashes: Distinct grams of the answers.
        parts: Ranges of hashes, each of which read the contexts once.
        context_rows: Rows in the files of the contexts.
        answer_rows: Rows in the files of the answers.
    """

    answer_bytes: int
    context_bytes: int
    looked_at_bytes: int
    hashes: int
    parts: int
    context_rows: int
    answer_rows: int


class Texts(NamedTuple):
    """One column of a batch: UTF-8 one after another, and where each text begins; read-only."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]


def read_ranks(source: TextSource, skew_us: int) -> Ranks:
    """Return the order of the table's texts."""
    frames = list(source.batches(META))
    empty = pl.DataFrame(schema=dict.fromkeys(META, pl.Int64))
    return ranks_of(pl.concat(frames) if frames else empty, skew_us)


def scan(
    source: TextSource, ranks: Ranks, folder: Path, settings: SemiJoinSettings, report: Report
) -> Scanned:
    """Scan a log into `folder`, which is empty."""
    return _Scan(source, ranks, folder, settings, report).run()


def gram_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return the sampled hashes of texts, sorted, each once: the form of public text."""
    grams = AnswerGrams(part=0, parts=1, bytes_max=1 << 40)
    for text in texts:
        raw = text.encode("utf-8", "replace")
        grams.add(
            np.frombuffer(raw, np.uint8), _read_only(np.array([0, len(raw)], np.int64)),
            _read_only(np.zeros(1, np.int32)),
        )  # fmt: skip
    keys = grams.slots.keys
    return np.sort(keys[keys != 0])


def texts_of(column: pl.Series) -> Texts:
    """Return the bytes of a column of texts; missing ones are empty."""
    arrow: Any = column.fill_null("").rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = arrow.buffers()
    begins = np.frombuffer(offsets, np.int64)[arrow.offset : arrow.offset + len(arrow) + 1]
    if not data:
        return Texts(np.frombuffer(b"\0", np.uint8), begins)
    return Texts(np.frombuffer(data, np.uint8), begins)


class _Scan:
    def __init__(
        self, source: TextSource, ranks: Ranks, folder: Path, settings: SemiJoinSettings,
        report: Report,
    ) -> None:  # fmt: skip
        self._source = source
        self._ranks = ranks
        self._folder = folder
        self._settings = settings
        self._report = report
        self._tables = fold_tables()
        self._scratch = new_scratch()
        self._seen = {"answer": 0, "context": 0}  # bytes, of the first part
        self._looked_at = 0
        self._lengths = {name: np.zeros(ranks.rows.size, np.int64) for name in self._seen}

    def run(self) -> Scanned:
        """Do all passes for each range of hashes."""
        part, parts, hashes = 0, 1, 0
        contexts = _Out(self._folder, CONTEXTS)
        answers = _Out(self._folder, ANSWERS, walls=True)
        while part < parts:
            grams = self._read_answers(part, parts)
            parts = grams.parts
            hashes += grams.count
            own_ranks = np.full(grams.slots.keys.size, kernels.NO_RANK, np.uint32)
            self._match_contexts(grams, own_ranks, contexts)
            self._match_answers(grams, own_ranks, answers)
            part += 1
        contexts.close()
        answers.close()
        pl.DataFrame(self._lengths).write_parquet(self._folder / LENGTHS)
        return Scanned(
            answer_bytes=self._seen["answer"], context_bytes=self._seen["context"],
            looked_at_bytes=self._looked_at, hashes=hashes, parts=parts,
            context_rows=contexts.rows, answer_rows=answers.rows,
        )  # fmt: skip

    def _read_answers(self, part: int, parts: int) -> AnswerGrams:
        grams = AnswerGrams(part=part, parts=parts, bytes_max=self._settings.memory_bytes)
        for texts, rows in self._texts("answer", "reading answers", is_counted=part == 0):
            grams.add(texts.data, texts.offsets, _read_only(self._ranks.organisations[rows]))
        grams.mark_public(np.array(self._settings.background, np.uint64))
        return grams

    def _match_contexts(
        self, grams: AnswerGrams, own_ranks: NDArray[np.uint32], out: "_Out"
    ) -> None:
        words = grams.filter_words()
        blocks = _Blocks()
        cache = new_cache()
        step = f"reading contexts{_which(grams)}"
        for texts, rows in self._texts("context", step, is_counted=grams.part == 0):
            blocks.make_room((texts.offsets[-1] - texts.offsets[0]) // kernels.BLOCK)
            row = 0
            while True:
                counts = np.array([out.size, 0, 0], np.int64)
                row = kernels.scan_contexts(
                    texts.data, texts.offsets, row, self._ranks.organisations[rows],
                    self._ranks.prompt[rows], self._tables, self._scratch, words, grams.slots,
                    own_ranks, blocks.keys, blocks.firsts, cache, out.hashes, out.places, counts,
                )  # fmt: skip
                blocks.count += int(counts[1])
                self._looked_at += int(counts[2]) if grams.part == 0 else 0
                if not out.took(int(counts[0]), is_full=row < texts.offsets.size - 1):
                    break
                cache = new_cache()  # the row that did not fit is begun again

    def _match_answers(
        self, grams: AnswerGrams, own_ranks: NDArray[np.uint32], out: "_Out"
    ) -> None:
        for texts, rows in self._texts("answer", f"matching answers{_which(grams)}"):
            row = 0
            while True:
                counts = np.array([out.size], np.int64)
                row = kernels.scan_answers(
                    texts.data, texts.offsets, row, self._ranks.answer[rows],
                    self._ranks.limit[rows], self._ranks.unknown_from, self._tables,
                    self._scratch, grams.slots, own_ranks, out.hashes, out.places, out.walls,
                    counts,
                )  # fmt: skip
                if not out.took(int(counts[0]), is_full=row < texts.offsets.size - 1):
                    break

    def _texts(
        self, column: str, step: str, *, is_counted: bool = False
    ) -> Iterator[tuple[Texts, slice]]:
        done, text_bytes = 0, 0
        for frame in self._source.batches([column]):
            texts = texts_of(frame[column])
            yield texts, slice(done, done + frame.height)
            size = int(texts.offsets[-1] - texts.offsets[0])
            self._lengths[column][done : done + frame.height] = np.diff(texts.offsets)
            done += frame.height
            text_bytes += size
            if is_counted:
                self._seen[column] += size
            self._report(
                Progress(step=step, rows=done, total=self._ranks.rows.size, text_bytes=text_bytes)
            )


class _Blocks:
    """The blocks of contexts read so far, and the first rank that sent each."""

    def __init__(self) -> None:
        self.keys = np.zeros(_BLOCKS_MIN, np.uint64)
        self.firsts = np.zeros(_BLOCKS_MIN, np.uint32)
        self.count = 0

    def make_room(self, more: int) -> None:
        size = self.keys.size
        while (self.count + more) > size * _BLOCK_LOAD_MAX:
            size *= 2
        if size > self.keys.size:
            keys, firsts = np.zeros(size, np.uint64), np.zeros(size, np.uint32)
            kernels.rebuild_blocks(self.keys, self.firsts, keys, firsts)
            self.keys, self.firsts = keys, firsts


class _Out:
    """Rows on their way out to numbered Parquet files."""

    def __init__(self, folder: Path, name: str, *, walls: bool = False) -> None:
        self._folder = folder
        self._name = name
        self._has_walls = walls
        self._files = 0
        self.size = 0
        self.rows = 0
        self._make(_OUT_ROWS)

    def _make(self, size: int) -> None:
        self.hashes = np.zeros(size, np.uint64)
        self.places = np.zeros(size, np.uint64)
        self.walls = np.zeros(size if self._has_walls else 0, np.bool_)

    def took(self, size: int, *, is_full: bool) -> bool:
        """Note the rows that a kernel added; return whether it must go on in the batch."""
        self.size = size
        if is_full and size == 0:
            self._make(self.hashes.size * 2)  # one text alone is more than fits
        elif is_full:
            self._write()
        return is_full

    def close(self) -> None:
        """Write what is left; there is always at least one file."""
        if self.size or not self._files:
            self._write()

    def _write(self) -> None:
        columns: dict[str, NDArray[Any]] = {
            "h": self.hashes[: self.size],
            "place": self.places[: self.size],
        }
        if self._has_walls:
            columns["is_wall"] = self.walls[: self.size]
        path = self._folder / f"{self._name}-{self._files:05}.parquet"
        pl.DataFrame(columns).write_parquet(path, compression="zstd", compression_level=1)
        self._files += 1
        self.rows += self.size
        self.size = 0


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view: numba compiles anew for each kind of array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _which(grams: AnswerGrams) -> str:
    return f" ({grams.part + 1} of {grams.parts})" if grams.parts > 1 else ""
