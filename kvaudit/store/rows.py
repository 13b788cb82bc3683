"""Records and runs as rows of the database, and back.

The database holds UTF-8 and 64-bit integers. What a hostile server sends may be neither: a lone
surrogate becomes U+FFFD here and a larger integer the largest that fits. The journal keeps both as
they came.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvaudit.canary import Canary
from kvaudit.findings import AuditRun, Evidence, Finding, Verdict
from kvaudit.records import RequestRecord
from kvaudit.store.codec import CodecError, from_json, to_json
from kvaudit.store.journal import JournalContents
from kvaudit.target import PlannedRequest

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

Row = dict[str, Any]


def record_row(record: RequestRecord, position: int) -> Row:
    """Return one row of `requests`."""
    row = {name: getattr(record, name) for name in RequestRecord.__dataclass_fields__}
    row["position"] = position
    row["messages"] = [
        {"role": message.role, "content": message.content} for message in record.messages
    ]
    row["canaries"] = [_canary_struct(canary) for canary in record.canaries]
    row["headers"] = [{"name": name, "value": value} for name, value in record.headers]
    return _storable_row(row)


def record_of_row(row: Mapping[str, Any]) -> RequestRecord:
    """Return the record of one row; raises CodecError where a value does not fit."""
    data = {name: value for name, value in row.items() if value is not None}
    try:
        data["headers"] = [[header["name"], header["value"]] for header in row["headers"]]
    except (KeyError, TypeError):
        raise CodecError("a row without headers") from None
    return from_json(RequestRecord, data)


def twin_row(twin: PlannedRequest) -> Row:
    """Return one row of `twins`."""
    return _storable_row(
        {
            "request_id": twin.request_id,
            "tenant": twin.tenant,
            "scenario": twin.scenario,
            "stratum": twin.stratum,
            "role": twin.role,
            "block": twin.block,
            "prompt_text": twin.prompt_text,
            "canary_labels": [canary.label for canary in twin.canaries],
        }
    )


def canary_rows(records: Iterable[RequestRecord], twins: Iterable[PlannedRequest]) -> list[Row]:
    """Return the rows of `canaries`: one for each label, with the requests that hold it."""
    rows: dict[str, Row] = {}
    sent = [(held.request_id, held.canaries, True) for held in records]
    for request_id, canaries, is_sent in [
        *sent,
        *((twin.request_id, twin.canaries, False) for twin in twins),
    ]:
        for canary in canaries:
            row = rows.setdefault(canary.label, _canary_row(canary, is_sent=is_sent))
            row["request_ids"].append(request_id)
    return [_storable_row(row) for row in rows.values()]


def run_row(contents: JournalContents, run: AuditRun | None) -> Row:
    """Return the one row of `run`; judged columns stay null while there is no verdict."""
    header = contents.header
    row: Row = {
        "notes": [to_json(note) for note in contents.notes],
        "damaged_lines": contents.damaged_lines,
    }
    if header is not None:
        row |= {
            "run_id": header.run_id, "command": header.command, "version": header.version,
            "seed": header.seed, "repeat": header.repeat,
            "started_unix_ns": header.started_unix_ns, "config": _json_text(header.config),
            "target": _json_text(header.facts), "secret": header.secret,
        }  # fmt: skip
    if run is not None:
        row |= {
            "run_id": run.run_id, "command": run.command, "version": run.version,
            "seed": run.seed, "repeat": run.repeat, "started_unix_ns": run.started_unix_ns,
            "ended_unix_ns": run.ended_unix_ns, "verdict": run.verdict.value,
            "reasons": list(run.reasons), "target": _json_text(run.target),
            "config": _json_text(run.config), "counts": _json_text(run.counts),
            "not_examinable": [
                {"reason": held.reason, "count": held.count} for held in run.not_examinable
            ],
        }  # fmt: skip
    return _storable_row(row)


def finding_row(finding: Finding, position: int) -> Row:
    """Return one row of `findings`."""
    return candidate_row(finding.evidence, position) | {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "q_value": finding.q_value,
    }


def candidate_row(evidence: Evidence, position: int) -> Row:
    """Return one row of `candidates`."""
    source, span = evidence.source, evidence.sink_span
    return _storable_row(
        {
            "position": position,
            "rule_id": evidence.rule_id,
            "sink_request_id": evidence.sink_request_id,
            "sink_tenant": evidence.sink_tenant,
            "source": source
            and {
                "request_id": source.request_id,
                "tenant": source.tenant,
                "side": source.side.value,
                "span": source.span and {"start": source.span.start, "end": source.span.end},
            },
            "sink_span": span and {"start": span.start, "end": span.end},
            "excerpt": evidence.excerpt,
            "score": evidence.score,
            "chance": evidence.chance,
            "details": _json_text(evidence.details),
        }
    )


def plain_row(value: Any) -> Row:
    """Return a dataclass of plain values as a row: a Bound, an OracleReport."""
    return _storable_row({name: getattr(value, name) for name in value.__dataclass_fields__})


def finding_of_row(row: Mapping[str, Any]) -> Finding:
    """Return the Finding of one row."""
    return from_json(
        Finding,
        {
            "evidence": _evidence_data(row),
            "kind": row["kind"],
            "severity": row["severity"],
            "q_value": row["q_value"],
        },
    )


def evidence_of_row(row: Mapping[str, Any]) -> Evidence:
    """Return the Evidence of one row of `candidates`."""
    return from_json(Evidence, _evidence_data(row))


def run_of_rows(row: Mapping[str, Any], parts: Mapping[str, list[Row]]) -> AuditRun | None:
    """Return the judged run; None while there is no verdict.

    Args:
        row: The one row of `run`.
        parts: Rows of `findings`, `candidates`, `bounds` and `oracles`.
    """
    if row["verdict"] is None:
        return None
    data = {name: value for name, value in row.items() if value is not None}
    for name in ("target", "config", "counts"):
        data[name] = _json_value(row[name])
    run = from_json(
        AuditRun,
        data | {"bounds": parts["bounds"], "oracles": parts["oracles"]},
    )
    assert isinstance(run.verdict, Verdict)
    return AuditRun(
        **{name: getattr(run, name) for name in AuditRun.__dataclass_fields__}
        | {
            "findings": tuple(finding_of_row(held) for held in parts["findings"]),
            "candidates": tuple(evidence_of_row(held) for held in parts["candidates"]),
        }
    )


def _evidence_data(row: Mapping[str, Any]) -> Row:
    names = (
        "rule_id", "sink_request_id", "sink_tenant", "source", "sink_span", "excerpt", "score",
        "chance",
    )  # fmt: skip
    return {name: row[name] for name in names} | {"details": _json_value(row["details"])}


def _canary_struct(canary: Canary) -> Row:
    return {
        "label": canary.label,
        "tenant": canary.tenant,
        "words": list(canary.words),
        "code": canary.code,
        "word_bits": canary.word_bits,
        "code_symbol_bits": canary.code_symbol_bits,
    }


def _canary_row(canary: Canary, *, is_sent: bool) -> Row:
    return {
        "label": canary.label,
        "tenant": canary.tenant,
        "phrase": canary.phrase,
        "code": canary.code,
        "entropy_bits": canary.entropy_bits,
        "is_sent": is_sent,
        "request_ids": [],
    }


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(to_json(value), allow_nan=False)


def _json_value(text: Any) -> Any:
    try:
        return {} if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise CodecError("a column holds no JSON") from None


def _storable_row(row: Row) -> Row:
    return {name: _storable(value) for name, value in row.items()}


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(INT64_MIN, min(value, INT64_MAX))
    if isinstance(value, dict):
        return {name: _storable(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(held) for held in value]
    return value


def _utf8(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
