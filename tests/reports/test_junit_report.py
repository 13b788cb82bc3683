"""JUnit: green only where clean."""

import xml.etree.ElementTree as ET
from dataclasses import replace

from kvaudit.findings import Kind, Severity
from reports.junit_report import render_junit


def cases(run):
    suite = ET.fromstring(render_junit(run)).find("testsuite")
    found = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert len(found) == int(suite.get("tests"))
    for element, attribute in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
    ):
        assert int(suite.get(attribute)) == sum(tags == [element] for tags in found.values())
    return found


def test_a_contaminated_run_fails_by_verdict_stratum_and_oracle(incident):
    found = cases(incident)
    assert found["no tenant's text reached another"] == ["failure"]
    assert found["stratum over-limit"] == ["failure"]
    assert found["stratum in-limit"] == []
    assert found["KVA101 foreign-canary"] == ["failure"]
    assert found["KVA408 replay-gap"] == ["skipped"]


def test_a_clean_run_passes_and_skips_what_was_not_available(healthy):
    found = cases(healthy)
    assert [name for name, tags in found.items() if tags] == ["KVA408 replay-gap"]


def test_an_inconclusive_run_is_an_error_and_no_pass(undecided):
    assert cases(undecided) == {"no tenant's text reached another": ["error"]}


def test_a_stratum_without_a_bound_is_an_error(healthy):
    bare = replace(healthy.bounds[0], upper=None, sensitivity=None)
    found = cases(replace(healthy, bounds=(bare,)))
    assert found["stratum over-limit"] == ["error"]


def test_a_warning_does_not_turn_a_clean_run_red(healthy, incident):
    shared = replace(incident.findings[0], kind=Kind.SHARING, severity=Severity.WARNING)
    found = cases(replace(healthy, findings=(shared,)))
    assert [name for name, tags in found.items() if tags] == ["KVA408 replay-gap"]
