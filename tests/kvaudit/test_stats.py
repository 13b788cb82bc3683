"""Bounds against published values and against slow exact twins."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.stats import (
    clopper_pearson,
    fisher_greater,
    holm,
    leak_bound,
    lower_limit,
    needed_requests,
    upper_limit,
)


@pytest.mark.parametrize(
    ("rate", "confidence", "needed"),
    [
        (0.5, 0.95, 5), (0.5, 0.99, 7), (0.5, 0.999, 10),
        (0.1, 0.95, 29), (0.1, 0.99, 44), (0.1, 0.999, 66),
        (0.01, 0.95, 299), (0.01, 0.99, 459), (0.01, 0.999, 688),
        (1e-3, 0.95, 2_995), (1e-3, 0.99, 4_603), (1e-4, 0.95, 29_956),
        (1e-6, 0.95, 2_995_731), (1e-6, 0.99, 4_605_168),
    ],
)  # fmt: skip
def test_so_many_clean_requests_exclude_a_rate(rate, confidence, needed):
    assert needed_requests(rate, confidence=confidence) == needed


@pytest.mark.parametrize(
    ("sensitivity", "rate", "needed"),
    [(0.5, 0.5, 11), (0.5, 0.1, 59), (0.2, 0.01, 1_497), (0.05, 0.5, 119), (0.05, 0.1, 598)],
)
def test_a_weak_oracle_needs_more_requests(sensitivity, rate, needed):
    assert needed_requests(rate, confidence=0.95, sensitivity=sensitivity) == needed


@pytest.mark.parametrize(
    ("hits", "trials", "lower", "upper"),
    [
        (0, 10, 0, 0.308), (0, 100, 0, 0.036), (0, 300, 0, 0.0122),
        (1, 100, 0.0003, 0.054), (3, 300, 0.002, 0.029),
        (155, 155, 0.976, 1), (155, 200, 0.711, 0.831), (155, 10_000, 0.0132, 0.0181),
    ],
)  # fmt: skip
def test_intervals_are_those_of_clopper_and_pearson(hits, trials, lower, upper):
    interval = clopper_pearson(hits, trials, confidence=0.95)
    assert interval.lower == pytest.approx(lower, abs=6e-4)
    assert interval.upper == pytest.approx(upper, abs=6e-4)


@pytest.mark.parametrize(("found", "lower"), [(300, 0.988), (100, 0.964), (30, 0.884)])
def test_all_planted_faults_found_bounds_the_sensitivity(found, lower):
    assert lower_limit(found, found, confidence=0.975) == pytest.approx(lower, abs=5e-4)


def test_sensitivity_is_folded_in_with_half_of_the_error_each():
    bound = leak_bound(0, 32, sensitivity_hits=10, sensitivity_trials=10, confidence=0.95)
    sensitivity = 0.025 ** (1 / 10)
    assert bound.sensitivity_lower == pytest.approx(sensitivity)
    assert bound.upper == pytest.approx((1 - 0.025 ** (1 / 32)) / sensitivity)


def test_an_oracle_that_found_nothing_bounds_nothing():
    assert leak_bound(0, 300, sensitivity_hits=0, sensitivity_trials=10, confidence=0.95) is None
    assert leak_bound(0, 300, sensitivity_hits=0, sensitivity_trials=0, confidence=0.95) is None


def test_no_requests_bound_nothing():
    assert upper_limit(0, 0, confidence=0.95) == 1
    bound = leak_bound(0, 0, sensitivity_hits=10, sensitivity_trials=10, confidence=0.95)
    assert bound.upper == 1


def _binomial_cdf(hits, trials, rate):
    return sum(
        math.comb(trials, count) * rate**count * (1 - rate) ** (trials - count)
        for count in range(hits + 1)
    )


@given(st.integers(1, 60), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
def test_at_the_limit_the_count_is_exactly_that_unlikely(trials, data, confidence):
    hits = data.draw(st.integers(0, trials))
    upper = upper_limit(hits, trials, confidence=confidence)
    lower = lower_limit(hits, trials, confidence=confidence)
    assert lower <= hits / trials <= upper
    if hits < trials:
        assert _binomial_cdf(hits, trials, upper) == pytest.approx(1 - confidence, rel=1e-6)
    if hits:
        above = 1 - _binomial_cdf(hits - 1, trials, lower)
        assert above == pytest.approx(1 - confidence, rel=1e-6)


@given(st.integers(1, 25), st.integers(1, 25), st.data())
def test_fisher_is_the_hypergeometric_tail(trials, null_trials, data):
    hits = data.draw(st.integers(0, trials))
    null_hits = data.draw(st.integers(0, null_trials))
    total, all_hits = trials + null_trials, hits + null_hits
    tail = sum(
        math.comb(trials, count) * math.comb(null_trials, all_hits - count)
        for count in range(hits, min(trials, all_hits) + 1)
        if all_hits - count <= null_trials
    ) / math.comb(total, all_hits)
    assert fisher_greater(hits, trials, null_hits, null_trials) == pytest.approx(tail)


def test_holm_multiplies_by_what_is_left_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_makes_a_p_smaller_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert all(after >= before for before, after in pairs)
    assert [after for _, after in pairs] == sorted(after for _, after in pairs)
