"""Exact statistics: what a count is worth, and whether two counts differ.

Everything here is exact (Clopper and Pearson 1934, Fisher 1935); nothing is resampled, and nothing
but a rank test among equal values approximated, so a bound printed in a report can be checked with
a pocket calculator.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import beta, binom, fisher_exact, mannwhitneyu


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided confidence interval of a share, both ends in [0, 1]."""

    lower: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakBound:
    """An upper bound on a leak rate and what went into it.

    Attributes:
        upper: Upper bound on the share of contaminated requests.
        sensitivity_lower: Lower limit of the oracle's sensitivity that `upper` was divided by.
    """

    upper: float
    sensitivity_lower: float


def clopper_pearson(hits: int, trials: int, *, confidence: float) -> Interval:
    """Return the exact two-sided interval of a share; without trials it is [0, 1]."""
    tail = (1 - confidence) / 2
    return Interval(
        lower=lower_limit(hits, trials, confidence=1 - tail),
        upper=upper_limit(hits, trials, confidence=1 - tail),
    )


def upper_limit(hits: int, trials: int, *, confidence: float) -> float:
    """Return the exact one-sided upper limit of a share; 1 without trials.

    With no hits it is `1 - (1 - confidence) ** (1 / trials)`.
    """
    _check_counts(hits, trials)
    if hits == trials:
        return 1.0
    return float(beta.ppf(confidence, hits + 1, trials - hits))


def lower_limit(hits: int, trials: int, *, confidence: float) -> float:
    """Return the exact one-sided lower limit of a share; 0 without trials.

    With nothing but hits it is `(1 - confidence) ** (1 / trials)`.
    """
    _check_counts(hits, trials)
    if hits == 0:
        return 0.0
    return float(beta.ppf(1 - confidence, hits, trials - hits + 1))


def leak_bound(
    detections: int,
    requests: int,
    *,
    sensitivity_hits: int,
    sensitivity_trials: int,
    confidence: float,
) -> LeakBound | None:
    """Bound the leak rate behind `detections` of `requests`, sensitivity folded in.

    The error is split evenly: half of it for the limit of the detection rate, half for the limit
    of the sensitivity, so the whole holds at `confidence` (Bonferroni).

    Returns:
        None when the sensitivity's lower limit is 0: then no rate is excluded.
    """
    half = 1 - (1 - confidence) / 2
    sensitivity = lower_limit(sensitivity_hits, sensitivity_trials, confidence=half)
    if sensitivity <= 0:
        return None
    rate = upper_limit(detections, requests, confidence=half)
    return LeakBound(upper=min(1.0, rate / sensitivity), sensitivity_lower=sensitivity)


def needed_requests(rate: float, *, confidence: float, sensitivity: float = 1.0) -> int:
    """Return how many clean requests exclude a leak rate of `rate` or more.

    `sensitivity` is taken as known exactly: ln(1 - confidence) / ln(1 - rate * sensitivity).
    """
    assert 0 < rate * sensitivity < 1, "a rate strictly between 0 and 1"
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate * sensitivity))


def clearance_p(detections: int, requests: int, rate: float, *, sensitivity: float) -> float:
    """Return the exact p of "the leak rate is `rate` or more", given so few detections."""
    return float(binom.cdf(detections, requests, rate * sensitivity))


def fisher_greater(hits: int, trials: int, null_hits: int, null_trials: int) -> float:
    """Return Fisher's exact one-sided p that the first share is no greater than the null's."""
    _check_counts(hits, trials)
    _check_counts(null_hits, null_trials)
    table = [[hits, trials - hits], [null_hits, null_trials - null_hits]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def rank_less(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the one-sided p that the first values lie no lower than the second ones.

    Mann and Whitney's rank test (1947), exact; with equal values the normal approximation.
    """
    has_ties = len({*first, *second}) < len(first) + len(second)
    method = "asymptotic" if has_ties else "exact"
    return float(mannwhitneyu(first, second, alternative="less", method=method).pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's step-down adjusted p values, in the order given (Holm 1979)."""
    count = len(p_values)
    adjusted = [1.0] * count
    highest = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda item: p_values[item])):
        highest = max(highest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def _check_counts(hits: int, trials: int) -> None:
    assert hits >= 0, "counts are not negative"
    assert hits <= trials, "no more hits than trials"
