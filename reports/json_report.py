"""The JSON contract: one object, the same on standard output and in `report.json`.

`schemas/report-1.schema.json` describes it. Fields may be added, never renamed within a schema
number. What is not known is null; there is no NaN and no infinity.
"""

import json
from importlib import resources
from typing import Any

from kvaudit.findings import AuditRun, Bound, Finding, Json, OracleReport
from reports import neutral
from reports.redact import Redactor, plain_json
from reports.wording import headline, worth

SCHEMA_NUMBER = 1

# Keys of a finding's details whose strings are our own words or names, never a tenant's text.
_PLAIN_DETAIL_KEY_LIST = (
    "adapter alternative canary canary_label capacity_source check explained_by families"
    " family field finish_reason fit fold folds form headers item_owner kind label"
    " limit_role lifted_by matched_by measure method model null oracle other_record"
    " other_tenant outcome pair pool position prefill_request_id reason record_id replica"
    " request_id request_ids role rule rules scenario side stage statistic status stratum"
    " source_record_id supports tenant tenants test unit where why window"
    # Of hazards: words of a hazard's file, and names from the configuration.
    " assumptions checked fix hazard leaks roles said_by sizes solid sources versions what"
)
PLAIN_DETAIL_KEYS = frozenset(_PLAIN_DETAIL_KEY_LIST.split())

# Those of them that name requests: a program looks them up in its log, so JSON has the log's own.
ID_DETAIL_KEYS = frozenset(
    (
        "other_record",
        "prefill_request_id",
        "record_id",
        "request_id",
        "request_ids",
        "source_record_id",
    )
)


def report_json(run: AuditRun, reveal: bool = False, *, key: bytes = b"") -> dict[str, Json]:
    """Return the run as the object of the JSON contract.

    Args:
        run: The judged run.
        reveal: Show text unredacted.
        key: Secret of the redaction tags.
    """
    redactor = Redactor(key=key, reveal=reveal)
    return {
        "schema": SCHEMA_NUMBER,
        "run_id": neutral.value(run.run_id),
        "command": neutral.value(run.command),
        "verdict": run.verdict.value,
        "reasons": [neutral.value(reason) for reason in run.reasons],
        "summary": headline(run),
        "worth": worth(run),
        "findings": [_finding(finding, redactor) for finding in run.findings],
        "bounds": [_bound(bound) for bound in run.bounds],
        "oracles": [_oracle(oracle) for oracle in run.oracles],
        "not_examinable": [
            {"reason": neutral.value(item.reason), "count": item.count}
            for item in run.not_examinable
        ],
        "counts": {neutral.value(name): count for name, count in run.counts.items()},
        "candidate_count": len(run.candidates),
        "redacted": not reveal,
        "repeat": neutral.value(run.repeat),
        "started_unix_ns": run.started_unix_ns,
        "ended_unix_ns": run.ended_unix_ns,
        "target": plain_json(dict(run.target)),
        "config": plain_json(dict(run.config)),
        "seed": run.seed,
        "version": neutral.value(run.version),
    }


def render_json(run: AuditRun, *, reveal: bool = False, key: bytes = b"") -> bytes:
    """Return the object as UTF-8 text with a final newline; equal runs give equal bytes."""
    return json_text(report_json(run, reveal, key=key)).encode("utf-8")


def json_text(value: Json) -> str:
    """Return readable JSON that is valid everywhere: no NaN, what is invisible escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return neutral.json_escaped(text) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the object, as shipped."""
    text = resources.files("reports").joinpath("schemas", "report-1.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _finding(finding: Finding, redactor: Redactor) -> dict[str, Json]:
    evidence = finding.evidence
    source: Json = None
    if evidence.source is not None:
        source = {
            "request_id": neutral.own_id(evidence.source.request_id),
            "tenant": neutral.value(evidence.source.tenant),
            "side": evidence.source.side.value,
        }
    return {
        "rule": evidence.rule_id,
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "sink": {
            "request_id": neutral.own_id(evidence.sink_request_id),
            "tenant": neutral.value(evidence.sink_tenant),
        },
        "source": source,
        "excerpt": redactor.excerpt(evidence.excerpt),
        "score": plain_json(evidence.score),
        "chance": plain_json(evidence.chance),
        "q_value": plain_json(finding.q_value),
        "details": redactor.json_value(
            dict(evidence.details), plain_keys=PLAIN_DETAIL_KEYS, raw_keys=ID_DETAIL_KEYS
        ),
    }


def _bound(bound: Bound) -> dict[str, Json]:
    return {
        "stratum": neutral.value(bound.stratum),
        "requests": bound.requests,
        "detections": bound.detections,
        "sensitivity": plain_json(bound.sensitivity),
        "confidence": plain_json(bound.confidence),
        "upper": plain_json(bound.upper),
        "sent": bound.sent,
        "censored": bound.censored,
    }


def _oracle(oracle: OracleReport) -> dict[str, Json]:
    return {
        "rule": oracle.rule_id,
        "available": oracle.available,
        "reason": neutral.value(oracle.reason),
        "sensitivity": plain_json(oracle.sensitivity),
        "sensitivity_lower": plain_json(oracle.sensitivity_lower),
        "false_alarms": oracle.false_alarms,
        "trials": oracle.trials,
        "fired": oracle.fired,
        "examined": oracle.examined,
    }
