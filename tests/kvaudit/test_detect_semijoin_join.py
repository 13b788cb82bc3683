"""The join by DuckDB and by Polars against a slow twin."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.detect.semijoin.join import join
from kvaudit.detect.semijoin.names import HELD, SEEDS, WALLS
from kvaudit.detect.semijoin.ranks import META, Ranks, ranks_of
from kvaudit.detect.semijoin.texts import Engine, SemiJoinSettings

BACKGROUND = 3


class Gram(NamedTuple):
    """A sampled gram in one text."""

    h: int
    row: int
    is_answer: bool
    offset: int
    is_wall: bool


META_ROW = st.tuples(
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 9)),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(0, 1)),
)
GRAM = st.builds(
    Gram, h=st.integers(1, 4), row=st.integers(0, 9), is_answer=st.booleans(),
    offset=st.integers(0, 3), is_wall=st.booleans(),
)  # fmt: skip


@given(
    st.lists(META_ROW, min_size=1, max_size=10), st.lists(GRAM, max_size=25, unique=True),
    st.booleans(), st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=40)
def test_both_engines_answer_as_the_slow_twin(
    rows: list[tuple[int, int | None, int, int | None]], grams: list[Gram], use_replicas: bool,
    skew: int,
) -> None:  # fmt: skip
    meta = pl.DataFrame(
        [
            (at * 2, organisation, start, None if start is None else start + took, replica)
            for at, (organisation, start, took, replica) in enumerate(rows)
        ],
        schema=dict.fromkeys(META, pl.Int64), orient="row",
    ).with_columns(pl.col("organisation", "replica").cast(pl.Int32))  # fmt: skip
    ranks = ranks_of(meta, skew)
    grams = [gram for gram in grams if gram.row < len(rows)]
    slow = _slow_join(grams, ranks, use_replicas=use_replicas)
    for engine in Engine:
        options = SemiJoinSettings(
            engine=engine, use_replicas=use_replicas, background_organisations=BACKGROUND
        )
        assert _joined(grams, ranks, options) == slow, engine


def _place(gram: Gram, ranks: Ranks) -> int:
    rank = (ranks.answer if gram.is_answer else ranks.prompt)[gram.row]
    return (int(rank) << 32) | gram.offset


def _joined(grams: list[Gram], ranks: Ranks, options: SemiJoinSettings) -> dict[str, set[object]]:
    with TemporaryDirectory() as name:
        scanned, out = Path(name, "scanned"), Path(name, "out")
        scanned.mkdir()
        out.mkdir()
        for side, is_answer in (("contexts", False), ("answers", True)):
            found = [gram for gram in grams if gram.is_answer == is_answer]
            frame = pl.DataFrame(
                {
                    "h": np.array([gram.h for gram in found], np.uint64),
                    "place": np.array([_place(gram, ranks) for gram in found], np.uint64),
                    "is_wall": np.array([gram.is_wall for gram in found], np.bool_),
                }
            )
            frame.write_parquet(scanned / f"{side}-00000.parquet")
        join(scanned, out, ranks, options)
        return {
            name: set(pl.read_parquet(out / name).rows())  # type: ignore[misc]
            for name in (SEEDS, WALLS, HELD)
        }


def _slow_join(grams: list[Gram], ranks: Ranks, *, use_replicas: bool) -> dict[str, set[object]]:
    seeds: set[object] = set()
    walls: set[tuple[int]] = set()
    seeded: set[int] = set()
    hashes: set[int] = set()
    for gram in grams:
        if not gram.is_answer:
            continue
        same = [other for other in grams if other.h == gram.h]
        seed = _seed(gram, same, ranks, use_replicas=use_replicas)
        if isinstance(seed, tuple):
            seeds.add(seed)
            seeded.add(gram.row)
            hashes.add(gram.h)
        elif seed == "wall":
            walls.add((_place(gram, ranks),))
    ended = {int(ranks.answer[row]) for row in seeded}
    return {
        SEEDS: seeds,
        WALLS: {wall for wall in walls if wall[0] >> 32 in ended},
        HELD: _held([gram for gram in grams if gram.h in hashes], ranks),
    }


def _held(grams: list[Gram], ranks: Ranks) -> set[object]:
    first: dict[tuple[int, int, bool, int], int] = {}
    for gram in grams:
        key = (
            gram.h, int(ranks.organisations[gram.row]), gram.is_answer,
            int(ranks.replicas[gram.row]),
        )  # fmt: skip
        first[key] = min(first.get(key, 1 << 63), _place(gram, ranks))
    return {(h, organisation, place) for (h, organisation, _, _), place in first.items()}


def _seed(
    gram: Gram, same: list[Gram], ranks: Ranks, *, use_replicas: bool
) -> tuple[object, ...] | str | None:
    """A seed, "wall", or nothing."""
    own = int(ranks.organisations[gram.row])
    place, stop = _place(gram, ranks), int(ranks.limit[gram.row])
    prompts: dict[int, list[int]] = defaultdict(list)
    answers: dict[int, list[int]] = defaultdict(list)
    for other in same:
        side = answers if other.is_answer else prompts
        side[int(ranks.organisations[other.row])].append(_place(other, ranks))
    replica = int(ranks.replicas[gram.row])
    foreign = [
        other
        for other in same
        if int(ranks.organisations[other.row]) != own
        and (not use_replicas or replica < 0 or int(ranks.replicas[other.row]) in (-1, replica))
    ]
    source = min(foreign, key=lambda other: _place(other, ranks), default=None)
    source_rank = _place(source, ranks) >> 32 if source else 1 << 62
    public = sum(
        min(places) < min(answers.get(organisation, [1 << 63]))
        for organisation, places in prompts.items()
    )
    own_prompt = min(prompts.get(own, [1 << 63])) >> 32
    explained = own_prompt < stop or (own in prompts and own_prompt >= ranks.unknown_from)
    own_answer = min(answers[own]) >> 32
    if (
        gram.is_wall or public >= BACKGROUND or explained
        or own_answer < min(place >> 32, source_rank)
    ):  # fmt: skip
        return "wall"
    if source is None or (source.is_answer and source_rank >= place >> 32):
        return None
    is_decoy = not source.is_answer and stop <= source_rank < ranks.unknown_from
    return gram.h, place, _place(source, ranks), public, len(answers), is_decoy
