"""The scan's stages over one table, timed in CPU seconds; run in a process of its own.

`python measure.py TABLE FOLDER ENGINE [join]` leaves `matches.parquet`, `pairs.parquet` and
`costs.json`; with `join` the matches are found but not weighed.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from kvaudit.detect.scored.char_model import shipped_model
from kvaudit.detect.scored.decoys import Counted, calibrate
from kvaudit.detect.scored.public_text import shipped_public_text
from kvaudit.detect.scored.score import Scorer
from kvaudit.detect.scored.weighing import weigh
from kvaudit.detect.semijoin import find
from kvaudit.detect.semijoin.texts import SCHEMA, Engine, SemiJoinSettings
from kvaudit.scan.foreign import moments_of, paired
from kvaudit.scan.texts import TableTexts

MATCHES, PAIRS, COSTS = "matches.parquet", "pairs.parquet", "costs.json"


_PAIR_SCHEMA = {
    "sink_row": pl.Int64, "source_row": pl.Int64, "side": pl.String, "is_decoy": pl.Boolean,
    "bits": pl.Float64, "explained_by": pl.String, "q": pl.Float64,
    "match_bits": pl.List(pl.Float64), "spans": pl.List(pl.List(pl.Int64)),
}  # fmt: skip


class Stages:
    """CPU seconds by stage; a stage within a stage counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within = 0.0

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            outer, self._within = self._within, 0.0
            began = time.process_time()
            made = work(*arguments, **named)
            spent = time.process_time() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._within
            self._within = outer + spent
            return made

        return run


def warmed(folder: Path) -> None:
    """Compile the kernels on a log of two requests, so that compiling is not measured."""
    rows = [
        {"row": row, "organisation": row, "tenant": row, "conversation": row, "start_us": row,
         "end_us": row, "replica": None, "context": "words of the first " * 9 * (1 - row),
         "answer": "words of the first " * 9 * row}
        for row in range(2)
    ]  # fmt: skip

    class Two:
        def batches(self, columns):
            yield pl.DataFrame(rows, schema=SCHEMA).select(columns)

        def fetch(self, wanted, column):
            return {row: rows[row][column] for row in wanted}

    find.find_matches(Two(), folder / "warm", SemiJoinSettings())


def measured(table: Path, folder: Path, engine: str, *, is_weighed: bool) -> None:
    """Run all stages and write what they found and cost."""
    warmed(folder)
    stages = Stages()
    for name, words in (("read_ranks", "order"), ("scan", "scan"), ("join", "join"),
                        ("extend", "extend")):  # fmt: skip
        setattr(find, name, stages.timed(words, getattr(find, name)))
    texts = TableTexts(table)
    texts.batches = _counted(stages, texts.batches)
    settings = SemiJoinSettings(engine=Engine(engine), memory_bytes=1 << 30)
    work = folder / f"work-{engine}"
    matches = stages.timed("the rest", find.find_matches)(texts, work, settings)
    state = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    peak_join = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    scorer = Scorer(shipped_model(), shipped_public_text())
    weighed = stages.timed(
        "weigh", lambda: list(weigh(texts, matches if is_weighed else [], scorer))
    )()
    pairs = paired(weighed)
    moments = stages.timed("count", moments_of)(texts)
    counted = [
        Counted(pair.bits, pair.side, pair.is_decoy, moments[pair.sink_row],
                moments[pair.source_row])
        for pair in pairs if not pair.explained_by
    ]  # fmt: skip
    calibration = stages.timed("count", calibrate)(list(moments.values()), counted)
    pl.DataFrame([asdict(match) for match in matches], infer_schema_length=None).write_parquet(
        folder / MATCHES
    )
    _pairs_frame(pairs, calibration).write_parquet(folder / PAIRS)
    costs = {
        "seconds": stages.seconds, "state": state, "peak of the join": peak_join,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "targets": dict(calibration.targets), "decoys": dict(calibration.decoys),
        "reasons": dict(calibration.reasons), "matches": len(matches), "pairs": len(pairs),
        "is weighed": is_weighed,
    }  # fmt: skip
    (folder / COSTS).write_text(json.dumps(costs), encoding="utf-8")


def _counted(stages: Stages, batches: Callable[..., Any]) -> Callable[..., Any]:
    """Time the reading of the table apart from what is done with it."""

    def read(columns: Any) -> Any:
        frames = batches(columns)
        step = stages.timed("read the table", lambda: next(frames, None))
        while (frame := step()) is not None:
            yield frame

    return read


def _pairs_frame(pairs: list[Any], calibration: Any) -> pl.DataFrame:
    rows = [
        {"sink_row": pair.sink_row, "source_row": pair.source_row, "side": pair.side,
         "is_decoy": pair.is_decoy, "bits": pair.bits, "explained_by": pair.explained_by,
         "q": calibration.q_value(pair.bits, pair.side),
         "match_bits": [item.score.bits for item in pair.matches],
         "spans": [[item.match.sink_start, item.match.sink_end] for item in pair.matches]}
        for pair in pairs
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=_PAIR_SCHEMA)


if __name__ == "__main__":
    measured(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], is_weighed=len(sys.argv) < 5)
