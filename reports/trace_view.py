"""One request of a run, followed both ways: what its answer holds, and where its text went."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.findings import AuditRun, Evidence, Finding
from kvaudit.records import RequestRecord
from reports import neutral
from reports.html_view import TextView, evidence_texts, flat_items, request_facts
from reports.instants import time_text
from reports.json_report import PLAIN_DETAIL_KEYS
from reports.redact import Redactor, plain_json
from reports.wording import (
    KIND_WORDS,
    evidence_chance,
    finding_sentence,
    rule_name,
    rule_summary,
    sorted_findings,
)  # fmt: skip

REACHED_MAX = 200
CANDIDATES_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One answer that text of a request is in.

    Attributes:
        request_id: Of that answer, as the log has it.
        tenant: Of that answer.
        sent_at: ISO 8601; "" if not known.
        rules: What saw it.
    """

    request_id: str
    tenant: str
    sent_at: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFinding:
    """One finding in the answer of the traced request.

    Attributes:
        sentence: Who received what from whom.
        why: Why it was judged so, sentence by sentence.
        chance: The chance of error, in words.
        sink, source: Both sides, the shared span marked; None where there is no text to show.
        elsewhere: Further answers that hold text of the same source.
        details: Name and value of what explains it.
    """

    rule: str
    name: str
    kind: str
    severity: str
    sentence: str
    why: tuple[str, ...]
    chance: str
    score: float | None
    sink: TextView | None
    source: TextView | None
    elsewhere: tuple[Reached, ...]
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Everything that a run says of one request; all texts printable and redacted, but for ids.

    Attributes:
        request_id: As the log has it: whoever shows it makes it printable.
        facts: Labelled figures of the request.
        findings: What its answer holds, the worst first.
        below: Evidence under its rule's threshold: rule, and why it did not pass.
        reached: Answers that hold text of this request.
        reached_count: How many there are, shown or not.
    """

    run_id: str
    request_id: str
    tenant: str
    sent_at: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[TracedFinding, ...]
    below: tuple[tuple[str, str], ...]
    reached: tuple[Reached, ...]
    reached_count: int


def trace_of(
    run: AuditRun, records: Mapping[str, RequestRecord], request_id: str, redactor: Redactor
) -> Trace:
    """Return what the run says of one request.

    Args:
        run: The judged run.
        records: Its records by id; the traced one among them.
        request_id: The request.
        redactor: How its text is shown.
    """
    record = records.get(request_id)
    by_source = _reached(run, records)
    own = [held for held in sorted_findings(run.findings)
           if held.evidence.sink_request_id == request_id]  # fmt: skip
    reached = by_source.get(request_id, [])
    return Trace(
        run_id=neutral.name(run.run_id),
        request_id=request_id,
        tenant=neutral.name(record.tenant) if record else "not known",
        sent_at=time_text(record.sent_unix_ns) if record else "",
        outcome=record.outcome.value if record else "not known",
        facts=request_facts(record),
        findings=tuple(_finding(held, own, records, by_source, redactor) for held in own),
        below=tuple(
            (held.rule_id, _why_below(held))
            for held in run.candidates
            if held.sink_request_id == request_id
        )[:CANDIDATES_MAX],
        reached=tuple(reached[:REACHED_MAX]),
        reached_count=len(reached),
    )


def trace_json(trace: Trace, *, reveal: bool) -> dict[str, Any]:
    """Return a trace as the object of `kvaudit trace --json`."""
    return {
        "schema": 1, "command": "trace", "run_id": trace.run_id, "redacted": not reveal,
        "request": {
            "request_id": neutral.own_id(trace.request_id),
            "tenant": trace.tenant, "outcome": trace.outcome,
            "sent_at": trace.sent_at or None, "facts": dict(trace.facts),
        },
        "findings": [
            {
                "rule": held.rule, "name": held.name, "kind": held.kind, "severity": held.severity,
                "sentence": held.sentence, "why": list(held.why), "chance": held.chance,
                "score": held.score, "sink": _text_json(held.sink),
                "source": _text_json(held.source),
                "elsewhere": [_reached_json(other) for other in held.elsewhere],
                "details": dict(held.details),
            }
            for held in trace.findings
        ],
        "below_threshold": [{"rule": rule, "why": why} for rule, why in trace.below],
        "reached": [_reached_json(held) for held in trace.reached],
        "reached_count": trace.reached_count,
    }  # fmt: skip


def _finding(
    finding: Finding,
    own: list[Finding],
    records: Mapping[str, RequestRecord],
    by_source: Mapping[str, list[Reached]],
    redactor: Redactor,
) -> TracedFinding:
    evidence = finding.evidence
    sink, source = evidence_texts(evidence, records, redactor)
    elsewhere = by_source.get(evidence.source.request_id, []) if evidence.source else []
    details = redactor.json_value(dict(evidence.details), plain_keys=PLAIN_DETAIL_KEYS)
    assert isinstance(details, dict), "details are an object"
    score = plain_json(evidence.score)
    return TracedFinding(
        rule=neutral.name(evidence.rule_id),
        name=rule_name(evidence.rule_id),
        kind=finding.kind.value,
        severity=finding.severity.value,
        sentence=finding_sentence(finding),
        why=_why(finding, own),
        chance=evidence_chance(finding),
        score=float(score) if isinstance(score, (int, float)) else None,
        sink=sink,
        source=source,
        elsewhere=tuple(
            other for other in elsewhere if other.request_id != evidence.sink_request_id
        )[:REACHED_MAX],
        details=tuple(flat_items(details)),
    )


def _why(finding: Finding, own: list[Finding]) -> tuple[str, ...]:
    rule_id = finding.evidence.rule_id
    told = [f"{rule_id} {rule_name(rule_id)}: {rule_summary(rule_id)}", f"So {_kind(finding)}."]
    others = sorted({held.evidence.rule_id for held in own} - {rule_id})
    if others:
        told.append(f"On the same answer: {', '.join(others)}.")
    return tuple(told)


def _kind(finding: Finding) -> str:
    return KIND_WORDS[finding.kind]


def _why_below(evidence: Evidence) -> str:
    explained = evidence.details.get("explained_by")
    if isinstance(explained, str):
        return f"explained: {neutral.sentence(explained)}"
    if evidence.chance is not None:
        return f"an accident this strong has a chance of {evidence.chance:.3g} in the run"
    return f"score {evidence.score:.6g} alone does not pass the rule's threshold"


def _reached(run: AuditRun, records: Mapping[str, RequestRecord]) -> dict[str, list[Reached]]:
    """Return by source request the answers that hold its text, first sent first."""
    rules: dict[tuple[str, str, str], list[str]] = {}
    for finding in run.findings:
        held = finding.evidence
        if held.source is not None:
            key = (held.source.request_id, held.sink_request_id, held.sink_tenant)
            rules.setdefault(key, []).append(held.rule_id)
    made: dict[str, list[Reached]] = {}
    for (source, sink, tenant), seen in rules.items():
        sent = records[sink].sent_unix_ns if sink in records else None
        made.setdefault(source, []).append(
            Reached(
                request_id=sink, tenant=neutral.name(tenant),
                sent_at=time_text(sent), rules=tuple(dict.fromkeys(seen)),
            )
        )  # fmt: skip
    for held_there in made.values():
        held_there.sort(key=lambda other: (other.sent_at == "", other.sent_at, other.request_id))
    return made


def _text_json(view: TextView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    return {
        "label": view.label,
        "missing": view.missing or None,
        "pieces": [{"text": piece.text, "mark": piece.mark or None} for piece in view.pieces],
    }


def _reached_json(held: Reached) -> dict[str, Any]:
    return {
        "request_id": neutral.own_id(held.request_id),
        "tenant": held.tenant, "sent_at": held.sent_at or None,
        "rules": list(held.rules),
    }  # fmt: skip
