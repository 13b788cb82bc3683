"""How many blocks a claim needs: exact errors, and simulations of what breaks independence."""

import random

import pytest
from scipy.stats import binom

from kvaudit.stats import clearance_p, holm, leak_bound
from kvaudit.stats_blocks import (
    SWAPS_PLANNED,
    SequentialTest,
    blocks_needed,
    effective_blocks,
    errors_at,
    planned_blocks,
    sequential_test,
    wrongly_cleared,
)

RUNS = 4_000


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("false_rate", [0.0, 1e-6, 1e-5])
def test_both_errors_are_at_most_one_percent_however_often_one_looks(rate, false_rate):
    test = sequential_test(rate, false_rate=false_rate)
    assert errors_at(test, false_rate).convicted <= 0.01
    assert errors_at(test, rate).cleared <= 0.01
    assert errors_at(test, min(1.0, 2 * rate)).cleared <= errors_at(test, rate).cleared


def test_a_test_a_block_shorter_would_miss_too_often():
    test = sequential_test(0.1)
    assert (test.blocks, test.convict_at) == (44, 1)
    shorter = SequentialTest(blocks=test.blocks - 1, convict_at=1)
    assert errors_at(shorter, 0.1).cleared > 0.01


def test_oracles_that_sometimes_fire_need_more_than_one_detection():
    test = sequential_test(0.1, false_rate=1e-3)
    assert test.convict_at > 1
    assert errors_at(test, 1e-3).convicted <= 0.01


@pytest.mark.parametrize(
    ("blocks", "convict_at", "rate"), [(7, 1, 0.5), (30, 3, 0.1), (60, 2, 0.03)]
)
def test_the_recursion_agrees_with_the_closed_form(blocks, convict_at, rate):
    errors = errors_at(SequentialTest(blocks=blocks, convict_at=convict_at), rate)
    assert errors.cleared == pytest.approx(binom.cdf(convict_at - 1, blocks, rate))
    assert errors.convicted + errors.cleared == pytest.approx(1)
    assert errors.blocks_mean <= blocks


def test_a_conviction_comes_early():
    test = sequential_test(0.5)
    assert test.blocks == 7
    assert errors_at(test, 0.5).blocks_mean < 2
    assert errors_at(test, 0.0).blocks_mean == 7


def cleared(rng, *, blocks, fires):
    """Share of simulated audits in which no block fires; `fires(rng)` yields block by block."""
    passed = 0
    for _ in range(RUNS):
        outcomes = fires(rng)
        passed += not any(next(outcomes) for _ in range(blocks))
    return passed / RUNS


def limit_of(error=0.01):
    """What 4,000 runs at exactly `error` stay under, but once in a thousand times."""
    return float(binom.ppf(0.999, RUNS, error)) / RUNS


@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_sticky_sessions_of_ten_are_not_cleared_wrongly(rate):
    """All ten requests of a session share one fate, so a session counts once."""

    def fires(rng):
        while True:
            yield rng.random() < rate  # one block, ten requests

    blocks = blocks_needed(rate)
    rng = random.Random("sticky")
    assert cleared(rng, blocks=blocks, fires=fires) <= limit_of()
    # Ten requests taken for ten blocks would clear far too early.
    naive = max(1, blocks // 10)
    assert cleared(rng, blocks=naive, fires=fires) > 0.05
    assert effective_blocks(10 * blocks, session=10, correlation=1.0) == blocks
    assert effective_blocks(10 * blocks, session=10) == 10 * blocks


@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_a_pool_state_that_persists_is_not_cleared_wrongly(rate):
    """With .9 a block meets what the one before it met; else the state is drawn anew."""

    def fires(rng):
        is_bad = rng.random() < rate
        while True:
            yield is_bad
            if rng.random() >= 0.9:
                is_bad = rng.random() < rate

    rng = random.Random("persistent")
    blocks = blocks_needed(rate, persistence=0.9)
    share = cleared(rng, blocks=blocks, fires=fires)
    assert share <= limit_of()
    assert wrongly_cleared(blocks, rate, persistence=0.9) <= 0.01
    assert share == pytest.approx(wrongly_cleared(blocks, rate, persistence=0.9), abs=0.006)
    assert cleared(rng, blocks=blocks_needed(rate), fires=fires) > 0.05  # as if turned over


def test_one_bad_replica_of_ten_is_not_cleared_wrongly():
    def fires(rng):
        while True:
            yield rng.randrange(10) == 0 and rng.random() < 0.5

    rng = random.Random("replicas")
    blocks = blocks_needed(0.5, replicas=10)
    assert cleared(rng, blocks=blocks, fires=fires) <= limit_of()
    assert cleared(rng, blocks=blocks_needed(0.5), fires=fires) > 0.5


@pytest.mark.parametrize(
    ("rate", "confidence", "strata"), [(0.5, 0.95, 6), (0.1, 0.95, 1), (0.05, 0.99, 6)]
)
def test_the_planned_blocks_are_the_fewest_that_bound_every_stratum(rate, confidence, strata):
    blocks = planned_blocks(rate, confidence=confidence, strata=strata)
    joint = 1 - (1 - confidence) / strata

    def bound(count):
        return leak_bound(
            0, count, sensitivity_hits=SWAPS_PLANNED, sensitivity_trials=SWAPS_PLANNED,
            confidence=joint,
        ).upper  # fmt: skip

    assert bound(blocks) <= rate < bound(blocks - 1)
    assert planned_blocks(rate, confidence=confidence, strata=strata, replicas=4) > 3 * blocks
    # What Holm's first step asks of the smallest p holds for every stratum at once.
    sensitivity = ((1 - joint) / 2) ** (1 / SWAPS_PLANNED)
    p = clearance_p(0, blocks, rate, sensitivity=sensitivity)
    assert max(holm([p] * strata)) <= (1 - confidence) / 2 * 1.000001


def test_a_target_that_no_sensitivity_allows_is_capped():
    assert planned_blocks(1e-9, confidence=0.99, strata=6) == 10_000_000
