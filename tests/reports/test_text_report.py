"""The summary that can be read aloud."""

from dataclasses import replace
from pathlib import Path

import pytest

from reports.text_report import summary_text

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
def test_the_summary_reads_as_agreed(which, request, key):
    expected = (GOLDEN / f"summary-{which}.txt").read_text(encoding="utf-8")
    assert summary_text(request.getfixturevalue(which), key=key) == expected


def test_the_summary_names_the_verdict_and_what_it_is_worth_first(healthy):
    first, _, worth = summary_text(healthy).split("\n")[:3]
    assert first == "CLEAN (exit status 0)"
    assert "10.1 %" in worth
    assert "95 % confidence" in worth


def test_the_summary_holds_no_secret(incident, records, key):
    shown = summary_text(incident, key=key, told=100)
    for record in records.values():
        for canary in record.canaries:
            assert canary.code_text not in shown
            assert canary.phrase not in shown


def test_answers_that_are_not_told_are_counted(incident, key):
    assert "and 5 more answers with findings" in summary_text(incident, key=key, told=1)


def test_findings_without_a_source_do_not_claim_to_tell_whose_text_it_was(incident, key):
    numbers = tuple(held for held in incident.findings if held.evidence.source is None)
    assert 0 < len(numbers) < len(incident.findings)
    shown = summary_text(replace(incident, findings=numbers), key=key)
    assert "Whose text came out where" not in shown
    assert "\nWhat was found\n" in shown
    assert "\nWhose text came out where\n" in summary_text(incident, key=key)


def test_an_oracle_that_was_not_available_says_why(healthy):
    line = next(line for line in summary_text(healthy).split("\n") if "KVA408" in line)
    assert "not available: the server returns no log-probabilities" in line


def test_a_run_in_which_nothing_was_examined_says_so(undecided):
    shown = summary_text(undecided)
    assert "no stratum was examined, so no rate is bounded" in shown
    assert "none was applied" in shown
    assert "9 requests: rate limited (429)" in shown
