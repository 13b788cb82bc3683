"""The suite's checks and its baseline, from judged runs made by hand."""

import json
import re
from pathlib import Path

import pytest

from kvaudit.baseline import baseline_of, drift_between, read_baseline
from kvaudit.errors import ConfigError
from kvaudit.findings import (
    AuditRun,
    Evidence,
    Finding,
    OracleReport,
    Severity,
    Verdict,
)  # fmt: skip
from kvaudit.prelaunch import CHECKS, CheckState, Seen, check_of_rule, results_of
from kvaudit.records import Outcome, RequestRecord
from kvaudit.rules import RULES

ORACLES = tuple(
    OracleReport(rule_id=rule_id, available=True, examined=9)
    for rule_id, rule in RULES.items()
    if rule.sees & {"a"}
)


def record(
    request_id="r1", stratum="in-limit", outcome=Outcome.ANSWERED, text="it is KX42", **more
):
    return RequestRecord(
        request_id=request_id, tenant="tenant-1", stratum=stratum, outcome=outcome,
        output_text=text, expected="KX42", **more,
    )  # fmt: skip


def evidence(rule_id, sink="r1", **details):
    return Evidence(rule_id=rule_id, sink_request_id=sink, sink_tenant="tenant-1", details=details)


def a_run(*rule_ids, sink="r1", candidates=(), oracles=ORACLES, target=None):
    findings = tuple(
        Finding(
            evidence=evidence(rule_id, sink), kind=RULES[rule_id].kind,
            severity=RULES[rule_id].severity,
        )
        for rule_id in rule_ids
    )  # fmt: skip
    return AuditRun(
        run_id="r", command="audit", version="1", verdict=Verdict.CLEAN, reasons=(),
        findings=findings, candidates=candidates, oracles=oracles, target=target or {},
    )  # fmt: skip


def states(run, records=()):
    return {result.name: result.state for result in results_of(run, records)}


def test_a_healthy_run_passes_what_it_examined() -> None:
    records = [
        record("r1"), record("r2", "after-an-abort"), record("r3", "reuse"),
        record("r4", "mid-band", Outcome.REFUSED, None),
        record("r5", scenario="streaming", stream=True),
        record("r6", scenario="streaming", stream=False),
        record("r7", "alone", scenario="company"), record("r8", "again", scenario="company"),
    ]  # fmt: skip
    assert set(states(a_run(), records).values()) == {CheckState.PASSED}


def test_what_nothing_examined_is_never_passed() -> None:
    assert set(states(a_run(oracles=())).values()) == {CheckState.NOT_EXAMINED}


@pytest.mark.parametrize("rule_id", [held.rule_id for held in ORACLES if held.rule_id < "KVA5"])
def test_each_live_rule_fails_the_check_that_stands_for_it(rule_id: str) -> None:
    run = a_run(rule_id)
    name = check_of_rule(rule_id)
    assert name is not None, f"no check stands for {rule_id}"
    (result,) = [held for held in results_of(run, [record()]) if held.name == name]
    is_bad = RULES[rule_id].severity in (Severity.CRITICAL, Severity.ERROR)
    assert result.state is (CheckState.FAILED if is_bad else CheckState.NOTED)
    assert (result.rules, result.request_ids) == ((rule_id,), ("r1",))
    others = {held.state for held in results_of(run, [record()]) if held.name != name}
    assert CheckState.FAILED not in others


def test_a_finding_after_an_abort_fails_that_check_whatever_its_rule() -> None:
    found = states(a_run("KVA401"), [record("r1", "after-an-abort")])
    assert found["sound-after-an-abort"] is CheckState.FAILED
    assert found["sound-on-a-cached-prefix"] is CheckState.NOT_EXAMINED


def test_a_silent_cut_of_a_long_prompt_fails_and_a_declared_one_is_noted() -> None:
    records = [record("r1", "mid-band")]
    silent = a_run(candidates=(evidence("KVA401", explained_by="the answer continues a part"),))
    declared = a_run(candidates=(evidence("KVA302", explained_by="usage reports 900 of 1800"),))
    assert states(silent, records)["over-limit-refused"] is CheckState.FAILED
    assert states(declared, records)["over-limit-refused"] is CheckState.NOTED


def test_an_answer_over_a_limit_that_nobody_stated_is_no_pass() -> None:
    records = [record("r1", "mid-band"), record("r2", "mid-band", Outcome.REFUSED, None)]
    assert states(a_run(), records)["over-limit-refused"] is CheckState.NOTED


def test_a_stream_that_loses_the_value_fails_and_other_wording_is_noted() -> None:
    def pair(streamed: str):
        return [
            record("r1", scenario="streaming", stream=True, text=streamed),
            record("r2", scenario="streaming", stream=False),
        ]

    name = "same-as-a-stream-and-whole"
    assert states(a_run(), pair("lost"))[name] is CheckState.FAILED
    assert states(a_run(), pair("so it is KX42"))[name] is CheckState.NOTED
    assert states(a_run(), pair("it is KX42"))[name] is CheckState.PASSED


@pytest.mark.parametrize("stratum", ["again", "back-again"])
def test_a_prompt_that_loses_its_value_once_more_fails_and_other_wording_is_noted(stratum) -> None:
    def pair(again: str, alone: str = "it is KX42"):
        return [
            record("r1", "alone", scenario="company", text=alone),
            record("r2", stratum, scenario="company", text=again),
            record("r3", stratum, scenario="company", text="another prompt's", block=1),
        ]

    name = "same-when-repeated"
    assert states(a_run(), pair("lost"))[name] is CheckState.FAILED
    assert states(a_run(), pair("so it is KX42"))[name] is CheckState.NOTED
    assert states(a_run(), pair("it is KX42"))[name] is CheckState.PASSED
    assert states(a_run(), pair("lost", alone="lost"))[name] is CheckState.PASSED


def test_names_of_checks_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def kept(run, records):
    return baseline_of(Seen(run=run, records=tuple(records)), results_of(run, records))


def test_a_baseline_of_the_same_run_shows_no_drift() -> None:
    held = kept(a_run(), [record()])
    assert drift_between(read_baseline(json.dumps(held), "x"), held) == ()


def test_a_failed_check_and_lost_answers_are_steps_back_and_facts_are_not() -> None:
    before = kept(a_run(target={"version": "1"}), [record(f"r{n}") for n in range(9)])
    now = kept(
        a_run("KVA101", target={"version": "2"}), [record(f"r{n}", text="lost") for n in range(9)]
    )
    drift = drift_between(before, now)
    assert [(held.what, held.is_worse) for held in drift] == [
        ("check canaries-stay-home", True),
        ("stratum in-limit: right answers", True),
        ("server: version", False),
    ]
    back = drift_between(now, before)
    assert not any(held.is_worse for held in back)


def test_a_baseline_holds_no_text() -> None:
    text = json.dumps(kept(a_run("KVA101"), [record(text="a secret of somebody")]))
    assert "secret" not in text
    assert "KX42" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no baseline"),
        ("[]", "holds no baseline"),
        ('{"kind": "kvaudit-baseline", "schema": 9}', "schema 9"),
        ('{"kind": "kvaudit-baseline", "schema": 1, "target": {}}', "has no `checks`"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_baseline(text, "x.json")


def test_every_check_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/prelaunch.md").read_text("utf-8")
    table = page.split("## The checks")[1].split("\n\n")[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [held.name for held in CHECKS]
