"""How many blocks a claim needs, and what optional stopping does to its errors. All exact.

A block is one fill, one wave with a request of every stratum, one observation, on new connections;
it counts once, however many of its requests fire. The test of one stratum convicts as soon as
`convict_at` blocks have fired and clears when all its blocks are through. Looking after every block
changes neither error: the first can only come before the end, the second only at it.
"""

import math
from dataclasses import dataclass

from scipy.stats import binom

from kvaudit.stats import leak_bound

BLOCKS_MAX = 10_000_000
# Swaps on paper that the calibration of a run allows at the least: ten answers, all told apart.
SWAPS_PLANNED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """A test of one stratum that may stop early.

    Attributes:
        blocks: Blocks after which it clears.
        convict_at: Blocks with a detection at which it convicts.
    """

    blocks: int
    convict_at: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What a test does at one rate of detection per block.

    Attributes:
        convicted: Chance that it convicts.
        cleared: Chance that it clears.
        blocks_mean: Blocks that it takes on average.
    """

    convicted: float
    cleared: float
    blocks_mean: float


def sequential_test(
    rate: float, *, false_rate: float = 1e-6, convict_max: float = 0.01, clear_max: float = 0.01
) -> SequentialTest:
    """Return the shortest test that tells `rate` from `false_rate` within both errors.

    Args:
        rate: Share of blocks in which a leak of the size looked for is detected.
        false_rate: Share of blocks of a healthy server in which the oracles fire.
        convict_max: Largest chance to convict a healthy server.
        clear_max: Largest chance to clear one that leaks at `rate`.
    """
    assert 0 <= false_rate < rate < 1, "a rate above the false one"
    for convict_at in range(1, 1000):
        blocks = _blocks_to_clear(rate, convict_at, clear_max)
        if float(binom.sf(convict_at - 1, blocks, false_rate)) <= convict_max:
            return SequentialTest(blocks=blocks, convict_at=convict_at)
    raise AssertionError("the two rates are too close to be told apart")


def errors_at(test: SequentialTest, rate: float) -> Errors:
    """Follow a test block by block, by exact recursion over the count of detections.

    `going[k]` is the chance that so far k blocks have fired and the test still goes on.
    """
    going = [1.0] + [0.0] * (test.convict_at - 1)
    convicted = blocks_mean = 0.0
    for _ in range(test.blocks):
        blocks_mean += sum(going)
        convicted += going[-1] * rate
        going = [
            held * (1 - rate) + (going[count - 1] * rate if count else 0.0)
            for count, held in enumerate(going)
        ]
    return Errors(convicted=convicted, cleared=sum(going), blocks_mean=blocks_mean)


def wrongly_cleared(
    blocks: int, rate: float, *, replicas: int = 1, persistence: float = 0.0
) -> float:
    """Return the chance that no block of `blocks` meets a leak of `rate`.

    Args:
        blocks: Blocks sent.
        rate: Share of blocks in which the leak is detected where it can be met.
        replicas: Replicas of which one leaks, routed to evenly.
        persistence: Chance that a block meets the state that the one before it met, since the pool
            was not turned over; else the state is drawn anew.
    """
    met = rate / replicas
    if blocks == 0:
        return 1.0
    return (1 - met) * (1 - (1 - persistence) * met) ** (blocks - 1)


def blocks_needed(
    rate: float,
    *,
    error: float = 0.01,
    replicas: int = 1,
    persistence: float = 0.0,
) -> int:
    """Return how many clean blocks leave a leak of `rate` a chance of at most `error`.

    The inverse of `wrongly_cleared`.
    """
    met = rate / replicas
    assert 0 < met < 1, "a rate strictly between 0 and 1"
    kept = (1 - persistence) * met
    assert kept > 0, "a state that never changes shows nothing new"
    return 1 + max(0, math.ceil(math.log(error / (1 - met)) / math.log1p(-kept)))


def effective_blocks(requests: int, *, session: int = 1, correlation: float = 0.0) -> float:
    """Return what requests in sessions are worth: n / (1 + (m - 1) rho) for sessions of m.

    At correlation 1 a session counts once, as a block does; at 0 each request counts.
    """
    assert session >= 1, "a session has a request"
    return requests / (1 + (session - 1) * correlation)


def planned_blocks(target_rate: float, *, confidence: float, strata: int, replicas: int = 1) -> int:
    """Return how many clean blocks bound the leak rate of every stratum by `target_rate`.

    The error is divided by the number of strata, which is what Holm's first step asks of equal
    counts, and halved for the sensitivity, which is taken at its least: `SWAPS_PLANNED` swaps, all
    seen. With R replicas, one of them bad, the rate that is met is R times smaller.
    """
    joint = 1 - (1 - confidence) / max(1, strata)
    low, high = 1, 1
    while not _is_bounded(high, target_rate / replicas, joint):
        low, high = high, high * 2
        if high > BLOCKS_MAX:
            return BLOCKS_MAX
    while low < high:
        middle = (low + high) // 2
        if _is_bounded(middle, target_rate / replicas, joint):
            high = middle
        else:
            low = middle + 1
    return high


def _is_bounded(blocks: int, rate: float, confidence: float) -> bool:
    bound = leak_bound(
        0,
        blocks,
        sensitivity_hits=SWAPS_PLANNED,
        sensitivity_trials=SWAPS_PLANNED,
        confidence=confidence,
    )
    return bound is not None and bound.upper <= rate


def _blocks_to_clear(rate: float, convict_at: int, clear_max: float) -> int:
    """Return the least n with P(fewer than `convict_at` of n blocks fire) <= `clear_max`."""
    low, high = convict_at, convict_at
    while float(binom.cdf(convict_at - 1, high, rate)) > clear_max:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if float(binom.cdf(convict_at - 1, middle, rate)) > clear_max:
            low = middle + 1
        else:
            high = middle
    return high
