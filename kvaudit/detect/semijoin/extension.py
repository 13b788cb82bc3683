"""Seeds to matches: every pair of texts that share one is read once more and extended exactly.

Nothing is searched: a seed says where to look in both texts. Its gram grows to the longest stretch
that both hold in canonical bytes; stretches with small edits between them are chained; and a match
is clipped where the own context, or text that is nobody's, begins. Texts are fetched in chunks of
`CHUNK_BYTES`, each source once for a chunk of sinks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvaudit.detect.semijoin import extension_kernels as kernels
from kvaudit.detect.semijoin.folded_texts import FoldedTexts, fold_encoded
from kvaudit.detect.semijoin.kernels import GRAM_LENGTHS
from kvaudit.detect.semijoin.names import HELD, SEEDS, WALLS
from kvaudit.detect.semijoin.ranks import Ranks
from kvaudit.detect.semijoin.scan import Progress, Report
from kvaudit.detect.semijoin.texts import TextSource

CHUNK_BYTES = 32 << 20
# No match is longer than the answer; a source that is so much sparser than it is cut short.
MARGIN_BYTES, MARGIN_ANSWERS = 4096, 4
OTHER_SOURCES_MAX = 16
# Shorter matches are idioms: at 1 GB 24 bytes left a fifth of the matches and every leak that was
# found at all, of 12 tokens and more (`tests/bench/scan`); at 26 the first ones were lost.
CHAINED_MIN = 24
SEEDS_ASKED = 4  # seeds of a match whose other holders are looked up
SCRIPTS = ("ascii", "two-byte", "cjk")
COLUMNS = (
    "match", "sink", "source", "sink_start", "sink_end", "source_start", "source_end", "begin",
    "stop", "exact",
    "chained", "edits", "script", "is_decoy", "prompts", "answers", "hashes",
)  # fmt: skip
_OFFSET = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_EVERYTHING = np.int64(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """Seeds in columns, ordered by source, sink and place in the sink.

    Attributes:
        hashes: uint64.
        sinks: Rank of the answer, int64.
        offsets: Raw offset in the answer, int64.
        sources: Rank of the source's text, int64.
        source_offsets: Raw offset there, int64.
        prompts: Organisations whose prompts held the gram first, int64.
        answers: Organisations whose answers held it, int64.
        decoys: bool.
    """

    hashes: NDArray[np.uint64]
    sinks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sources: NDArray[np.int64]
    source_offsets: NDArray[np.int64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]
    decoys: NDArray[np.bool_]


def extend(
    joined: Path,
    source: TextSource,
    ranks: Ranks,
    lengths: NDArray[np.int64],
    report: Report,
) -> pl.DataFrame:
    """Return the matches of the joined seeds, one a row: `COLUMNS`, and `others` behind them.

    Args:
        joined: Folder of the join's files.
        source: The log.
        ranks: The order of its texts.
        lengths: Bytes of each text, by rank, (2n,) int64.
        report: Called with the progress.
    """
    seeds = _read_seeds(joined / SEEDS, ranks)
    all_walls = np.sort(pl.read_parquet(joined / WALLS)["place"].to_numpy())
    frames: list[pl.DataFrame] = []
    first = done = 0
    for sinks in _chunks(np.unique(seeds.sinks), lengths, ranks):
        answers = _Fetched(source, ranks, sinks)
        walls = _walls_in(answers, all_walls)
        margin = MARGIN_BYTES + MARGIN_ANSWERS * int(lengths[sinks].max())
        chosen = np.flatnonzero(np.isin(seeds.sinks, sinks))
        for sources in _chunks(np.unique(seeds.sources[chosen]), lengths, ranks):
            part = chosen[np.isin(seeds.sources[chosen], sources)]
            at = (seeds.source_offsets[part], seeds.sources[part])
            held = _Fetched(source, ranks, sources, at, margin)
            made = _matches(seeds, part, walls, answers, held, first)
            frames.append(made.filter(pl.col("chained") >= CHAINED_MIN))
            first += made.height
            done += int(lengths[sources].sum())
            report(Progress(step="extending matches", rows=first, total=None, text_bytes=done))
    found = pl.concat(frames) if frames else _columns({})
    return _with_other_sources(found, joined / HELD, ranks)


def _read_seeds(path: Path, ranks: Ranks) -> Seeds:
    frame = pl.read_parquet(path)
    place, origin = frame["place"].to_numpy(), frame["source_place"].to_numpy()
    sinks, sources = (
        (column >> _HALF).astype(np.int64) for column in (place, origin)
    )  # fmt: skip
    offsets = (place & _OFFSET).astype(np.int64)
    hashes = frame["h"].to_numpy()
    # Texts are fetched in the order of the table.
    order = np.lexsort((hashes, offsets, sinks, ranks.order[sources], ranks.is_answer[sources]))
    return Seeds(
        hashes=hashes[order],
        sinks=sinks[order],
        offsets=offsets[order],
        sources=sources[order],
        source_offsets=(origin & _OFFSET).astype(np.int64)[order],
        prompts=frame["prompts"].cast(pl.Int64).to_numpy()[order],
        answers=frame["answers"].cast(pl.Int64).to_numpy()[order],
        decoys=frame["is_decoy"].to_numpy()[order],
    )


def _chunks(
    texts: NDArray[np.int64], lengths: NDArray[np.int64], ranks: Ranks
) -> Iterator[NDArray[np.int64]]:
    """Cut texts, given by rank, into chunks of `CHUNK_BYTES`, in the order of the table."""
    ordered = texts[np.lexsort((ranks.order[texts], ranks.is_answer[texts]))]
    number = np.cumsum(lengths[ordered]) // CHUNK_BYTES
    for cut in np.split(ordered, np.flatnonzero(np.diff(number)) + 1):
        if cut.size:
            yield cut


class _Fetched:
    """Some texts, folded, by rank; of long ones only what lies round their seeds.

    Args:
        source: The log.
        ranks: The order of its texts.
        texts: Which, by rank.
        offsets: Raw offset of each seed and the rank of its text; None = all of each text.
        margin: Raw bytes before the first and behind the last seed of a text.
    """

    def __init__(
        self,
        source: TextSource,
        ranks: Ranks,
        texts: NDArray[np.int64],
        offsets: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        margin: int = 0,
    ) -> None:
        held: list[bytes] = []
        self._sorted = np.sort(texts)
        number = np.empty(texts.size, np.int64)
        first, last = self._spans(offsets)
        self.cut = np.zeros(texts.size, np.int64)  # raw bytes left out before each text
        self.characters_cut = np.zeros(texts.size, np.int64)
        for column, is_answer in (("context", False), ("answer", True)):
            chosen = texts[ranks.is_answer[texts] == is_answer]
            rows = ranks.rows[ranks.order[chosen]].tolist()
            found = source.fetch(rows, column) if rows else {}
            places = np.searchsorted(self._sorted, chosen)
            number[places] = np.arange(chosen.size) + len(held)
            for row, place in zip(rows, places, strict=True):
                text = found[row]
                window = _window(
                    text.encode("utf-8", "replace"), int(first[place]) - margin,
                    int(last[place]) + margin,
                )  # fmt: skip
                self.cut[len(held)] = window.cut
                self.characters_cut[len(held)] = window.characters_cut
                held.append(window.text)
        self._number = number
        self.texts: FoldedTexts = fold_encoded(held)
        self.ranks = np.empty(texts.size, np.int64)
        self.ranks[number] = self._sorted

    def numbers(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of texts in `texts`."""
        return self._number[np.searchsorted(self._sorted, ranks)]

    def _spans(
        self, offsets: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last seed of each text, in the order of ranks."""
        size = self._sorted.size
        if offsets is None:
            return np.zeros(size, np.int64), np.full(size, _EVERYTHING)
        first, last = np.full(size, _EVERYTHING), np.zeros(size, np.int64)
        places = np.searchsorted(self._sorted, offsets[1])
        np.minimum.at(first, places, offsets[0])
        np.maximum.at(last, places, offsets[0])
        return first, last


class _Window(NamedTuple):
    text: bytes
    cut: int
    characters_cut: int


def _window(text: bytes, begin: int, stop: int) -> _Window:
    """Cut a text on the borders of characters."""
    begin = max(begin, 0)
    while begin and text[begin] & 0xC0 == 0x80:
        begin -= 1
    while stop < len(text) and text[stop] & 0xC0 == 0x80:
        stop += 1
    before = np.frombuffer(text, np.uint8, count=begin)
    return _Window(text[begin:stop], begin, int(np.count_nonzero(before & 0xC0 != 0x80)))


def _matches(
    seeds: Seeds,
    part: NDArray[np.int64],
    walls: NDArray[np.int64],
    answers: _Fetched,
    held: _Fetched,
    first: int,
) -> pl.DataFrame:
    """Extend the seeds `part` of one chunk of sinks and one of sources."""
    sinks, sources = seeds.sinks[part], seeds.sources[part]
    sink_texts, source_texts = answers.numbers(sinks), held.numbers(sources)
    places = np.stack(
        [
            answers.texts.places(sink_texts, seeds.offsets[part]),
            held.texts.places(source_texts, seeds.source_offsets[part] - held.cut[source_texts]),
        ],
        axis=1,
    )
    is_last = np.append((np.diff(sinks) != 0) | (np.diff(sources) != 0), True)
    chains, seed_of_chain, chain_of_seed = _chained(
        answers.texts, held.texts, places, np.flatnonzero(is_last) + 1, walls
    )
    sink_text, source_text = sink_texts[seed_of_chain], source_texts[seed_of_chain]
    sink_start, sink_end = answers.texts.characters(
        sink_text, chains[:, kernels.START], chains[:, kernels.STOP]
    )
    source_start, source_end = held.texts.characters(
        source_text, chains[:, kernels.SOURCE_START], chains[:, kernels.SOURCE_STOP]
    )
    return _columns(
        {
            "match": np.arange(seed_of_chain.size) + first,
            "sink": sinks[seed_of_chain],
            "source": sources[seed_of_chain],
            "sink_start": sink_start,
            "sink_end": sink_end,
            "source_start": source_start + held.characters_cut[source_text],
            "source_end": source_end + held.characters_cut[source_text],
            "begin": chains[:, kernels.START],
            "stop": chains[:, kernels.STOP],
            "exact": chains[:, kernels.EXACT],
            "chained": chains[:, kernels.CHAINED],
            "edits": chains[:, kernels.EDITS],
            "script": _scripts(chains),
            "is_decoy": seeds.decoys[part][seed_of_chain],
            **_by_seeds(seeds, part, chain_of_seed),
        }
    )


class _Chained(NamedTuple):
    """Chains with a seed, in the order of their first seeds.

    Attributes:
        chains: What is told of each, (C, FIELDS).
        first_seeds: Its first seed, (C,).
        chain_of_seed: -1 for a seed that was none, (N,).
    """

    chains: NDArray[np.int64]
    first_seeds: NDArray[np.int64]
    chain_of_seed: NDArray[np.int64]


def _chained(
    sink: FoldedTexts,
    source: FoldedTexts,
    places: NDArray[np.int64],
    pairs: NDArray[np.int64],
    walls: NDArray[np.int64],
) -> _Chained:
    """Extend and chain seeds, (N, 2) places; `pairs` are the ends of each pair's seeds."""
    size = 3 * len(places) + 64
    runs, run_ends = np.zeros((size, 3), np.int64), np.zeros(pairs.size, np.int64)
    run_of_seed = np.zeros(len(places), np.int64)
    kernels.find_runs(
        sink.buffer, source.buffer, sink.raw, source.raw, places, pairs, runs, run_ends,
        run_of_seed,
    )  # fmt: skip
    count = int(run_ends[-1])
    chain_of_run, order = np.full(count, -1), np.arange(count)
    kernels.chain_runs(sink.buffer, source.buffer, runs, run_ends, chain_of_run, order)
    is_seed = run_of_seed >= 0
    # Chains without a seed, all of whose runs were found by stepping over an edit, are left out.
    numbers, first, chain = np.unique(
        chain_of_run[run_of_seed[is_seed]], return_index=True, return_inverse=True
    )
    seeds = np.flatnonzero(is_seed)
    low, high = _between_walls(sink, places[seeds, 0], chain, numbers.size, walls)
    new_numbers = np.full(int(chain_of_run.max(initial=-1)) + 1, -1)
    new_numbers[numbers] = np.arange(numbers.size)
    told = np.zeros((numbers.size, kernels.FIELDS), np.int64)
    chain_of_run = new_numbers[chain_of_run]
    kernels.describe_chains(
        sink.buffer, runs, order[chain_of_run[order] >= 0], chain_of_run, low, high, told
    )
    assert (told[:, kernels.CHAINED] > 0).all(), "a seed is never clipped away"
    chain_of_seed = np.full(len(places), -1)
    chain_of_seed[seeds] = chain
    return _Chained(told, seeds[first], chain_of_seed)


def _between_walls(
    sink: FoldedTexts,
    seeds: NDArray[np.int64],
    chain: NDArray[np.int64],
    count: int,
    walls: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how far each chain reaches: the walls before its first and behind its last seed."""
    begin, stop = np.full(count, sink.buffer.size), np.zeros(count, np.int64)
    np.minimum.at(begin, chain, seeds)
    np.maximum.at(stop, chain, seeds)
    fenced = np.concatenate([[0], walls, [sink.buffer.size]])
    before = fenced[np.searchsorted(walls, begin)]
    behind = fenced[np.searchsorted(walls, stop, "right") + 1]
    wall_stop, last_stop = (at + GRAM_LENGTHS[sink.buffer[at]] for at in (before, stop))
    low = np.where(before > 0, np.minimum(wall_stop, begin), 0)
    return low, np.maximum(behind, last_stop)


def _scripts(chains: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 for ASCII, 1 for other alphabets, 2 for ideographs, kana and Hangul: the most."""
    ascii_bytes, cjk = chains[:, kernels.ASCII], chains[:, kernels.CJK]
    others = chains[:, kernels.CHAINED] - ascii_bytes - cjk
    most: NDArray[np.int64] = np.argmax(np.stack([ascii_bytes, others, cjk]), axis=0)
    return most


def _walls_in(answers: _Fetched, walls: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the places of the walls of some answers, ascending."""
    ranks = (walls >> _HALF).astype(np.int64)
    chosen = np.isin(ranks, answers.ranks)
    texts = answers.numbers(ranks[chosen])
    return np.sort(answers.texts.places(texts, (walls[chosen] & _OFFSET).astype(np.int64)))


def _by_seeds(
    seeds: Seeds, part: NDArray[np.int64], match_of_seed: NDArray[np.int64]
) -> dict[str, pl.Series]:
    """Return what the seeds of each match say of it."""
    frame = pl.DataFrame(
        {
            "match": match_of_seed, "h": seeds.hashes[part], "prompts": seeds.prompts[part],
            "answers": seeds.answers[part],
        }
    )  # fmt: skip
    summed = (
        frame.filter(pl.col("match") >= 0)
        .group_by("match")
        .agg(
            pl.col("prompts").min(), pl.col("answers").min(),
            pl.col("h").unique().sort().head(SEEDS_ASKED).alias("hashes"),
        )
        .sort("match")
    )  # fmt: skip
    return {name: summed[name] for name in ("prompts", "answers", "hashes")}


def _columns(columns: dict[str, NDArray[Any] | pl.Series]) -> pl.DataFrame:
    schema: dict[str, Any] = dict.fromkeys(COLUMNS, pl.Int64)
    schema |= {"is_decoy": pl.Boolean, "hashes": pl.List(pl.UInt64)}
    return pl.DataFrame(columns or None, schema=schema)


def _with_other_sources(found: pl.DataFrame, held: Path, ranks: Ranks) -> pl.DataFrame:
    """Add `others`: up to `OTHER_SOURCES_MAX` rows of other organisations that held it in time.

    A row counts as a holder when it was first of its organisation to hold half the asked seeds.
    """
    texts = ranks.frame().lazy()
    asked = (
        found.lazy()
        .select("match", "sink", "source", pl.col("hashes").alias("h"))
        .with_columns(pl.col("h").list.len().alias("asked"))
        .explode("h")
        .join(
            texts.select(
                pl.col("rank").alias("sink"), pl.col("organisation").alias("own"), "stop_rank"
            ),
            on="sink",
        )
    )
    holders = (
        pl.scan_parquet(held)
        .select("h", "organisation", (pl.col("place") // (1 << 32)).cast(pl.Int64).alias("rank"))
        .join(texts.select("rank", "is_answer"), on="rank")
    )
    is_known = pl.col("rank") < ranks.unknown_from
    in_time = (
        pl.when("is_answer")
        .then(pl.col("rank") < pl.col("sink"))
        .otherwise((pl.col("rank") < pl.col("stop_rank")) | ~is_known)
    )
    counted = (
        asked.join(holders, on="h")
        .filter(pl.col("organisation") != pl.col("own"), in_time)
        .with_columns(_row_of(ranks, "rank"), _row_of(ranks, "source").alias("source_row"))
        .filter(pl.col("row") != pl.col("source_row"))
        .group_by("match", "row")
        .agg(pl.col("rank").min(), pl.col("h").n_unique().alias("holds"), pl.col("asked").first())
        .filter(pl.col("holds") * 2 >= pl.col("asked"))
        .sort("match", "rank")
        .group_by("match", maintain_order=True)
        .agg(pl.col("row").head(OTHER_SOURCES_MAX).alias("others"))
        .collect()
    )
    return found.join(counted, on="match", how="left", maintain_order="left")


def _row_of(ranks: Ranks, column: str) -> pl.Expr:
    rows = pl.Series("row", ranks.rows[ranks.order])
    return pl.lit(rows).gather(pl.col(column)).alias("row")
