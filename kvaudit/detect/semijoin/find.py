"""`find_matches`: scan, join, extend; each step's files are kept until the next one has its own."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvaudit.detect.semijoin.extension import SCRIPTS, extend
from kvaudit.detect.semijoin.join import join
from kvaudit.detect.semijoin.names import LENGTHS
from kvaudit.detect.semijoin.ranks import Ranks
from kvaudit.detect.semijoin.scan import Progress, Report, read_ranks, scan
from kvaudit.detect.semijoin.texts import Match, SemiJoinSettings, TextSource
from kvaudit.store.database import storage_errors

SCANNED, JOINED = "scanned", "joined"
SURPLUS, SURPLUS_PART = 16, 8  # canonical bytes, and at most this part of the match
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
    ranks = read_ranks(source, settings.skew_us)
    key = _key(ranks, settings)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scanned = _step(
            folder / SCANNED, key, lambda half: scan(source, ranks, half, settings, report)
        )
        report(Progress(step="joining", rows=0, total=None, text_bytes=0))
        joined = _step(folder / JOINED, key, lambda half: join(scanned, half, ranks, settings))
        lengths = pl.read_parquet(scanned / LENGTHS)
        found = extend(joined, source, ranks, _by_rank(lengths, ranks), report)
    return sorted((_match(row, ranks) for row in _distinct(found)), key=_order)


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


def _match(row: dict[str, Any], ranks: Ranks) -> Match:
    sink, source = row["sink"], row["source"]
    return Match(
        sink_row=int(ranks.rows[ranks.order[sink]]),
        sink_start=row["sink_start"],
        sink_end=row["sink_end"],
        source_row=int(ranks.rows[ranks.order[source]]),
        source_side="answer" if ranks.is_answer[source] else "prompt",
        source_start=row["source_start"],
        source_end=row["source_end"],
        exact_bytes=row["exact"],
        chained_bytes=row["chained"],
        edits=row["edits"],
        script=SCRIPTS[row["script"]],
        is_decoy=bool(row["is_decoy"]),
        other_sources=tuple(row["others"] or ()),
        prompt_organisations=row["prompts"],
        answer_organisations=row["answers"],
    )


def _distinct(found: pl.DataFrame) -> list[dict[str, Any]]:
    """Leave out what another match of the same answer says better.

    A match goes when one with an earlier source says as much but for `SURPLUS`: by chance a copy
    shares a letter more. And a match goes that lies within a longer one.
    """
    kept: list[dict[str, Any]] = []
    columns = found.sort("sink", "source", "begin", "match").iter_rows(named=True)
    for _, rows in groupby(columns, key=lambda row: row["sink"]):
        originals: list[dict[str, Any]] = []
        for row in rows:
            if not any(_says_as_much(earlier, row) for earlier in originals):
                originals.append(row)
        longest: list[dict[str, Any]] = []
        for row in sorted(originals, key=lambda row: -row["chained"]):
            if not any(
                other["begin"] <= row["begin"] and row["stop"] <= other["stop"] for other in longest
            ):
                longest.append(row)
        kept += longest
    return kept


def _says_as_much(earlier: dict[str, Any], row: dict[str, Any]) -> bool:
    common = min(earlier["stop"], row["stop"]) - max(earlier["begin"], row["begin"])
    more = min(SURPLUS, row["chained"] // SURPLUS_PART)
    return bool(
        earlier["source"] < row["source"]
        and row["chained"] - min(common, earlier["chained"]) <= more
        and row["exact"] - earlier["exact"] <= more
    )


def _order(match: Match) -> tuple[int, int, int, int, int]:
    return (
        match.sink_row, match.sink_start, match.source_row, match.source_start, match.sink_end,
    )  # fmt: skip
