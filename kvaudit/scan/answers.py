"""The incoherence rules over all answers of a scan, batch by batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from kvaudit.detect.incoherence import find_incoherence, is_empty_answer
from kvaudit.findings import Evidence, Span
from kvaudit.forensics.metadata import EVIDENCE_MAX, RuleOutcome

_COLUMNS = (
    "record_id", "request_id", "tenant_id", "is_primary", "is_partner", "start_time", "input_text",
    "output_text", "output_reasoning_text", "output_tool_text", "output_content_state",
    "gen_ai_usage_output_tokens", "gen_ai_response_finish_reasons", "http_response_status_code",
)  # fmt: skip
_BATCH_ROWS = 2_000
_RULES = ("KVA402", "KVA403", "KVA404", "KVA405")
_EXCERPT_CHARS = 200


def incoherence_outcomes(table: Path) -> list[RuleOutcome]:
    """Apply KVA402-405 to every answer of the table."""
    made: dict[str, list[Evidence]] = {rule_id: [] for rule_id in _RULES}
    fired = dict.fromkeys(_RULES, 0)
    examined = 0
    for row in _answers(table):
        examined += 1
        found = _evidence(row)
        if found is not None:
            fired[found.rule_id] += 1
            if len(made[found.rule_id]) < EVIDENCE_MAX:
                made[found.rule_id].append(found)
    return [
        RuleOutcome(
            rule_id=rule_id, evidence=tuple(made[rule_id]), fired=fired[rule_id],
            examined=examined, reason="" if examined else "no answer's text is logged",
        )
        for rule_id in _RULES
    ]  # fmt: skip


def _answers(table: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(table)
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(_COLUMNS)):
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame), "a batch becomes a frame"
        kept = frame.filter(
            pl.col("is_primary"),
            ~pl.col("is_partner"),
            pl.col("http_response_status_code").fill_null(200) < 400,
            pl.col("output_content_state") == "full",
        )
        yield from kept.iter_rows(named=True)


def _evidence(row: dict[str, Any]) -> Evidence | None:
    text = row["output_text"] or ""
    other = "\n".join(filter(None, (row["output_reasoning_text"], row["output_tool_text"])))
    details = {"record_id": row["record_id"]}
    if is_empty_answer(
        text, other_text=other, produced=row["gen_ai_usage_output_tokens"],
        finish_reasons=tuple(row["gen_ai_response_finish_reasons"] or ()),
    ):  # fmt: skip
        return Evidence(
            rule_id="KVA405", sink_request_id=row["request_id"] or row["record_id"],
            sink_tenant=row["tenant_id"] or "", score=float(row["gen_ai_usage_output_tokens"]),
            details={**details, "completion_tokens": row["gen_ai_usage_output_tokens"]},
        )  # fmt: skip
    found = find_incoherence(text, row["input_text"] or "")
    if found is None:
        return None
    return Evidence(
        rule_id=found.rule_id, sink_request_id=row["request_id"] or row["record_id"],
        sink_tenant=row["tenant_id"] or "", score=round(found.score, 4),
        sink_span=Span(start=found.start, end=found.end),
        excerpt=text[found.start : found.end][:_EXCERPT_CHARS],
        details={**details, "why": found.why},
    )  # fmt: skip
