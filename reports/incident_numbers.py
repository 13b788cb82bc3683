"""Numbers of an incident that hold: lower and upper, responses, receivers and sources apart.

The lower number is what evidence shows. The upper one adds what might belong to it: weaker
candidates and what could not be examined. Neither counts a leak that leaves no trace.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvaudit.findings import AuditRun, Evidence, Kind
from kvaudit.records import RequestRecord
from reports.wording import FOREIGN_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A count with its limits.

    Attributes:
        lower: What evidence shows.
        upper: What cannot be ruled out; None if nobody can tell.
        because: Why upper is above lower, or unknown; "" if they are equal.
    """

    lower: int
    upper: int | None
    because: str = ""


def responses(run: AuditRun) -> Range:
    """Return how many responses hold foreign text."""
    lower = sinks(run)
    weaker = {
        finding.evidence.sink_request_id
        for finding in run.findings
        if finding.kind in (Kind.CORRUPTION, Kind.ACCOUNTING)
    } | {evidence.sink_request_id for evidence in run.candidates}
    more, blind = len(weaker - lower), sum(item.count for item in run.not_examinable)
    parts = []
    if more:
        parts.append(f"{more:,} more show traces or weak candidates only")
    if blind:
        parts.append(f"{blind:,} could not be examined")
    return Range(lower=len(lower), upper=len(lower) + more + blind, because=" and ".join(parts))


def receiving_tenants(run: AuditRun, records: Mapping[str, RequestRecord]) -> Range:
    """Return how many tenants received foreign text."""
    lower = {evidence.sink_tenant for evidence in _foreign(run)}
    weaker = {finding.evidence.sink_tenant for finding in run.findings if _is_trace(finding.kind)}
    weaker |= {evidence.sink_tenant for evidence in run.candidates}
    blind = sum(item.count for item in run.not_examinable)
    unseen = [record for record in records.values() if not record.is_examined]
    weaker |= {record.tenant for record in unseen}
    if blind > len(unseen):
        return Range(
            lower=len(lower),
            upper=None,
            because="the run does not tell the tenants of "
            f"{blind - len(unseen):,} unexamined request{'s' * (blind - len(unseen) > 1)}",
        )
    more = len(weaker - lower)
    because = f"{more:,} more have traces, candidates or unexamined requests only" if more else ""
    return Range(lower=len(lower), upper=len(lower) + more, because=because)


def source_tenants(run: AuditRun) -> Range:
    """Return from how many tenants the text came."""
    lower = {evidence.source.tenant for evidence in _foreign(run) if evidence.source}
    others = {tenant for evidence in _foreign(run) for tenant in other_sources(evidence)}
    sourced = {evidence.sink_request_id for evidence in _foreign(run) if evidence.source}
    unnamed = len(sinks(run) - sourced)
    if unnamed:
        because = f"for {unnamed:,} of the responses no source is named"
        return Range(lower=len(lower), upper=None, because=because)
    more = len(others - lower)
    because = f"{more:,} more hold the same text and could be its source" if more else ""
    return Range(lower=len(lower), upper=len(lower) + more, because=because)


def sinks(run: AuditRun) -> set[str]:
    """Return the requests whose answers hold foreign text."""
    return {evidence.sink_request_id for evidence in _foreign(run)}


def other_sources(evidence: Evidence) -> Iterator[str]:
    """Yield the tenants of further possible sources, as `details.other_sources` names them."""
    listed = evidence.details.get("other_sources")
    for entry in listed if isinstance(listed, list) else []:
        tenant = entry.get("tenant") if isinstance(entry, dict) else None
        if isinstance(tenant, str):
            yield tenant


def _foreign(run: AuditRun) -> list[Evidence]:
    return [finding.evidence for finding in run.findings if finding.kind in FOREIGN_KINDS]


def _is_trace(kind: Kind) -> bool:
    return kind in (Kind.CORRUPTION, Kind.ACCOUNTING)
