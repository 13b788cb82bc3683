"""SARIF 2.1.0, within the limits that GitHub code scanning sets.

AuditRun = run, Rule = reportingDescriptor, Finding = result, Severity = level, a request =
logicalLocation `tenant/request`, the records file = artifact. Verdict = result kind: `fail` where
the verdict convicts, `review` where it is inconclusive; the level is `none` unless it is `fail`.
A run without findings is no empty list that reads as a pass: the verdict, its reasons and every
oracle that was not available stand in the run's invocation.

Source: OASIS SARIF 2.1.0; https://docs.github.com/en/code-security (SARIF support).
"""

import hashlib
from typing import Any

from kvaudit.findings import AuditRun, Evidence, Finding, Json, Kind, Rule, Severity, Verdict
from kvaudit.rules import RULES
from reports import neutral
from reports.hazard_words import (
    hazard_name,
    hazard_sentence,
    hazard_sources,
    hazard_summary,
    is_hazard,
)
from reports.instants import time_text
from reports.json_report import json_text
from reports.redact import Redactor, plain_json
from reports.wording import (
    evidence_chance,
    finding_sentence,
    headline,
    oracle_sentence,
    sorted_findings,
    worth,
)  # fmt: skip

RESULTS_MAX = 25_000  # GitHub refuses a run with more
SCHEMA_URI = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
RECORDS_URI = "records.parquet"
_ARTIFACT_WORDS: dict[str, dict[str, Json]] = {
    RECORDS_URI: {
        "mimeType": "application/vnd.apache.parquet",
        "description": {"text": "The records of the run, one row a request"},
    }
}
_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}
# GitHub sorts alerts by this number: over 9.0 critical, over 7.0 high, over 4.0 medium.
_SECURITY_SEVERITY = {
    Severity.CRITICAL: "9.5",
    Severity.ERROR: "8.0",
    Severity.WARNING: "5.0",
    Severity.INFO: "1.0",
}


def render_sarif(run: AuditRun, *, reveal: bool = False, key: bytes = b"") -> bytes:
    """Return the run as a SARIF log, UTF-8, worst and surest findings first."""
    return json_text(sarif_log(run, reveal=reveal, key=key)).encode("utf-8")


def sarif_log(run: AuditRun, *, reveal: bool = False, key: bytes = b"") -> dict[str, Json]:
    """Return the run as a SARIF log with one run."""
    redactor = Redactor(key=key, reveal=reveal)
    findings = sorted_findings(run.findings)[:RESULTS_MAX]
    rule_ids = sorted({finding.evidence.rule_id for finding in findings})
    told: dict[str, Any] = {
        "tool": {"driver": _driver(run, rule_ids, findings)},
        "invocations": [_invocation(run, len(run.findings) - len(findings))],
        "automationDetails": {"id": f"kvaudit/{neutral.name(run.command)}/"},
        "columnKind": "unicodeCodePoints",
        "artifacts": [
            {"location": {"uri": uri}, **_ARTIFACT_WORDS.get(uri, {})}
            for uri in _artifact_uris(findings)
        ],
        "results": [
            _result(finding, rule_ids, run.verdict, redactor, _artifact_uris(findings))
            for finding in findings
        ],
        "properties": {
            "verdict": run.verdict.value,
            "summary": headline(run),
            "worth": worth(run),
            "runId": neutral.name(run.run_id),
            "seed": run.seed,
            "redacted": not reveal,
        },
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [told]}


def partial_fingerprint(evidence: Evidence) -> str:
    """Return what stays the same when the same run is judged again."""
    source = evidence.source
    parts = [evidence.rule_id, evidence.sink_request_id, evidence.sink_tenant]
    parts += [source.request_id, source.tenant] if source else []
    joined = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:32]


def _driver(run: AuditRun, rule_ids: list[str], findings: list[Finding]) -> dict[str, Json]:
    first = {finding.evidence.rule_id: finding for finding in reversed(findings)}
    return {
        "name": "kvaudit",
        "version": neutral.name(run.version) or "unknown",
        "rules": [_descriptor(rule_id, first[rule_id]) for rule_id in rule_ids],
    }


def _artifact_uris(findings: list[Finding]) -> list[str]:
    """Return what the findings lie in: the sources of a preflight, else the records of the run."""
    found = [uri for finding in findings if is_hazard(finding) for uri in hazard_sources(finding)]
    return list(dict.fromkeys(found)) or [RECORDS_URI]


def _descriptor(rule_id: str, finding: Finding) -> dict[str, Json]:
    if is_hazard(finding):
        return {
            "id": neutral.name(rule_id) or "unknown",
            "name": "".join(part.capitalize() for part in hazard_name(finding).split("-")),
            "shortDescription": {"text": hazard_summary(finding)},
            "fullDescription": {"text": hazard_sentence(finding)},
            "help": {"text": f"`kvaudit hazards --explain {neutral.name(rule_id)}` tells more."},
            "defaultConfiguration": {"level": _LEVELS[finding.severity]},
            "properties": {
                "tags": ["security", finding.kind.value],
                "security-severity": _SECURITY_SEVERITY[finding.severity],
                "precision": "high",
            },
        }
    known = RULES.get(rule_id)
    if known is None:
        return {"id": neutral.name(rule_id) or "unknown"}
    return {
        "id": known.id,
        "name": "".join(part.capitalize() for part in known.name.split("-")),
        "shortDescription": {"text": known.summary},
        "fullDescription": {"text": _described(known)},
        "help": {"text": _described(known)},
        "defaultConfiguration": {"level": _LEVELS[known.severity]},
        "properties": {
            "tags": ["security", known.kind.value],
            "security-severity": _SECURITY_SEVERITY[known.severity],
            "precision": "very-high" if known.kind is Kind.EXPOSURE else "high",
        },
    }


def _described(rule: Rule) -> str:
    source = f" Source: {rule.source}." if rule.source else ""
    return f"{rule.summary} Explained by `kvaudit rules --explain {rule.id}`.{source}"


def _invocation(run: AuditRun, left_out: int) -> dict[str, Json]:
    notes = [_note("error" if run.verdict is Verdict.INCONCLUSIVE else "note", headline(run))]
    notes += [_note("note", f"Reason: {neutral.sentence(reason)}") for reason in run.reasons]
    notes += [
        _note("warning", f"{neutral.name(oracle.rule_id)} {oracle_sentence(oracle)}")
        for oracle in run.oracles
        if not oracle.available
    ]
    notes += [
        _note("warning", f"{item.count} not examinable: {neutral.sentence(item.reason)}")
        for item in run.not_examinable
    ]
    if left_out:
        notes.append(_note("warning", f"{left_out:,} weaker findings are left out here"))
    told: dict[str, Json] = {
        "executionSuccessful": run.verdict is not Verdict.INCONCLUSIVE,
        "exitCode": run.verdict.exit_status,
        "toolExecutionNotifications": list(notes),
    }
    if run.repeat:
        told["commandLine"] = neutral.sentence(run.repeat)
    for name, moment in (("startTimeUtc", run.started_unix_ns), ("endTimeUtc", run.ended_unix_ns)):
        if time_text(moment):
            told[name] = time_text(moment)
    return told


def _note(level: str, text: str) -> dict[str, Json]:
    return {"level": level, "message": {"text": _message(text)}}


def _result(
    finding: Finding, rule_ids: list[str], verdict: Verdict, redactor: Redactor, uris: list[str]
) -> dict[str, Json]:
    evidence = finding.evidence
    kind = _result_kind(finding, verdict)
    text = f"{finding_sentence(finding)} {evidence_chance(finding).capitalize()}."
    if is_hazard(finding):
        text = hazard_sentence(finding)
    elif evidence.excerpt:
        text += f' It reads: "{redactor.excerpt(evidence.excerpt)}".'
    told: dict[str, Json] = {
        "ruleId": neutral.name(evidence.rule_id) or "unknown",
        "ruleIndex": rule_ids.index(evidence.rule_id),
        "kind": kind,
        "level": _LEVELS[finding.severity] if kind == "fail" else "none",
        "message": {"text": _message(text)},
        "locations": [
            _source_location(finding, uris)
            if is_hazard(finding)
            else _location(evidence.sink_tenant, evidence.sink_request_id)
        ],
        "partialFingerprints": {"kvaudit/v1": partial_fingerprint(evidence)},
        "properties": {
            "kind": finding.kind.value,
            "severity": finding.severity.value,
            "score": plain_json(evidence.score),
            "chance": plain_json(evidence.chance),
            "qValue": plain_json(finding.q_value),
        },
    }
    if evidence.source is not None:
        source = _location(evidence.source.tenant, evidence.source.request_id)
        side = f"Source: {evidence.source.side.value} of this request"
        told["relatedLocations"] = [{**source, "id": 1, "message": {"text": side}}]
    return told


def _result_kind(finding: Finding, verdict: Verdict) -> str:
    """Sharing and hazards are always shown, at their own level; the rest follows the verdict."""
    if finding.kind in (Kind.SHARING, Kind.HAZARD) or verdict in (
        Verdict.CONTAMINATED,
        Verdict.AT_RISK,
    ):
        return "fail"
    return "review" if verdict is Verdict.INCONCLUSIVE else "informational"


def _source_location(finding: Finding, uris: list[str]) -> dict[str, Json]:
    """Return the source that says what is to be started, and the role as its logical location."""
    uri = next(iter(hazard_sources(finding)), uris[0])
    name = neutral.name(finding.evidence.sink_request_id)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "index": uris.index(uri)},
            "region": {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1},
        },
        "logicalLocations": [{"name": name, "fullyQualifiedName": name, "kind": "role"}],
    }


def _location(tenant: str, request_id: str) -> dict[str, Json]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": RECORDS_URI, "index": 0},
            # A request has no line in a Parquet file; GitHub shows no result without one.
            "region": {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1},
        },
        "logicalLocations": [
            {
                "name": neutral.name(request_id),
                "fullyQualifiedName": f"{neutral.name(tenant)}/{neutral.name(request_id)}",
                "kind": "request",
            }
        ],
    }


def _message(text: str) -> str:
    """Escape what SARIF reads in a plain message: placeholders and embedded links (3.11.5, .6)."""
    for plain, escaped in (("\\", "\\\\"), ("[", "\\["), ("]", "\\]"), ("{", "{{"), ("}", "}}")):
        text = text.replace(plain, escaped)
    return text
