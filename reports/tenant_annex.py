"""The annex for one tenant: its own rows and its own text, and nobody else's name or text.

As receiver it learns which of its responses are affected, and not what they held: that text is
another tenant's. As source it sees its own text, where it stood in its own request.
"""

from collections.abc import Mapping

from kvaudit.errors import UnknownNameError
from kvaudit.findings import AuditRun, Finding, Side, Span
from kvaudit.records import RequestRecord
from reports.instants import time_text
from reports.markdown import code, table
from reports.redact import Redactor
from reports.wording import FOREIGN_KINDS, counted, rule_name, sorted_findings


def render_annex(
    run: AuditRun,
    records: Mapping[str, RequestRecord],
    tenant: str,
    *,
    reveal: bool = False,
    key: bytes = b"",
) -> bytes:
    """Return the annex of one tenant as Markdown, UTF-8.

    Raises:
        UnknownNameError: No request of the run is this tenant's; an empty annex would read as
            good news.
    """
    known = {record.tenant for record in records.values()} | set(tenants_concerned(run))
    if tenant not in known:
        raise UnknownNameError("tenant in this run", tenant, known)
    redactor = Redactor(key=key, reveal=reveal)
    parts = [
        f"# Annex for tenant {code(tenant)}",
        f"Run {code(run.run_id)}, kvaudit {code(run.version)}.",
        _received(run, records, tenant),
        _given_away(run, records, tenant, redactor),
        "Other tenants are not named, and their texts are not shown. A request that is not listed "
        "shows no evidence; that is not proof that nothing happened.",
    ]
    return ("\n\n".join(parts) + "\n").encode("utf-8")


def tenants_concerned(run: AuditRun) -> tuple[str, ...]:
    """Return every tenant that an annex can be made for, sorted."""
    found = {finding.evidence.sink_tenant for finding in _foreign(run)}
    found |= {f.evidence.source.tenant for f in _foreign(run) if f.evidence.source}
    return tuple(sorted(found))


def _received(run: AuditRun, records: Mapping[str, RequestRecord], tenant: str) -> str:
    by_sink: dict[str, set[str]] = {}
    for finding in _foreign(run):
        if finding.evidence.sink_tenant == tenant:
            sink = finding.evidence.sink_request_id
            by_sink.setdefault(sink, set()).add(finding.evidence.rule_id)
    title = "## Your responses that hold another tenant's text"
    if not by_sink:
        return f"{title}\n\nNo evidence of any was found in what was examined."
    rows = [
        (
            code(sink),
            _sent(records.get(sink)),
            ", ".join(f"{code(rule_id)} {rule_name(rule_id)}" for rule_id in sorted(rules)),
        )
        for sink, rules in by_sink.items()
    ]
    told = f"{counted(len(rows), 'response')}. Please delete copies and do not use what they hold."
    return f"{title}\n\n{told}\n\n" + table(("Request", "Sent (UTC)", "Established by"), rows)


def _given_away(
    run: AuditRun, records: Mapping[str, RequestRecord], tenant: str, redactor: Redactor
) -> str:
    seen: set[tuple[str, str]] = set()
    rows: list[tuple[str, ...]] = []
    for finding in _foreign(run):
        source = finding.evidence.source
        if source is None or source.tenant != tenant:
            continue
        row = (
            code(source.request_id),
            _sent(records.get(source.request_id)),
            source.side.value,
            _own_text(finding, records.get(source.request_id), tenant, redactor),
        )
        if (source.request_id, row[-1]) not in seen:
            seen.add((source.request_id, row[-1]))
            rows.append(row)
    title = "## Your text that another tenant received"
    if not rows:
        return f"{title}\n\nNo evidence of any was found in what was examined."
    requests = len({request_id for request_id, _ in seen})
    header = ("Your request", "Sent (UTC)", "Side", "Text")
    return f"{title}\n\nFrom {counted(requests, 'request')}.\n\n" + table(header, rows)


def _own_text(
    finding: Finding, record: RequestRecord | None, tenant: str, redactor: Redactor
) -> str:
    """Return the shared part of the tenant's own record, and of no other text whatsoever."""
    source = finding.evidence.source
    if record is None or record.tenant != tenant or source is None or source.span is None:
        return "(not kept in the run)"
    text = record.own_context if source.side is Side.PROMPT else record.output_text or ""
    span = Span(start=source.span.start, end=min(source.span.end, len(text)))
    if span.start >= span.end:
        return "(not kept in the run)"
    return code(redactor.excerpt(text[span.start : span.end]))


def _sent(record: RequestRecord | None) -> str:
    return (time_text(record.sent_unix_ns) if record else "") or "not known"


def _foreign(run: AuditRun) -> list[Finding]:
    return [f for f in sorted_findings(run.findings) if f.kind in FOREIGN_KINDS]
