"""How many matches this strong are accidents: decoys of the log itself, or the shipped null rate.

A match whose origin began only after the sink had ended can be no leak; it is what this log does by
accident. In windows of equal length before and after, and by as much foreign text, decoys count the
false among the targets: q = (decoys above + 1) / targets above, made monotone. A log with too few
targets, or without an order in time, can't count: then the rate of accidents at that score that was
measured once on public text (`null.json`, by `tests/bench/bench_null.py`), times the pairs of
foreign requests in this log, must be small. So it is for a handful of targets stronger than every
decoy: fewer than 20 can't reach q = .05.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any, NamedTuple

FILE_NAME = "null.json"
TARGETS_MIN = 20
Q_BAR = 0.05
EXPECTED_BAR = 0.01
BITS_MIN = 80.0  # under the shipped null nothing weaker passes, however few the pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One request in time.

    Attributes:
        organisation: Its owner.
        start_us, end_us: When; None without a usable order.
        fresh_bytes: Text that its conversation had not sent before, and its answer.
        has_answer: Whether it can be a sink.
    """

    organisation: int
    start_us: int | None
    end_us: int | None
    fresh_bytes: int
    has_answer: bool

    @property
    def last_us(self) -> int | None:
        """Its end, or its start where the log tells no end."""
        return self.end_us if self.end_us is not None else self.start_us


class Counted(NamedTuple):
    """One pair of requests that share text, as it is counted: sinks by their request."""

    bits: float
    side: str
    is_decoy: bool
    sink: Moment
    source: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What passes in one log.

    Attributes:
        q_steps: By side of the source: (score, q), scores falling; none where q can't be counted.
        targets, decoys: By side, in windows of equal length.
        pairs: Foreign pairs of requests that could have reached one another.
        highest_decoys: By side: the strongest decoy; below 0 without one.
        reasons: By side: why q can't be counted; "" if it can.
    """

    q_steps: Mapping[str, tuple[tuple[float, float], ...]]
    targets: Mapping[str, int]
    decoys: Mapping[str, int]
    pairs: int
    highest_decoys: Mapping[str, float]
    reasons: Mapping[str, str]

    def q_value(self, bits: float, side: str) -> float | None:
        """Return the share of false findings among those this strong; None if not counted."""
        steps = self.q_steps.get(side, ())
        if not steps:
            return None
        below = [q for score, q in steps if score <= bits]
        return min(below, default=1.0)

    def is_counted(self, bits: float, side: str) -> bool:
        """Whether decoys can decide: a handful of strong targets without a decoy is too few."""
        q_value = self.q_value(bits, side)
        return q_value is not None and (q_value <= Q_BAR or bits <= self.highest_decoys[side])

    def expected_accidents(self, bits: float, side: str) -> float:
        """Return how many accidents at least this strong a log of so many pairs has."""
        return self.pairs * null_rate(bits, side)


def calibrate(moments: Sequence[Moment], counted: Sequence[Counted]) -> Calibration:
    """Count decoys against targets.

    Args:
        moments: Every request of the log.
        counted: Every pair that shares text and is no stock line, decoys among them.
    """
    windows = _Windows(moments)
    steps: dict[str, tuple[tuple[float, float], ...]] = {}
    targets: dict[str, int] = {}
    decoys: dict[str, int] = {}
    highest: dict[str, float] = {}
    reasons: dict[str, str] = {}
    ratio = windows.ratio
    for side in ("prompt", "answer"):
        held = [item for item in counted if item.side == side and windows.holds(item)]
        good = [item.bits for item in held if not item.is_decoy]
        bad = [item.bits for item in held if item.is_decoy]
        targets[side], decoys[side] = len(good), len(bad)
        highest[side] = max(bad, default=-1.0)
        reasons[side] = _reason(side, len(good), windows)
        steps[side] = () if reasons[side] else _q_steps(good, bad, ratio)
    return Calibration(
        q_steps=steps, targets=targets, decoys=decoys, pairs=foreign_pairs(moments),
        highest_decoys=highest, reasons=reasons,
    )  # fmt: skip


def _reason(side: str, targets: int, windows: "_Windows") -> str:
    if not windows.is_ordered:
        return "no usable order in time"
    if side == "answer":
        return "of two answers the earlier is the origin, so there can be no decoys"
    if targets < TARGETS_MIN:
        return f"fewer than {TARGETS_MIN} pairs share text, so decoys can't be counted"
    if not windows.decoy_bytes:
        return "no foreign text after the answers, so there can be no decoys"
    return ""


def _q_steps(
    targets: Iterable[float], decoys: Sequence[float], ratio: float
) -> tuple[tuple[float, float], ...]:
    ordered = sorted(targets, reverse=True)
    against = sorted(decoys)
    made = []
    for number, score in enumerate(ordered, 1):
        above = len(against) - bisect_left(against, score)
        made.append((score, min(1.0, (above * ratio + 1) / number)))
    # Monotone: a stronger finding is never worse than a weaker one.
    least = accumulate((q for _, q in reversed(made)), min)
    return tuple(zip((s for s, _ in made), reversed(list(least)), strict=True))


class _Windows:
    """Windows of equal length before and after the end of each answer."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        timed = [m for m in moments if m.start_us is not None]
        self.is_ordered = len(timed) * 2 > len(moments)
        self._first = min((m.start_us or 0 for m in timed), default=0)
        self._last = max((m.start_us or 0 for m in timed), default=0)
        self._all = _Bytes(timed)
        by_owner: dict[int, list[Moment]] = defaultdict(list)
        for moment in timed:
            by_owner[moment.organisation].append(moment)
        self._own = {owner: _Bytes(held) for owner, held in by_owner.items()}
        self.target_bytes = self.decoy_bytes = 0
        for sink in timed:
            if sink.has_answer:
                end, width = self._window(sink)
                self.target_bytes += self._foreign(sink, end - width, end)
                self.decoy_bytes += self._foreign(sink, end + 1, end + width)

    @property
    def ratio(self) -> float:
        """Foreign text before the ends of the answers, of as much after them."""
        return self.target_bytes / self.decoy_bytes if self.decoy_bytes else 1.0

    def holds(self, item: Counted) -> bool:
        """Whether the source began within the sink's window."""
        start = item.source.start_us
        if start is None or item.sink.last_us is None:
            return False
        end, width = self._window(item.sink)
        return abs(start - end) <= width

    def _window(self, sink: Moment) -> tuple[int, int]:
        end = sink.last_us
        assert end is not None, "a timed request"
        return end, max(0, min(end - self._first, self._last - end))

    def _foreign(self, sink: Moment, first: int, last: int) -> int:
        return self._all.between(first, last) - self._own[sink.organisation].between(first, last)


class _Bytes:
    """Fresh bytes of some requests, summed over time."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        held = sorted((m.start_us or 0, m.fresh_bytes) for m in moments)
        self._times = [time for time, _ in held]
        self._sums = [0, *accumulate(size for _, size in held)]

    def between(self, first: int, last: int) -> int:
        """Return the bytes of requests that began in [first, last]."""
        low, high = bisect_left(self._times, first), bisect_right(self._times, last)
        return self._sums[max(low, high)] - self._sums[low]


def foreign_pairs(moments: Sequence[Moment]) -> int:
    """Count pairs of an answer and a foreign request: half of them where the order is known."""
    sizes: dict[int, int] = defaultdict(int)
    sinks: dict[int, int] = defaultdict(int)
    for moment in moments:
        sizes[moment.organisation] += 1
        sinks[moment.organisation] += moment.has_answer
    pairs = sum(count * (len(moments) - sizes[owner]) for owner, count in sinks.items())
    is_ordered = all(moment.start_us is not None for moment in moments)
    return pairs // 2 if is_ordered else pairs


def null_rate(bits: float, side: str) -> float:
    """Return how often a pair of unrelated requests shares text at least this strong."""
    held = _null()["sides"][side]
    points: list[tuple[float, float]] = [(score, rate) for score, rate in held["rates"]]
    first, last = points[0], points[-1]
    if bits <= first[0]:
        return first[1]
    if bits >= last[0]:
        return last[1] * math.exp2((last[0] - bits) / float(held["halving_bits"]))
    at = bisect_right([score for score, _ in points], bits)
    (low, high_rate), (high, low_rate) = points[at - 1], points[at]
    way = (bits - low) / (high - low)
    return math.exp(math.log(high_rate) * (1 - way) + math.log(low_rate) * way)


def null_version() -> int:
    """Return the version of the shipped null."""
    return int(_null()["version"])


@cache
def _null() -> dict[str, Any]:
    text = resources.files("kvaudit.detect.scored").joinpath(FILE_NAME).read_text("utf-8")
    held: dict[str, Any] = json.loads(text)
    return held
