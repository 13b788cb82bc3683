"""`find_matches`: scan, join, extend; each step's files are kept until the next one has its own."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvaudit.detect.semijoin.extension import SCRIPTS, extend
from kvaudit.detect.semijoin.join import join
from kvaudit.detect.semijoin.names import LENGTHS
from kvaudit.detect.semijoin.ranks import Ranks
from kvaudit.detect.semijoin.scan import Report, read_ranks, scan
from kvaudit.detect.semijoin.texts import Match, SemiJoinSettings, TextSource

SCANNED, JOINED = "scanned", "joined"
_VERSION = 1  # of the files; files of another version are made anew


def find_matches(
    source: TextSource,
    folder: Path,
    settings: SemiJoinSettings,
    report: Report = lambda _: None,
) -> list[Match]:
    """Find the text in answers that requests of other organisations hold.

    Args:
        source: The log.
        folder: Takes the files of the steps. A finished step found there, of the same table and
            settings, is not done again; what was half done is.
        settings: Engine, limits and what counts as background.
        report: Called with the progress.

    Returns:
        Matches in the order of sink row, place in the sink and source row; the same for either
        engine and any limit on memory.

    Raises:
        StorageError: The folder is full or refuses a write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ranks = read_ranks(source, settings.skew_us)
    key = _key(ranks, settings)
    scanned = _step(folder / SCANNED, key, lambda half: scan(source, ranks, half, settings, report))
    joined = _step(folder / JOINED, key, lambda half: join(scanned, half, ranks, settings))
    lengths = pl.read_parquet(scanned / LENGTHS)
    found = extend(joined, source, ranks, _by_rank(lengths, ranks), report)
    return _without_contained([_match(row, ranks) for row in found.iter_rows(named=True)])


def _step(done: Path, key: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of a finished step; make it whole, then rename it, if it is not there."""
    mark = done / "key"
    if mark.is_file() and mark.read_text(encoding="ascii") == key:
        return done
    half = done.with_suffix(".half")
    for old in (done, half):
        if old.exists():
            shutil.rmtree(old)
    half.mkdir()
    make(half)
    (half / "key").write_text(key, encoding="ascii")
    half.rename(done)
    return done


def _key(ranks: Ranks, settings: SemiJoinSettings) -> str:
    """Return what the files of a step depend on, as a digest."""
    told = asdict(settings) | {"version": _VERSION}
    digest = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16)
    for array in (ranks.rows, ranks.organisations, ranks.replicas, ranks.answer, ranks.limit):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _by_rank(lengths: pl.DataFrame, ranks: Ranks) -> NDArray[np.int64]:
    context, answer = lengths["context"].to_numpy(), lengths["answer"].to_numpy()
    return np.where(ranks.is_answer, answer[ranks.order], context[ranks.order])


def _match(row: dict[str, object], ranks: Ranks) -> Match:
    numbers = {name: value for name, value in row.items() if isinstance(value, int)}
    sink, source = numbers["sink"], numbers["source"]
    others = row["others"]
    return Match(
        sink_row=int(ranks.rows[ranks.order[sink]]),
        sink_start=numbers["sink_start"],
        sink_end=numbers["sink_end"],
        source_row=int(ranks.rows[ranks.order[source]]),
        source_side="answer" if ranks.is_answer[source] else "prompt",
        source_start=numbers["source_start"],
        source_end=numbers["source_end"],
        exact_bytes=numbers["exact"],
        chained_bytes=numbers["chained"],
        edits=numbers["edits"],
        script=SCRIPTS[numbers["script"]],
        is_decoy=bool(row["is_decoy"]),
        other_sources=tuple(others) if isinstance(others, list) else (),
        prompt_organisations=numbers["prompts"],
        answer_organisations=numbers["answers"],
    )


def _without_contained(matches: list[Match]) -> list[Match]:
    """Drop a match that lies within a longer one of the same answer; order the rest."""
    kept: dict[int, list[Match]] = {}
    for match in sorted(
        matches, key=lambda found: (-found.chained_bytes, _order(found), found.source_side)
    ):
        longer = kept.setdefault(match.sink_row, [])
        if not any(
            other.sink_start <= match.sink_start and match.sink_end <= other.sink_end
            for other in longer
        ):
            longer.append(match)
    return sorted((match for row in kept.values() for match in row), key=_order)


def _order(match: Match) -> tuple[int, int, int, int, int]:
    return (
        match.sink_row, match.sink_start, match.source_row, match.source_start, match.sink_end,
    )  # fmt: skip
