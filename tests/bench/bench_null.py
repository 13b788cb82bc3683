"""Measure how often unrelated requests share text, and write the shipped null.

    python tests/bench/bench_null.py [--seed N] [--write]

Every package of this machine is an organisation; its documents are cut into prompts and answers.
Lines that two packages share are left out, so what is left are accidents: idioms, names of files,
numbers. Every match is one, whatever its order in time.
"""

import argparse
import json
import math
import random
import sys
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

sys.path.insert(0, str(Path(__file__).parent))
from train_char_model import documents

from kvaudit.detect.scored.char_model import shipped_model
from kvaudit.detect.scored.decoys import FILE_NAME
from kvaudit.detect.scored.public_text import shipped_public_text
from kvaudit.detect.scored.score import Scorer
from kvaudit.detect.scored.weighing import Weighed, weigh
from kvaudit.detect.semijoin.find import find_matches
from kvaudit.detect.semijoin.texts import SCHEMA, SemiJoinSettings
from kvaudit.scan.foreign import PUBLIC_ORGANISATIONS

PROMPT_CHARS, ANSWER_CHARS = 2_400, 800
OWNER_CHARS = 120_000
OWNERS_MAX = 160
BITS = (40, 50, 60, 70, 80, 90, 100, 120, 140, 160)
BITS_FITTED_MAX = 80  # beyond, what packages share was copied from one another, no accident
TARGET = Path(__file__).parents[2] / "kvaudit" / "detect" / "scored" / FILE_NAME


class Rows:
    """A TextSource in memory."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        yield self._frame.select(columns)

    def fetch(self, rows: Sequence[int], column: str) -> Mapping[int, str]:
        held = self._frame.filter(pl.col("row").is_in(list(rows)))
        return dict(zip(held["row"], held[column], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--write", action="store_true", help="replace the shipped null")
    chosen = parser.parse_args()
    frame = requests(random.Random(chosen.seed))
    owners = frame["organisation"].n_unique()
    sizes = frame.group_by("organisation").len()["len"].to_list()
    pairs = len(frame) ** 2 - sum(size * size for size in sizes)
    source = Rows(frame)
    with tempfile.TemporaryDirectory() as folder:
        matches = find_matches(source, Path(folder), SemiJoinSettings())
    weighed = weigh(source, matches, Scorer(shipped_model(), shipped_public_text()))
    print(f"seed {chosen.seed}: {len(frame):,} requests of {owners} packages, {pairs:,} pairs")
    sides = {side: rates(weighed, side, pairs) for side in ("prompt", "answer")}
    if chosen.write:
        told = {"version": 1, "made_by": "tests/bench/bench_null.py", "seed": chosen.seed,
                "requests": len(frame), "packages": owners, "pairs": pairs,
                "sides": sides}  # fmt: skip
        TARGET.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def rates(weighed: Sequence[Weighed], side: str, pairs: int) -> dict[str, Any]:
    """Return the rate of pairs at least so strong, and how fast it falls up to the copies."""
    held: Counter[tuple[int, int]] = Counter()
    for item in weighed:
        match = item.match
        if match.source_side == side and match.prompt_organisations < PUBLIC_ORGANISATIONS:
            held[match.sink_row, match.source_row] += round(item.score.bits)
    table = []
    for bits in BITS:
        hits = sum(weight >= bits for weight in held.values())
        print(f"  {side:6} >= {bits:3} bits: {hits:6} pairs, {hits / pairs:.2e}")
        if hits and bits <= BITS_FITTED_MAX:
            table.append([bits, hits / pairs])
    halving = _halving(table)
    print(f"  {side:6} tail: the rate halves every {halving:.1f} bits")
    return {"rates": table, "halving_bits": round(halving, 2)}


def _halving(table: Sequence[Sequence[float]]) -> float:
    """Return the bits in which the rate halves, by least squares."""
    scores = [bits for bits, _ in table]
    logs = [math.log2(rate) for _, rate in table]
    middle, height = sum(scores) / len(scores), sum(logs) / len(logs)
    rise = sum((s - middle) * (y - height) for s, y in zip(scores, logs, strict=True))
    return -sum((s - middle) ** 2 for s in scores) / rise


def requests(rng: random.Random) -> pl.DataFrame:
    """Return requests of packages, in an order of time that mixes them."""
    texts = {owner: text for owner, text in owned() if len(text) > 3 * PROMPT_CHARS}
    rows = []
    for number, owner in enumerate(sorted(texts)[:OWNERS_MAX]):
        text = texts[owner]
        step = PROMPT_CHARS + ANSWER_CHARS
        rows += [
            (number, text[at : at + PROMPT_CHARS], text[at + PROMPT_CHARS : at + step])
            for at in range(0, len(text) - step, step)
        ]
    order = list(range(len(rows)))
    rng.shuffle(order)
    times = {row: place * 1_000_000 for place, row in enumerate(order)}
    made = [
        (at, owner, owner, at, times[at], times[at] + 500_000, None, prompt, answer)
        for at, (owner, prompt, answer) in enumerate(rows)
    ]
    return pl.DataFrame(made, schema=SCHEMA, orient="row")


def owned() -> Iterator[tuple[str, str]]:
    lines_of: dict[str, list[str]] = defaultdict(list)
    for owner, text in packages():
        lines_of[owner] += [line.strip() for line in text.splitlines() if len(line.strip()) > 30]
    owners: Counter[str] = Counter()
    for lines in lines_of.values():
        owners.update({"".join(filter(str.isalnum, line.casefold())) for line in lines})
    for owner, lines in lines_of.items():
        kept = [line for line in dict.fromkeys(lines)
                if owners["".join(filter(str.isalnum, line.casefold()))] == 1]  # fmt: skip
        yield owner, "\n".join(kept)[:OWNER_CHARS]


def packages() -> Iterator[tuple[str, str]]:
    roots = [
        Path(sysconfig.get_path("purelib")),
        *(Path(p) for p in sys.path if "site-packages" in p),
    ]
    roots += [Path("/usr/share/doc"), Path("/usr/share/perl"), Path("/usr/share/vim/vim90")]
    for root in dict.fromkeys(roots):
        for folder in sorted(path for path in root.glob("*") if path.is_dir()):
            size = 0
            for text in documents(folder):
                size += len(text)
                yield folder.name.split("-")[0].lower(), text
                if size > 2 * OWNER_CHARS:
                    break


if __name__ == "__main__":
    main()
