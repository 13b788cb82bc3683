"""KVA601: another tenant's prefix served faster than a fresh one fires; equal times do not."""

import random
from dataclasses import replace

import pytest

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.prefix_timing import ARMS, NOBODYS, OTHERS, OWN, SCENARIO, find_prefix_times
from kvaudit.findings import Verdict
from kvaudit.judge import judge
from kvaudit.records import Outcome, RequestRecord
from kvaudit.serverfacts import ServerFacts

MISS_MS = 100.0


def timed(*, others=MISS_MS, own=40.0, pairs=15, replica=None, seed=1, **changes):
    """Pairs whose medians are as given, with noise of 15 %."""
    rng = random.Random(seed)
    middle = {OTHERS: others, NOBODYS: MISS_MS, OWN: own}
    return [
        replace(
            RequestRecord(
                request_id=f"{replica}-{block}-{arm}", tenant="a", scenario=SCENARIO, stratum=arm,
                block=block if replica is None else block * 7 + len(replica), replica=replica,
                outcome=Outcome.ANSWERED, ttft_ms=middle[arm] * rng.uniform(0.85, 1.15),
            ),
            **changes,
        )
        for block in range(pairs)
        for arm in ARMS
    ]  # fmt: skip


def find(records, **facts):
    return find_prefix_times(Corpus(records=tuple(records), facts=ServerFacts(**facts)))


def test_another_tenant_s_prefix_served_faster_fires_once():
    found = find(timed(others=42.0))
    (evidence,) = found.evidence
    assert evidence.chance < 1e-3
    assert evidence.details["pairs"] == 15
    assert 30 < evidence.details["median_ms_of_anothers_prefix"] < 50
    assert (found.available, found.examined) == (True, 15)


def test_a_cache_of_each_tenant_s_own_is_silent():
    found = find(timed())
    assert (found.available, found.evidence) == (True, ())


def test_a_slower_prefix_of_another_is_silent():
    assert find(timed(others=300.0)).evidence == ()


def test_noise_alone_hardly_ever_fires():
    fired = sum(bool(find(timed(seed=seed)).evidence) for seed in range(200))
    assert fired <= 2  # .2 expected at alpha 1e-3


@pytest.mark.parametrize(
    ("records", "facts", "reason"),
    [
        (timed(others=42.0, own=MISS_MS), {}, "own earlier prefix is served no faster"),
        (timed(others=42.0, pairs=14), {}, "14 pairs were timed on one replica, 15 are needed"),
        (timed(others=42.0, ttft_ms=None), {}, "does not stream"),
        (timed(others=42.0, outcome=Outcome.TIMEOUT), {}, "0 pairs"),
        ([], {}, "no prefixes were timed"),
        ([], {"prefix_cache": False}, "prefix cache is off"),
    ],
)
def test_where_nothing_can_be_told_it_is_not_available_and_says_why(records, facts, reason):
    found = find(records, **facts)
    assert (found.available, found.evidence) == (False, ())
    assert reason in found.reason


def test_each_replica_is_tested_by_itself():
    found = find([*timed(others=42.0, replica="x"), *timed(replica="yy", seed=2)])
    assert [item.details["replica"] for item in found.evidence] == ["x"]
    halves = [*timed(others=42.0, replica="x", pairs=8), *timed(replica="yy", pairs=8)]
    assert not find(halves).available


def test_it_is_a_warning_that_decides_nothing():
    said = judge(Corpus(records=tuple(timed(others=42.0))), strata=(), confidence=0.95)
    assert said.verdict is Verdict.INCONCLUSIVE  # nothing was planned
    assert [item.evidence.rule_id for item in said.findings] == ["KVA601"]
    assert not any("KVA601" in reason for reason in said.reasons)
