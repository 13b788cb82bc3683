"""Sentences that hold: nothing rounded to the comfortable side, nobody called a victim."""

from dataclasses import replace

import pytest

from kvaudit.findings import Bound, Kind, OracleReport, Verdict
from reports.wording import (
    bound_sentence,
    chance_words,
    headline,
    oracle_sentence,
    oracle_state,
    share,
    tally,
    worth,
)


@pytest.mark.parametrize(
    ("chance", "told"),
    [
        (0.0, "under 1 in 10^300"),
        (4e-27, "under 1 in 10^26"),
        (1e-26, "under 1 in 10^26"),
        (0.0041, "about 1 in 243"),
        (0.5, "about 50 %"),
    ],
)
def test_a_chance_is_told_and_never_made_smaller(chance, told):
    assert chance_words(chance) == told


@pytest.mark.parametrize(
    ("value", "up", "told"),
    [
        (0.08936, True, "8.94 %"),
        (0.1, True, "10 %"),
        (1.0, True, "100 %"),
        (0.00012341, True, "0.0124 %"),
        (0.00012341, False, "0.0123 %"),
        (0.0, False, "0 %"),
        (0.999, False, "99.9 %"),
    ],
)
def test_a_bound_is_rounded_up_and_a_share_to_the_nearest(value, up, told):
    assert share(value, up=up) == told


def test_responses_receivers_and_sources_are_counted_apart(incident):
    counts = tally(incident)
    assert (counts.responses, counts.receiving, counts.sources) == (6, 3, 3)
    assert (counts.traces, counts.unattributed, counts.examined) == (0, 0, 13)


def test_the_headline_never_says_victim_and_names_each_count(incident):
    assert headline(incident) == (
        "6 responses of 13 examined hold what belongs to another tenant: "
        "3 tenants received it, from 3 source tenants."
    )


def test_a_response_without_a_named_source_is_said_to_have_none(incident):
    first = incident.findings[0]
    bare = replace(first, kind=Kind.MISDELIVERY, evidence=replace(first.evidence, source=None))
    assert headline(replace(incident, findings=(bare,))).endswith("and no source is named.")


def test_traces_alone_are_no_foreign_text(incident):
    traces = tuple(f for f in incident.findings if f.kind is not Kind.EXPOSURE)
    told = headline(replace(incident, findings=traces))
    assert "6 responses of 13 examined were computed from the wrong state" in told
    assert "no source text is visible" in told


def test_clean_is_worth_its_least_sure_stratum(healthy):
    looser = replace(healthy.bounds[1], upper=0.42)
    told = worth(replace(healthy, bounds=(healthy.bounds[0], looser)))
    assert "more than 42 % of the requests" in told
    assert "the least sure is in-limit" in told


def test_clean_without_a_bound_in_every_stratum_is_worth_no_number(healthy):
    unbounded = replace(healthy.bounds[1], upper=None, sensitivity=None)
    told = worth(replace(healthy, bounds=(healthy.bounds[0], unbounded)))
    assert told.startswith("No bound can be given")


def test_inconclusive_is_no_pass(undecided):
    assert "no pass" in worth(undecided)
    assert "neither clean nor contaminated" in headline(undecided)
    without = replace(undecided, reasons=())
    assert "no reason was recorded" in headline(without)


def test_at_risk_claims_nothing_about_what_happened(incident):
    run = replace(incident, verdict=Verdict.AT_RISK)
    assert "nothing was sent or observed" in headline(run)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (OracleReport(rule_id="KVA101", available=True, fired=2, examined=9), "fired"),
        (OracleReport(rule_id="KVA101", available=True, fired=0, examined=9), "silent"),
        (OracleReport(rule_id="KVA101", available=True), "not applied"),
        (OracleReport(rule_id="KVA101", available=False), "not available"),
    ],
)
def test_an_oracle_that_saw_nothing_is_silent_only_if_it_looked(report, state):
    assert oracle_state(report) == state


def test_an_oracle_without_figures_says_that_they_were_not_measured():
    told = oracle_sentence(OracleReport(rule_id="KVA101", available=True, examined=9))
    assert "sensitivity not measured" in told
    assert "false alarms not measured" in told


def test_a_stratum_without_a_sensitivity_has_no_bound():
    bound = Bound(
        stratum="s", requests=9, detections=0, sensitivity=None, confidence=0.95, upper=None
    )
    assert "no bound" in bound_sentence(bound)
