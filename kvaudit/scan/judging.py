"""What a scan may conclude: evidence of all rules to findings and a verdict. Pure.

An exposure or misdelivery under its bar convicts; so do two different families on one request. One
family alone is `inconclusive`. What the numbers merely note (a cut prompt, a shared cache, a cache
header) is listed and bars nothing. Incoherence never convicts.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvaudit.detect.scored.decoys import EXPECTED_BAR, Q_BAR
from kvaudit.findings import (
    Evidence,
    Family,
    Finding,
    Kind,
    NotExaminable,
    OracleReport,
    Severity,
    Verdict,
)  # fmt: skip
from kvaudit.forensics.metadata import RuleOutcome
from kvaudit.rules import RULES, families_text, rule
from kvaudit.scan.coverage import Coverage

_CONVICTING = frozenset({Kind.EXPOSURE, Kind.MISDELIVERY})
_INCOHERENCE = frozenset({"KVA402", "KVA403", "KVA404", "KVA405"})
_NEVER_CONVICT = frozenset({"KVA501", "KVA502", "KVA503"})
CHANCE_BAR = 1e-6

_Families = dict[str, dict[Family, set[str]]]  # by record: rules that speak against it, by family


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJudgement:
    """What the judge of scans says; fields as in AuditRun."""

    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    candidates: tuple[Evidence, ...]
    oracles: tuple[OracleReport, ...]
    not_examinable: tuple[NotExaminable, ...]


def judge_scan(
    outcomes: Sequence[RuleOutcome],
    coverage: Coverage,
    *,
    min_coverage: float,
    obstacles: Sequence[str] = (),
    q_values: dict[int, float] | None = None,
) -> ScanJudgement:
    """Judge one scan.

    Args:
        outcomes: What every rule found.
        coverage: What of the log could be examined.
        min_coverage: Share of answers that a clean verdict needs.
        obstacles: What else stands between this scan and a clean verdict, in words.
        q_values: Share of false findings at an evidence's score, by its `id()`.
    """
    evidence = [item for outcome in outcomes for item in outcome.evidence]
    families = _families(evidence)
    passed: list[Finding] = []
    below: list[Evidence] = []
    for item in evidence:
        q_value = (q_values or {}).get(id(item))
        if _passes(item, q_value):
            passed.append(_finding(item, families, q_value))
        else:
            below.append(item)
    convictions = [*_exposures(passed), *_pairs(families)]
    doubts = [*_alone(passed, families), *_incoherent(passed), *obstacles,
              *_uncovered(coverage, min_coverage)]  # fmt: skip
    if convictions:
        verdict, reasons = Verdict.CONTAMINATED, convictions
    elif doubts:
        verdict, reasons = Verdict.INCONCLUSIVE, doubts
    else:
        verdict, reasons = Verdict.CLEAN, [_clean_reason(coverage)]
    return ScanJudgement(
        verdict=verdict,
        reasons=tuple(reasons),
        findings=tuple(sorted(passed, key=_rank)),
        candidates=tuple(sorted(below, key=lambda item: -item.score)),
        oracles=tuple(_oracle(outcome) for outcome in outcomes),
        not_examinable=(*coverage.missing, *coverage.promptless, *coverage.apart),
    )


def _is_explained(item: Evidence) -> bool:
    return bool(item.details.get("explained_by"))


def _passes(item: Evidence, q_value: float | None) -> bool:
    """Whether the evidence is above its rule's threshold."""
    if _is_explained(item):
        return False
    if rule(item.rule_id).kind in _CONVICTING:
        if q_value is not None:
            return q_value <= Q_BAR
        expected = item.details.get("expected_accidents")
        if isinstance(expected, int | float):
            return expected <= EXPECTED_BAR and not item.details.get("is_weak")
        return item.chance is not None and item.chance <= CHANCE_BAR
    return True


def _is_note(item: Evidence) -> bool:
    """Whether the evidence is a note of the accounts: far off, yet not absurd."""
    return item.rule_id == "KVA301" and not item.details.get("is_tiny")


def _families(evidence: Iterable[Evidence]) -> _Families:
    """Return which families speak against each request; notes and explained ones do not."""
    found: _Families = defaultdict(lambda: defaultdict(set))
    for item in evidence:
        family = RULES[item.rule_id].family
        if family is not None and not _is_explained(item) and not _is_note(item):
            found[_sink(item)][family].add(item.rule_id)
    return found


def _sink(item: Evidence) -> str:
    return str(item.details.get("record_id") or item.sink_request_id)


def _finding(item: Evidence, families: _Families, q_value: float | None) -> Finding:
    known = rule(item.rule_id)
    severity = known.severity
    pair = sorted(family.value for family in families.get(_sink(item), ()))
    if len(pair) > 1 and known.family is not None:
        severity = Severity.CRITICAL
        item = replace(item, details={**item.details, "families": list(pair)})
    elif _is_note(item):
        severity = Severity.WARNING
    kind = known.kind
    if item.rule_id == "KVA503" and item.details.get("text_in_answer"):
        kind = Kind.MISDELIVERY
        severity = Severity.ERROR
    return Finding(evidence=item, kind=kind, severity=severity, q_value=q_value)


def _exposures(passed: Iterable[Finding]) -> list[str]:
    sinks: dict[str, set[str]] = defaultdict(set)
    for finding in passed:
        if finding.kind in _CONVICTING and finding.evidence.rule_id not in _NEVER_CONVICT:
            sinks[finding.evidence.rule_id].add(_sink(finding.evidence))
    return [
        f"{rule_id}: {RULES[rule_id].summary} ({_times(len(held), 'answer')})"
        for rule_id, held in sorted(sinks.items())
    ]


def _pairs(families: _Families) -> list[str]:
    alike: dict[tuple[str, ...], list[set[str]]] = defaultdict(list)  # by families: rules, each
    for found in families.values():
        if len(found) > 1:
            alike[tuple(sorted(found))].append(set().union(*found.values()))
    return [
        f"independent families on one request: {families_text(set().union(*rules))}"
        f" ({_times(len(rules), 'answer')})"
        for _, rules in sorted(alike.items())
    ]


def _alone(passed: Iterable[Finding], families: _Families) -> list[str]:
    sinks: dict[str, set[str]] = defaultdict(set)
    for finding in passed:
        item = finding.evidence
        counts = RULES[item.rule_id].family is not None and not _is_note(item)
        if counts and len(families.get(_sink(item), ())) < 2:
            sinks[item.rule_id].add(_sink(item))
    if not sinks:
        return []
    total = set().union(*sinks.values())
    return [f"one family only: {' and '.join(sorted(sinks))} ({_times(len(total), 'answer')})"]


def _incoherent(passed: Iterable[Finding]) -> list[str]:
    sinks = {_sink(f.evidence) for f in passed if f.evidence.rule_id in _INCOHERENCE}
    return [f"corrupt, no source ({_times(len(sinks), 'answer')})"] if sinks else []


def _uncovered(coverage: Coverage, min_coverage: float) -> list[str]:
    share, prompt_share = coverage.share, coverage.prompt_share
    if share is None or prompt_share is None:
        return ["nothing to examine: no record that should carry an answer"]
    short = []
    if share < min_coverage:
        short.append(
            f"only {share:.1%} of {coverage.expected} answers are examinable,"
            f" {min_coverage:.1%} are asked for: {_counted(coverage.missing)}"
        )
    if prompt_share < min_coverage:
        short.append(
            f"only {prompt_share:.1%} of {coverage.expected} prompts can be read,"
            f" {min_coverage:.1%} are asked for: {_counted(coverage.promptless)}"
        )
    return short


def _counted(items: Sequence[NotExaminable]) -> str:
    return ", ".join(f"{item.count} x {item.reason}" for item in items[:3])


def _clean_reason(coverage: Coverage) -> str:
    return f"no finding in {coverage.examined} examined answers of {coverage.expected}"


_SEVERITY_ORDER = list(Severity)


def _rank(finding: Finding) -> tuple[int, str, float, str]:
    item = finding.evidence
    order = _SEVERITY_ORDER.index(finding.severity)
    return order, item.rule_id, -item.score, item.sink_request_id


def _oracle(outcome: RuleOutcome) -> OracleReport:
    return OracleReport(
        rule_id=outcome.rule_id,
        available=not outcome.reason,
        reason=outcome.reason or outcome.note,
        fired=outcome.fired,
        examined=outcome.examined,
    )


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
