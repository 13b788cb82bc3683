"""SARIF 2.1.0 and GitHub's limits."""

from dataclasses import replace

from kvaudit.findings import Kind, Severity, Verdict
from reports import sarif_report
from reports.sarif_report import RESULTS_MAX, sarif_log


def run_of(log):
    assert log["version"] == "2.1.0"
    (told,) = log["runs"]
    return told


def test_each_finding_is_a_result_with_rule_location_and_fingerprint(incident):
    told = run_of(sarif_log(incident))
    rules = told["tool"]["driver"]["rules"]
    assert len(told["results"]) == len(incident.findings)
    for result in told["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        location = result["locations"][0]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "records.parquet"
        assert location["logicalLocations"][0]["fullyQualifiedName"].count("/") == 1
        assert len(result["partialFingerprints"]["kvaudit/v1"]) == 32
    fingerprints = [r["partialFingerprints"]["kvaudit/v1"] for r in told["results"]]
    assert len(set(fingerprints)) == len(fingerprints)


def test_the_level_is_none_unless_the_kind_is_fail(incident):
    for verdict, kind in ((Verdict.CONTAMINATED, "fail"), (Verdict.INCONCLUSIVE, "review")):
        told = run_of(sarif_log(replace(incident, verdict=verdict)))
        for result in told["results"]:
            assert result["kind"] == kind
            assert (result["level"] == "none") == (kind != "fail")


def test_sharing_is_a_warning_whatever_the_verdict(incident):
    shared = replace(incident.findings[0], kind=Kind.SHARING, severity=Severity.WARNING)
    told = run_of(sarif_log(replace(incident, verdict=Verdict.CLEAN, findings=(shared,))))
    assert (told["results"][0]["kind"], told["results"][0]["level"]) == ("fail", "warning")


def test_an_inconclusive_run_did_not_execute_successfully_and_says_why(undecided):
    invocation = run_of(sarif_log(undecided))["invocations"][0]
    assert invocation["executionSuccessful"] is False
    assert invocation["exitCode"] == 3
    texts = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert any("rate limited (429)" in text for text in texts)


def test_oracles_that_were_not_available_are_told(healthy):
    invocation = run_of(sarif_log(healthy))["invocations"][0]
    texts = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert any(text.startswith("KVA408 not available") for text in texts)


def test_no_run_has_more_results_than_github_takes(incident, monkeypatch):
    monkeypatch.setattr(sarif_report, "RESULTS_MAX", 50)
    assert RESULTS_MAX == 25_000
    finding = incident.findings[0]
    many = tuple(
        replace(finding, evidence=replace(finding.evidence, sink_request_id=f"t{index}"))
        for index in range(55)
    )
    told = run_of(sarif_log(replace(incident, findings=many)))
    assert len(told["results"]) == 50
    texts = [n["message"]["text"] for n in told["invocations"][0]["toolExecutionNotifications"]]
    assert "5 weaker findings are left out here" in texts


def test_no_secret_stands_in_a_message(incident, records, key):
    text = str(sarif_log(incident, key=key))
    assert records["fill-0"].canaries[0].code_text not in text
    assert records["fill-0"].canaries[0].phrase not in text
