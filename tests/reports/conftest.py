"""Runs to be reported: made by hand, so that every sentence of a report can be predicted."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.findings import (
    AuditRun,
    Bound,
    Evidence,
    Finding,
    Kind,
    NotExaminable,
    OracleReport,
    Severity,
    Side,
    Source,
    Span,
    Verdict,
)  # fmt: skip
from kvaudit.records import Message, Outcome, RequestRecord, Role

START_NS = 1_790_000_000_000_000_000
SINKS = 6
KEY = b"a key of a run, never in a report"


@pytest.fixture(scope="session")
def key() -> bytes:
    return KEY


@pytest.fixture(scope="session")
def records() -> dict[str, RequestRecord]:
    return incident_records()


@pytest.fixture(scope="session")
def incident() -> AuditRun:
    return incident_run(incident_records())


@pytest.fixture(scope="session")
def healthy() -> AuditRun:
    return clean_run()


@pytest.fixture(scope="session")
def undecided() -> AuditRun:
    return inconclusive_run()


@pytest.fixture(scope="session")
def hostile_case() -> Callable[[str], tuple[AuditRun, dict[str, RequestRecord]]]:
    return hostile


def incident_records() -> dict[str, RequestRecord]:
    """Six fills of tenants a, c, d and six triggers of tenants b, c, a that met their pages."""
    mint = CanaryMint("sample")
    made: dict[str, RequestRecord] = {}
    for index in range(SINKS):
        source, sink = ("a", "c", "d")[index % 3], ("b", "d", "a")[index % 3]
        secret = mint.mint(f"fill-{index}", source)
        own = mint.mint(f"trigger-{index}", sink)
        sent = START_NS + index * 7_000_000_000
        made[f"fill-{index}"] = RequestRecord(
            request_id=f"fill-{index}", tenant=source, scenario="over-limit", stratum="fill",
            role=Role.FILL, block=index, endpoint="/v1/completions", model="copier",
            messages=(Message(role="user", content=(
                f"Contract note for Anna Schmidt, anna.schmidt@example.com. The project phrase is "
                f"{secret.phrase}. The access code is {secret.code_text}. Repeat nothing."
            )),),
            canaries=(secret,), prompt_tokens_sent=180, status=200, outcome=Outcome.ANSWERED,
            output_text="Understood, nothing will be repeated.", prompt_tokens=180,
            sent_unix_ns=sent, ended_unix_ns=sent + 400_000_000,
        )  # fmt: skip
        made[f"trigger-{index}"] = RequestRecord(
            request_id=f"trigger-{index}", tenant=sink, scenario="over-limit", stratum="over-limit",
            role=Role.TRIGGER, block=index, endpoint="/v1/completions", model="copier",
            messages=(Message(role="user", content=(
                f"Quarterly minutes of the garden club, item {index}. " * 8
                + f"The project phrase is {own.phrase}. Which phrase stands above?")),),
            canaries=(own,), expected=own.phrase, prompt_tokens_sent=1400, status=200,
            outcome=Outcome.ANSWERED, prompt_tokens=1,
            output_text=(f"The project phrase is {secret.phrase}. The access code is "
                         f"{secret.code_text}. Quarterly minutes of the garden club, no. {index}."),
            sent_unix_ns=sent + 2_000_000_000, ended_unix_ns=sent + 2_600_000_000,
        )  # fmt: skip
    return made


def incident_run(records: Mapping[str, RequestRecord]) -> AuditRun:
    """Every trigger convicted by a canary, a foreign run and two families of traces."""
    findings: list[Finding] = []
    for index in range(SINKS):
        fill, trigger = records[f"fill-{index}"], records[f"trigger-{index}"]
        findings += [
            _canary_finding(fill, trigger),
            _run_finding(fill, trigger),
            _trace("KVA301", Kind.ACCOUNTING, trigger, {"reported": 1, "sent": 1400}),
            _trace("KVA401", Kind.CORRUPTION, trigger, {"statistic": "nonce absent"}),
        ]
    return AuditRun(
        run_id="20260921T131320-incident", command="audit", version="0.1.0",
        verdict=Verdict.CONTAMINATED,
        reasons=("6 of 6 answers over the limit hold another tenant's canary",),
        repeat="kvaudit audit reference --fault reject-not-propagated --model copier --trials 6",
        seed=7, started_unix_ns=START_NS, ended_unix_ns=START_NS + 61_000_000_000,
        target={"kind": "kvaudit-reference", "version": "0.1.0", "model": "copier",
                "context_tokens": 2048},
        config={"fault": "reject-not-propagated", "seed": 7, "trials": 6, "target": "reference"},
        findings=tuple(findings),
        bounds=(
            Bound(stratum="over-limit", requests=6, detections=6, sensitivity=0.61,
                  confidence=0.95, upper=1.0, sent=6),
            Bound(stratum="in-limit", requests=7, detections=0, sensitivity=0.61,
                  confidence=0.95, upper=0.5718, sent=8, censored=1),
        ),
        oracles=oracle_reports(fired=6),
        not_examinable=(NotExaminable(reason="timeout", count=1),),
        counts={"sent": 20, "examined": 19, "censored": 1},
    )  # fmt: skip


def clean_run() -> AuditRun:
    return AuditRun(
        run_id="20260921T141320-healthy", command="audit", version="0.1.0", verdict=Verdict.CLEAN,
        reasons=(), repeat="kvaudit audit reference --model copier --trials 32", seed=7,
        started_unix_ns=START_NS, ended_unix_ns=START_NS + 61_000_000_000,
        target={"kind": "kvaudit-reference", "model": "copier"}, config={"seed": 7},
        bounds=(
            Bound(stratum="over-limit", requests=32, detections=0, sensitivity=0.89,
                  confidence=0.95, upper=0.1005, sent=32),
            Bound(stratum="in-limit", requests=32, detections=0, sensitivity=0.89,
                  confidence=0.95, upper=0.1005, sent=32),
        ),
        oracles=oracle_reports(fired=0), counts={"sent": 64, "examined": 64},
    )  # fmt: skip


def inconclusive_run() -> AuditRun:
    return AuditRun(
        run_id="20260921T151320-undecided", command="audit", version="0.1.0",
        verdict=Verdict.INCONCLUSIVE,
        reasons=("9 of 40 requests of stratum `over-limit` were censored", "corrupt, no source"),
        not_examinable=(NotExaminable(reason="rate limited (429)", count=9),),
    )  # fmt: skip


def oracle_reports(*, fired: int) -> tuple[OracleReport, ...]:
    return (
        OracleReport(rule_id="KVA101", available=True, sensitivity=1.0, sensitivity_lower=0.69,
                     false_alarms=0, trials=12, fired=fired, examined=13),
        OracleReport(rule_id="KVA201", available=True, sensitivity=0.97, sensitivity_lower=0.83,
                     false_alarms=1, trials=12, fired=fired, examined=13),
        OracleReport(rule_id="KVA302", available=True, fired=0, examined=13,
                     reason="sensitivity as measured on the reference engine"),
        OracleReport(rule_id="KVA408", available=False,
                     reason="the server returns no log-probabilities of given tokens"),
    )  # fmt: skip


def hostile(payload: str) -> tuple[AuditRun, dict[str, RequestRecord]]:
    """Put one payload wherever a server, a log or a run file could put it."""
    records = incident_records()
    fill, trigger = records["fill-0"], records["trigger-0"]
    records["fill-0"] = replace(
        fill, messages=(Message(role="user", content=payload),), tenant=payload
    )
    records["trigger-0"] = replace(
        trigger, output_text=payload, tenant=payload, error_message=payload,
        messages=(Message(role="user", content=payload),),
    )  # fmt: skip
    evidence = Evidence(
        rule_id="KVA101", sink_request_id=payload or "empty", sink_tenant=payload,
        source=Source(request_id="fill-0", tenant=payload, side=Side.PROMPT,
                      span=Span(start=0, end=len(payload))),
        sink_span=Span(start=0, end=len(payload)), excerpt=payload, score=188.0, chance=1e-40,
        details={"fold": payload, payload: payload, "text": [payload, {"deep": payload}]},
    )  # fmt: skip
    run = incident_run(incident_records())
    named = replace(evidence, sink_request_id="trigger-0", sink_tenant=payload)
    hostile_run = replace(
        run,
        run_id=payload, repeat=payload, version=payload, reasons=(payload,), command=payload,
        target={"kind": payload, payload: payload}, config={payload: [payload]},
        findings=(
            Finding(evidence=named, kind=Kind.EXPOSURE, severity=Severity.CRITICAL),
            Finding(evidence=evidence, kind=Kind.EXPOSURE, severity=Severity.CRITICAL),
        ),
        bounds=(replace(run.bounds[0], stratum=payload),),
        oracles=(replace(run.oracles[0], reason=payload),
                 OracleReport(rule_id="KVA408", available=False, reason=payload)),
        not_examinable=(NotExaminable(reason=payload, count=3),),
        counts={payload: 3},
    )  # fmt: skip
    return hostile_run, records


def _canary_finding(fill: RequestRecord, trigger: RequestRecord) -> Finding:
    return _exposure("KVA101", fill, trigger, fill.canaries[0].code_text, 80.0, 3e-19)


def _run_finding(fill: RequestRecord, trigger: RequestRecord) -> Finding:
    return _exposure("KVA201", fill, trigger, fill.canaries[0].phrase, 108.0, 4e-27)


def _exposure(
    rule_id: str,
    fill: RequestRecord,
    trigger: RequestRecord,
    text: str,
    score: float,
    chance: float,
) -> Finding:
    assert trigger.output_text is not None, "a trigger has an answer"
    return Finding(
        evidence=Evidence(
            rule_id=rule_id, sink_request_id=trigger.request_id, sink_tenant=trigger.tenant,
            source=Source(request_id=fill.request_id, tenant=fill.tenant, side=Side.PROMPT,
                          span=_span_of(text, fill.prompt_text)),
            sink_span=_span_of(text, trigger.output_text), excerpt=text, score=score,
            chance=chance,
            details={"method": "exact", "characters": len(text), "other_sources": []},
        ),
        kind=Kind.EXPOSURE,
        severity=Severity.CRITICAL,
    )  # fmt: skip


def _trace(rule_id: str, kind: Kind, trigger: RequestRecord, details: dict[str, Any]) -> Finding:
    return Finding(
        evidence=Evidence(
            rule_id=rule_id, sink_request_id=trigger.request_id, sink_tenant=trigger.tenant,
            score=1.0, details=details,
        ),
        kind=kind,
        severity=Severity.ERROR,
    )  # fmt: skip


def _span_of(text: str, whole: str) -> Span:
    start = whole.index(text)
    return Span(start=start, end=start + len(text))
