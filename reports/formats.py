"""Every report format, one line each; a renderer is imported when it is first used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvaudit.errors import UnknownNameError
from kvaudit.findings import AuditRun
from kvaudit.records import RequestRecord
from reports.events import IncidentFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """All that a report is made from; the same input gives the same bytes.

    Attributes:
        run: The judged run.
        records: Its records by request id; formats that need no text ignore them.
        key: Secret of the run's redaction tags, from `reports.redact.redaction_key`; never shown.
        reveal: Show text unredacted.
        incident: What people know of the incident, from `reports.events.read_events`.
        tenant: Markdown only: make this tenant's annex instead of the report.
    """

    run: AuditRun
    records: Mapping[str, RequestRecord] = field(default_factory=dict)
    key: bytes = b""
    reveal: bool = False
    incident: IncidentFacts | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """One way to show a run.

    Attributes:
        name: As `--format` takes it.
        render: Makes the bytes; pure.
        media_type: IANA media type.
        file_name: Default name inside a run folder.
        needs_records: Whether `ReportInput.records` is read.
    """

    name: str
    render: Callable[[ReportInput], bytes]
    media_type: str
    file_name: str
    needs_records: bool


def report_format(name: str) -> ReportFormat:
    """Return one format; raises UnknownNameError with the nearest name."""
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise UnknownNameError("report format", name, FORMATS) from None


def _html(given: ReportInput) -> bytes:
    from reports.html_report import report_html

    return report_html(
        given.run, given.records, reveal=given.reveal, key=given.key, incident=given.incident
    )


def _json(given: ReportInput) -> bytes:
    from reports.json_report import render_json

    return render_json(given.run, reveal=given.reveal, key=given.key)


def _text(given: ReportInput) -> bytes:
    from reports.text_report import summary_text

    return summary_text(given.run, reveal=given.reveal, key=given.key).encode("utf-8")


def _markdown(given: ReportInput) -> bytes:
    if given.tenant is not None:
        from reports.tenant_annex import render_annex

        return render_annex(
            given.run, given.records, given.tenant, reveal=given.reveal, key=given.key
        )
    from reports.incident_report import render_incident

    return render_incident(
        given.run, given.records, reveal=given.reveal, key=given.key, incident=given.incident
    )


def _sarif(given: ReportInput) -> bytes:
    from reports.sarif_report import render_sarif

    return render_sarif(given.run, reveal=given.reveal, key=given.key)


def _junit(given: ReportInput) -> bytes:
    from reports.junit_report import render_junit

    return render_junit(given.run, reveal=given.reveal, key=given.key)


def _csv(given: ReportInput) -> bytes:
    from reports.table_report import render_csv

    return render_csv(given.run, given.records, reveal=given.reveal, key=given.key)


def _parquet(given: ReportInput) -> bytes:
    from reports.table_report import render_parquet

    return render_parquet(given.run, given.records, reveal=given.reveal, key=given.key)


def _format(
    name: str,
    render: Callable[[ReportInput], bytes],
    media_type: str,
    file_name: str,
    *,
    needs_records: bool = False,
) -> ReportFormat:
    return ReportFormat(
        name=name, render=render, media_type=media_type, file_name=file_name,
        needs_records=needs_records,
    )  # fmt: skip


FORMATS: dict[str, ReportFormat] = {
    made.name: made
    for made in (
        _format("html", _html, "text/html", "report.html", needs_records=True),
        _format("json", _json, "application/json", "report.json"),
        _format("text", _text, "text/plain", "report.txt"),
        _format("markdown", _markdown, "text/markdown", "incident.md", needs_records=True),
        _format("sarif", _sarif, "application/sarif+json", "report.sarif"),
        _format("junit", _junit, "application/xml", "report.junit.xml"),
        _format("csv", _csv, "text/csv", "findings.csv", needs_records=True),
        _format("parquet", _parquet, "application/vnd.apache.parquet", "findings.parquet",
                needs_records=True),
    )
}  # fmt: skip
