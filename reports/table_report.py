"""Findings as a table: CSV that a spreadsheet can open without running it, and Parquet.

The first row is the run itself, so that a table without findings still says whether that is
`clean` or `inconclusive`.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from kvaudit.findings import AuditRun, Finding
from kvaudit.records import RequestRecord
from reports import neutral
from reports.instants import time_text
from reports.json_report import PLAIN_DETAIL_KEYS
from reports.redact import Redactor, plain_json
from reports.wording import headline, rule_name

# What a spreadsheet takes for the start of a formula, full-width forms included (OWASP, CSV
# injection); a cell that starts so gets an apostrophe in front.
_FORMULA_STARTS = tuple("=+-@|%\t\r\n＝＋－＠")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table; None is an empty cell.

    Attributes:
        row: `run` for the first, `finding` for the others.
        sink_request_id, source_request_id: As the log has them, not made printable.
        sent_at: When the sink was sent, ISO 8601.
        text: Redacted excerpt of a finding; the headline of the run.
        details: JSON.
    """

    row: str
    run_id: str
    verdict: str
    rule: str | None = None
    rule_name: str | None = None
    kind: str | None = None
    severity: str | None = None
    sink_request_id: str | None = None
    sink_tenant: str | None = None
    source_request_id: str | None = None
    source_tenant: str | None = None
    source_side: str | None = None
    sent_at: str | None = None
    score: float | None = None
    chance: float | None = None
    q_value: float | None = None
    text: str = ""
    details: str = "{}"


def rows(
    run: AuditRun, records: Mapping[str, RequestRecord], *, reveal: bool = False, key: bytes = b""
) -> Iterator[Row]:
    """Yield the row of the run, then one for each finding, in the order of the run."""
    redactor = Redactor(key=key, reveal=reveal)
    run_id, verdict = neutral.value(run.run_id), run.verdict.value
    reasons = json.dumps({"reasons": [neutral.value(r) for r in run.reasons]}, ensure_ascii=False)
    yield Row(row="run", run_id=run_id, verdict=verdict, text=headline(run), details=reasons)
    for finding in run.findings:
        yield _finding_row(finding, run_id, verdict, records, redactor)


def render_csv(
    run: AuditRun, records: Mapping[str, RequestRecord], *, reveal: bool = False, key: bytes = b""
) -> bytes:
    """Return the table as RFC 4180 CSV in UTF-8."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    for row in rows(run, records, reveal=reveal, key=key):
        writer.writerow([_cell(_printable(name, getattr(row, name))) for name in names])
    return out.getvalue().encode("utf-8")


def render_parquet(
    run: AuditRun, records: Mapping[str, RequestRecord], *, reveal: bool = False, key: bytes = b""
) -> bytes:
    """Return the table as Parquet; the same run gives the same bytes with the same polars."""
    import polars as pl  # costs more than all other formats together

    numbers = ("score", "chance", "q_value")
    types = {
        field.name: pl.Float64() if field.name in numbers else pl.String() for field in fields(Row)
    }
    table = pl.DataFrame(
        [asdict(row) for row in rows(run, records, reveal=reveal, key=key)], schema=types
    )
    out = io.BytesIO()
    table.write_parquet(out, compression="zstd")
    return out.getvalue()


def safe_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text


def _printable(name: str, value: str | float | None) -> str | float | None:
    is_id = name in ("sink_request_id", "source_request_id")
    return neutral.value(value) if is_id and isinstance(value, str) else value


def _utf8(text: str) -> str:
    """Return what Parquet can hold: lone surrogates, which are no text, by their escapes."""
    return neutral.own_id(text).encode("utf-8", "backslashreplace").decode("utf-8")


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return safe_cell(value) if isinstance(value, str) else repr(value)


def _finding_row(
    finding: Finding,
    run_id: str,
    verdict: str,
    records: Mapping[str, RequestRecord],
    redactor: Redactor,
) -> Row:
    evidence, source = finding.evidence, finding.evidence.source
    record = records.get(evidence.sink_request_id)
    details = redactor.json_value(dict(evidence.details), plain_keys=PLAIN_DETAIL_KEYS)
    return Row(
        row="finding",
        run_id=run_id,
        verdict=verdict,
        rule=neutral.name(evidence.rule_id),
        rule_name=rule_name(evidence.rule_id),
        kind=finding.kind.value,
        severity=finding.severity.value,
        sink_request_id=_utf8(evidence.sink_request_id),
        sink_tenant=neutral.value(evidence.sink_tenant),
        source_request_id=_utf8(source.request_id) if source else None,
        source_tenant=neutral.value(source.tenant) if source else None,
        source_side=source.side.value if source else None,
        sent_at=(time_text(record.sent_unix_ns) or None) if record else None,
        score=_number(evidence.score),
        chance=_number(evidence.chance),
        q_value=_number(finding.q_value),
        text=redactor.excerpt(evidence.excerpt),
        details=json.dumps(details, ensure_ascii=False, allow_nan=False),
    )


def _number(value: float | None) -> float | None:
    shown = plain_json(value)
    return float(shown) if isinstance(shown, (int, float)) else None
