"""What a run says, in sentences that every format shares.

The sentences keep responses, receiving tenants and source tenants apart, and never turn "no
evidence of" into "did not happen".
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvaudit.findings import (
    AuditRun,
    Bound,
    Evidence,
    Finding,
    Kind,
    OracleReport,
    Side,
    Verdict,
)  # fmt: skip
from kvaudit.rules import RULES
from reports import neutral

VERDICT_WORDS = {
    Verdict.CLEAN: "Clean",
    Verdict.INCONCLUSIVE: "Inconclusive",
    Verdict.AT_RISK: "At risk",
    Verdict.CONTAMINATED: "Contaminated",
}
KIND_WORDS = {
    Kind.EXPOSURE: "another tenant's text is in the answer",
    Kind.MISDELIVERY: "the answer belongs to another request",
    Kind.CORRUPTION: "the answer was computed from the wrong state; no source text is visible",
    Kind.ACCOUNTING: "the server's own numbers contradict each other",
    Kind.SHARING: "a cache is shared across tenants",
    Kind.HAZARD: "a configuration or version known to leak",
}
FOREIGN_KINDS = frozenset({Kind.EXPOSURE, Kind.MISDELIVERY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the findings amount to; a response is not a victim.

    Attributes:
        responses: Distinct sink requests with foreign text, or that got another's answer.
        receiving, sources: Distinct tenants that received it, and that it came from.
        unattributed: Such responses for which no finding names a source.
        traces: Further sink requests whose findings show no foreign text.
        examined: Examined requests of all strata; None if the run counts none.
    """

    responses: int
    receiving: int
    sources: int
    unattributed: int
    traces: int
    examined: int | None


def tally(run: AuditRun) -> Tally:
    """Count responses, receiving and source tenants; hazards and sharing are not counted."""
    seen = [finding.evidence for finding in run.findings if finding.kind in FOREIGN_KINDS]
    sinks = {evidence.sink_request_id for evidence in seen}
    attributed = {evidence.sink_request_id for evidence in seen if evidence.source}
    traces = {
        finding.evidence.sink_request_id
        for finding in run.findings
        if finding.kind in (Kind.CORRUPTION, Kind.ACCOUNTING)
    }
    return Tally(
        responses=len(sinks),
        receiving=len({evidence.sink_tenant for evidence in seen}),
        sources=len({evidence.source.tenant for evidence in seen if evidence.source}),
        unattributed=len(sinks - attributed),
        traces=len(traces - sinks),
        examined=sum(bound.requests for bound in run.bounds) if run.bounds else None,
    )


def headline(run: AuditRun) -> str:
    """Return what was seen, in one sentence."""
    if run.verdict is Verdict.CLEAN and run.command == "preflight":
        return "No known hazard of severity critical or error holds; nothing was sent or observed."
    if run.verdict is Verdict.CLEAN:
        count = len(run.findings)
        beside = (
            f" {counted(count, 'finding')} that do{'es' * (count == 1)} not decide the verdict "
            f"{'is' if count == 1 else 'are'} listed."
            if count
            else ""
        )
        return f"No answer that was examined shows text or traces of another tenant.{beside}"
    if run.verdict is Verdict.AT_RISK:
        return (
            f"{counted(len(run.findings), 'hazard')} known to leak; nothing was sent or observed."
        )
    if run.verdict is Verdict.INCONCLUSIVE:
        why = neutral.sentence(run.reasons[0]) if run.reasons else "no reason was recorded"
        return f"This run can say neither clean nor contaminated: {why}."
    return f"{_responses(run)}."


def worth(run: AuditRun) -> str:
    """Return what the verdict is worth, in one sentence."""
    if run.verdict is Verdict.CLEAN and run.command == "preflight":
        return "It is worth what the sources say and the list of hazards knows; no answer was read."
    if run.verdict is Verdict.CLEAN:
        return _worth_of_clean(run.bounds)
    if run.verdict is Verdict.AT_RISK:
        return "The configuration allows a leak; whether one happened is for an audit or a scan."
    if run.verdict is Verdict.INCONCLUSIVE:
        return "It is no pass: what could not be examined may hold anything."
    exact = [
        finding.evidence.chance
        for finding in run.findings
        if finding.kind in FOREIGN_KINDS and finding.evidence.chance is not None
    ]
    if exact:
        return (
            "One such answer decides; the strongest finding would be an accident with a chance of "
            f"{chance_words(min(exact))} in the whole run."
        )
    return (
        "Independent oracles that fail for different reasons failed on the same request; "
        "the findings name them."
    )


def finding_sentence(finding: Finding) -> str:
    """Return who received what from whom, in one sentence."""
    evidence = finding.evidence
    request_id, tenant = neutral.name(evidence.sink_request_id), neutral.name(evidence.sink_tenant)
    sink = f"request {request_id} of tenant {tenant}"
    if finding.kind is Kind.HAZARD:
        return f"Hazard at {request_id}: {KIND_WORDS[finding.kind]}."
    if evidence.source is None:
        return f"In {sink}, {KIND_WORDS[finding.kind]}."
    source = evidence.source
    side = "prompt" if source.side is Side.PROMPT else "answer"
    return (
        f"In the answer to {sink} stands text from the {side} of request "
        f"{neutral.name(source.request_id)} of tenant {neutral.name(source.tenant)}."
    )


def oracle_state(oracle: OracleReport) -> str:
    """Return `fired`, `silent`, `not applied` or `not available`."""
    if not oracle.available:
        return "not available"
    if oracle.fired:
        return "fired"
    return "silent" if oracle.examined else "not applied"


def oracle_sentence(oracle: OracleReport) -> str:
    """Return how one oracle did, in one sentence without its name."""
    if not oracle.available:
        return f"not available: {neutral.sentence(oracle.reason) or 'no reason was recorded'}"
    examined = counted(oracle.examined, "request")
    parts = [f"on {oracle.fired} of {examined}" if oracle.fired else f"on {examined}"]
    if oracle.sensitivity is None:
        parts.append("sensitivity not measured")
    else:
        lower = oracle.sensitivity_lower
        at_least = "" if lower is None else f", at least {share(lower)}"
        parts.append(f"sensitivity {share(oracle.sensitivity)}{at_least}")
    if oracle.false_alarms is None:
        parts.append("false alarms not measured")
    else:
        parts.append(
            f"{counted(oracle.false_alarms, 'false alarm')} in "
            f"{counted(oracle.trials, 'null trial')}"
        )
    if oracle.reason:
        parts.append(neutral.sentence(oracle.reason))
    return "; ".join(parts)


def bound_sentence(bound: Bound) -> str:
    """Return what one stratum is worth, in one sentence."""
    sent = f" of {bound.sent} sent" if bound.sent else ""
    censored = f", {bound.censored} ended without an answer to examine" if bound.censored else ""
    start = f"{counted(bound.requests, 'request')} examined{sent}{censored}"
    seen = f"{bound.detections} in a finding" if bound.detections else "none in a finding"
    if bound.upper is None:
        return f"{start}, {seen}; no bound, since no content oracle has a measured sensitivity."
    if bound.upper >= 1:
        rate = "no rate is ruled out" if bound.detections else "too few to bound the rate"
        return f"{start}, {seen}; {rate}."
    return (
        f"{start}, {seen}; at most {share(bound.upper, up=True)} of such requests leak, "
        f"with {share(bound.confidence)} confidence."
    )


def chance_words(chance: float) -> str:
    """Return a chance as people say it: `1 in 10^44`, `1 in 250`, `12 %`; rounded upwards."""
    if chance <= 0:
        return "under 1 in 10^300"
    if chance >= 0.1:
        return f"about {share(chance)}"
    if chance > 1e-6:
        return f"about 1 in {math.floor(1 / chance):,}"
    return f"under 1 in 10^{math.floor(-math.log10(chance) + 1e-9)}"


def evidence_chance(finding: Finding) -> str:
    """Return the chance of error of one finding, or why there is none."""
    if finding.q_value is not None:
        return f"about {share(finding.q_value)} of findings this strong are false (q-value)"
    expected = finding.evidence.details.get("expected_accidents")
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return f"about {expected:.2g} accidents this strong are expected in this log"
    if finding.evidence.chance is None:
        return "no chance of accident computed"
    return f"chance of accident {chance_words(finding.evidence.chance)}"


def share(value: float, *, up: bool = False) -> str:
    """Return a share in per cent with three figures; `up` never rounds a bound down."""
    percent = value * 100
    if percent <= 0 or not math.isfinite(percent):
        return "0 %" if percent == 0 else "unknown"
    digits = max(0, 2 - math.floor(math.log10(percent)))
    scale = 10.0**digits
    rounded = math.ceil(percent * scale - 1e-9) / scale if up else round(percent, digits)
    return f"{rounded:.{digits}f}".rstrip("0").rstrip(".") + " %" if digits else f"{rounded:.0f} %"


def counted(count: int, noun: str) -> str:
    """Return `1 request`, `2 requests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def rule_name(rule_id: str) -> str:
    """Return the rule's name; an id of a newer version has none."""
    known = RULES.get(rule_id)
    return known.name if known else "unknown rule"


def rule_summary(rule_id: str) -> str:
    """Return the rule's one sentence; an id of a newer version has none."""
    known = RULES.get(rule_id)
    return known.summary if known else "This version of kvaudit does not know the rule."


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, worst and surest first; equals keep the order of the run."""
    severities = ["critical", "error", "warning", "info"]

    def rank(finding: Finding) -> tuple[int, float, float]:
        chance = finding.evidence.chance
        return (
            severities.index(finding.severity.value),
            1.0 if chance is None else chance,
            -_finite(finding.evidence.score),
        )

    return sorted(findings, key=rank)


def strongest_per_sink(findings: Iterable[Finding]) -> list[Finding]:
    """Return the strongest finding of each sink request."""
    by_sink: dict[str, Finding] = {}
    for finding in sorted_findings(findings):
        by_sink.setdefault(finding.evidence.sink_request_id, finding)
    return list(by_sink.values())


def rules_of_sink(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """Return the rules that fired on each sink request, by request id."""
    rules: dict[str, list[str]] = {}
    for finding in findings:
        known = rules.setdefault(finding.evidence.sink_request_id, [])
        if finding.evidence.rule_id not in known:
            known.append(finding.evidence.rule_id)
    return rules


def names_source(evidence: Evidence) -> str:
    """Return the source in a few words."""
    if evidence.source is None:
        return "no source visible"
    return f"{neutral.name(evidence.source.tenant)} / {neutral.name(evidence.source.request_id)}"


def _responses(run: AuditRun) -> str:
    counts = tally(run)
    of_examined = f" of {counts.examined:,} examined" if counts.examined else ""
    if not counts.responses:
        return (
            f"{counted(counts.traces, 'response')}{of_examined} "
            f"{_were(counts.traces)} computed from the wrong state, and no source text is visible"
        )
    came = (
        f"from {counted(counts.sources, 'source tenant')}"
        if counts.sources
        else "and no source is named"
    )
    text = (
        f"{counted(counts.responses, 'response')}{of_examined} "
        f"{'holds' if counts.responses == 1 else 'hold'} what belongs to another tenant: "
        f"{counted(counts.receiving, 'tenant')} received it, {came}"
    )
    if counts.sources and counts.unattributed:
        text += f"; for {counts.unattributed} of them no source is named"
    if counts.traces:
        text += (
            f"; {counts.traces:,} more {_were(counts.traces)} computed from the wrong state "
            "and show no source text"
        )
    return text


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _worth_of_clean(bounds: tuple[Bound, ...]) -> str:
    known = [bound for bound in bounds if bound.upper is not None]
    if len(known) < len(bounds) or not known:
        return "No bound can be given, since no oracle has a measured sensitivity."
    worst = max(known, key=lambda bound: bound.upper or 0.0)
    assert worst.upper is not None, "bounds without a value were left out"
    where = (
        f"its only stratum, {neutral.name(worst.stratum)},"
        if len(known) == 1
        else f"any of its {len(known)} strata (the least sure is {neutral.name(worst.stratum)})"
    )
    return (
        f"A leak in more than {share(worst.upper, up=True)} of the requests of {where} would have "
        f"been seen with {share(worst.confidence)} confidence; "
        "of other kinds of requests this run says nothing."
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
