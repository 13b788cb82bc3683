"""Evidence and null to findings and a verdict. Pure: same records, same judgement.

The rules of conviction and of clearance stand in one place each: `_convict` and `_clear`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvaudit.detect.answers import is_right
from kvaudit.detect.catalogue import DETECTORS, Detector
from kvaudit.detect.censoring import CREDENTIAL_STATUSES, find_censored
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.failures import failure_reasons
from kvaudit.detect.incoherent import RULE_IDS as INCOHERENCE_RULES
from kvaudit.detect.reference import reference_sensitivities
from kvaudit.detect.sensitivity import Sensitivity, is_under_bar, measure_sensitivities
from kvaudit.detect.truncation import EXPLAINED_RULES, find_truncation
from kvaudit.findings import (
    Bound,
    Evidence,
    Family,
    Finding,
    Kind,
    NotExaminable,
    OracleReport,
    Verdict,
)
from kvaudit.records import Outcome, Role
from kvaudit.rules import RULES, families_text
from kvaudit.stats import clearance_p, fisher_greater, holm, leak_bound, lower_limit

GROUP_P = 1e-3  # Fisher exact: sinks against twins, losses against solo controls
EXAMINED_MIN = 7  # per planned stratum, for a clean verdict
SENSITIVITY_MIN = 0.8
CENSORED_MAX = 0.05
LOSS_RULES = ("KVA401", "KVA406")  # one loss may be the model's; a stratum of them is not
CONVICTING_KINDS = frozenset({Kind.EXPOSURE, Kind.MISDELIVERY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the judge says; fields as in AuditRun."""

    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    candidates: tuple[Evidence, ...] = ()
    bounds: tuple[Bound, ...] = ()
    oracles: tuple[OracleReport, ...] = ()
    not_examinable: tuple[NotExaminable, ...] = ()
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Everything that was worked out about a run before anything is decided.

    Attributes:
        detections: By rule.
        sensitivities: By rule, where measured by swap on paper.
        truncated: By request, why a cut of its own prompt explains it.
        censored: By request, why it says nothing about the server.
    """

    corpus: Corpus
    strata: tuple[str, ...]
    detections: Mapping[str, Detection]
    sensitivities: Mapping[str, Sensitivity]
    truncated: Mapping[str, str]
    censored: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """Evidence sorted into what passed and what did not, and why the run is guilty if it is.

    Attributes:
        listed: Findings that convict nobody and are no leak: a shared cache, answers without sense.
    """

    passed: tuple[Evidence, ...]
    listed: tuple[Evidence, ...]
    below: tuple[Evidence, ...]
    convictions: tuple[str, ...]
    doubts: tuple[str, ...]


def judge(
    corpus: Corpus,
    *,
    strata: Sequence[str],
    confidence: float,
    target_rate: float | None = None,
    stopped: str | None = None,
) -> Judgement:
    """Judge one run.

    Args:
        corpus: Records, never-sent twins and facts.
        strata: The strata that the plan set out to examine.
        confidence: Confidence of every bound.
        target_rate: Leak rate that a clean verdict must bound.
        stopped: Why the run ended before its plan; None if it did not.
    """
    case = _open_case(corpus, tuple(strata))
    weighed = _convict(case)
    bounds = tuple(
        _bound(case, stratum, weighed.passed, confidence=confidence) for stratum in strata
    )
    obstacles = _clear(case, bounds, target_rate=target_rate, stopped=stopped)
    if weighed.convictions:
        verdict, reasons = Verdict.CONTAMINATED, weighed.convictions
    elif weighed.doubts or obstacles:
        verdict, reasons = Verdict.INCONCLUSIVE, (*weighed.doubts, *obstacles)
    else:
        verdict, reasons = Verdict.CLEAN, _clean_reasons(bounds)
    return Judgement(
        verdict=verdict,
        reasons=reasons,
        findings=tuple(_finding(item) for item in _ranked([*weighed.passed, *weighed.listed])),
        candidates=tuple(_ranked(weighed.below)),
        bounds=bounds,
        oracles=tuple(_oracle(case, detector, confidence) for detector in DETECTORS),
        not_examinable=_not_examinable(case),
        counts=_counts(case, weighed.passed),
    )


def _open_case(corpus: Corpus, strata: tuple[str, ...]) -> _Case:
    detections = {detector.rule_id: detector.find(corpus) for detector in DETECTORS}
    return _Case(
        corpus=corpus,
        strata=strata,
        detections=detections,
        sensitivities=measure_sensitivities(corpus, detections),
        truncated=find_truncation(corpus),
        censored=find_censored(corpus),
    )


def _convict(case: _Case) -> _Weighed:
    """Weigh all evidence: one exposure under its bar, or two families on one request, convicts."""
    evidence = [item for found in case.detections.values() for item in found.evidence]
    exposures = [item for item in evidence if RULES[item.rule_id].kind in CONVICTING_KINDS]
    passed = [item for item in exposures if is_under_bar(item)]
    passed += [item for item in _outnumbering_runs(case) if item not in passed]
    convictions = _exposure_reasons(passed)
    families = [item for item in evidence if RULES[item.rule_id].family is not None]
    open_families = [item for item in families if not _is_explained(case, item)]
    paired = _paired_sinks(open_families)
    convictions += _pair_reasons(open_families, paired)
    lost_strata = {rule_id: _lost_strata(case, rule_id) for rule_id in LOSS_RULES}
    alone: list[Evidence] = []
    for item in open_families:
        if item.sink_request_id in paired:
            passed.append(item)
        elif (lost := lost_strata.get(item.rule_id)) is None or item.details["stratum"] in lost:
            passed.append(item)
            alone.append(item)
    listed = [item for item in evidence if _is_listed(item)]
    kept = {id(item) for item in (*passed, *listed)}
    below = [_with_explanation(case, item) for item in evidence if id(item) not in kept]
    return _Weighed(
        passed=tuple(passed),
        below=tuple(below),
        listed=tuple(listed),
        convictions=tuple(convictions),
        doubts=(*_doubts(case, families, alone), *_incoherence_doubts(listed)),
    )


def _is_listed(item: Evidence) -> bool:
    return RULES[item.rule_id].kind is Kind.SHARING or item.rule_id in INCOHERENCE_RULES


def _incoherence_doubts(listed: Sequence[Evidence]) -> list[str]:
    """Answers without sense were computed from the wrong state, or the model is broken."""
    found = [item for item in listed if item.rule_id in INCOHERENCE_RULES]
    if not found:
        return []
    rules = sorted({item.rule_id for item in found})
    sinks = {item.sink_request_id for item in found}
    return [f"corrupt, no source: {' and '.join(rules)} ({_times(len(sinks), 'answer')})"]


def _outnumbering_runs(case: _Case) -> list[Evidence]:
    """Return foreign runs of fills when their sinks outnumber those of never-sent twins."""
    found = case.detections["KVA201"]
    if not found.available or not found.null_trials:
        return []
    runs = [item for item in found.evidence if item.details.get("from_fill")]
    p = fisher_greater(len(runs), found.examined, found.null_alarms or 0, found.null_trials)
    if p >= GROUP_P:
        return []
    return [
        replace(item, details={**item.details, "fisher_p": p})
        for item in runs
        if item.chance is not None and not is_under_bar(item)
    ]


def _exposure_reasons(passed: Sequence[Evidence]) -> list[str]:
    sinks_of: dict[str, set[str]] = defaultdict(set)
    for item in passed:
        sinks_of[item.rule_id].add(item.sink_request_id)
    return [
        f"{rule_id}: {RULES[rule_id].summary} ({_times(len(sinks), 'answer')})"
        for rule_id, sinks in sorted(sinks_of.items())
    ]


def _paired_sinks(families: Iterable[Evidence]) -> set[str]:
    by_sink: dict[str, set[Family | None]] = defaultdict(set)
    for item in families:
        by_sink[item.sink_request_id].add(RULES[item.rule_id].family)
    return {sink for sink, kinds in by_sink.items() if len(kinds) >= 2}


def _pair_reasons(families: Iterable[Evidence], paired: set[str]) -> list[str]:
    if not paired:
        return []
    rules = {item.rule_id for item in families if item.sink_request_id in paired}
    return [
        f"independent families on one request: {families_text(rules)}"
        f" ({_times(len(paired), 'answer')})"
    ]


def _is_explained(case: _Case, item: Evidence) -> bool:
    return item.rule_id in EXPLAINED_RULES and item.sink_request_id in case.truncated


def _with_explanation(case: _Case, item: Evidence) -> Evidence:
    if not _is_explained(case, item):
        return item
    reason = case.truncated[item.sink_request_id]
    return replace(item, details={**item.details, "explained_by": f"server truncates: {reason}"})


def _lost_strata(case: _Case, rule_id: str) -> set[str]:
    """Return the strata in which lost values outnumber those of the solo controls."""
    found = case.detections[rule_id]
    if not found.available:
        return set()
    lost = Counter(
        str(item.details["stratum"]) for item in found.evidence if not _is_explained(case, item)
    )
    asked = Counter(
        record.stratum
        for record in case.corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.expected is not None
        and record.role is not Role.CALIBRATION
    )
    return {
        stratum
        for stratum, count in lost.items()
        if fisher_greater(count, asked[stratum], found.null_alarms or 0, found.null_trials)
        < GROUP_P
    }


def _doubts(
    case: _Case, families: Sequence[Evidence], alone: Sequence[Evidence]
) -> tuple[str, ...]:
    doubts = []
    if alone:
        rules = sorted({item.rule_id for item in alone})
        sinks = {item.sink_request_id for item in alone}
        doubts.append(f"one family only: {' and '.join(rules)} ({_times(len(sinks), 'answer')})")
    explained = {item.sink_request_id for item in families if _is_explained(case, item)}
    if explained:
        example = case.truncated[min(explained)]
        doubts.append(f"server truncates: {example} ({_times(len(explained), 'answer')})")
    return tuple(doubts)


def _bound(case: _Case, stratum: str, passed: Sequence[Evidence], *, confidence: float) -> Bound:
    sent = [record for record in case.corpus.records if record.stratum == stratum]
    examined = {record.request_id for record in sent if record.request_id not in case.censored}
    detected = examined & {item.sink_request_id for item in passed}
    best = _best_content(case)
    limit = None
    if best is not None and examined:
        limit = leak_bound(
            len(detected),
            len(examined),
            sensitivity_hits=best.hits,
            sensitivity_trials=best.trials,
            confidence=confidence,
        )
    return Bound(
        stratum=stratum,
        requests=len(examined),
        detections=len(detected),
        sensitivity=limit.sensitivity_lower if limit is not None else None,
        confidence=confidence,
        upper=limit.upper if limit is not None else None,
        sent=len(sent),
        censored=len(sent) - len(examined),
    )


def _best_content(case: _Case) -> Sensitivity | None:
    """Return the measured sensitivity of the best oracle that reads answers."""
    measured = [
        case.sensitivities[detector.rule_id]
        for detector in DETECTORS
        if detector.reads_content and detector.rule_id in case.sensitivities
    ]
    return max(
        (item for item in measured if item.trials), key=lambda item: item.share, default=None
    )


def _clear(
    case: _Case,
    bounds: Sequence[Bound],
    *,
    target_rate: float | None,
    stopped: str | None,
) -> tuple[str, ...]:
    """Return everything that stands between this run and a clean verdict."""
    records = case.corpus.records
    obstacles: list[str] = []
    if stopped is not None:
        obstacles.append(f"the run was stopped: {stopped}")
    if not records:
        return (*obstacles, "nothing was sent")
    facts = case.corpus.facts
    if facts.probed_right_tokens is not None and facts.probed_over_tokens is None:
        obstacles.append(
            "the edge was not reached: prompts are answered right up to"
            f" {facts.probed_right_tokens:,} tokens, and longer ones were not sent"
        )
    unauthorised = sorted({r.status for r in records if r.status in CREDENTIAL_STATUSES})
    if unauthorised:
        obstacles.append(
            f"the server asks for credentials (HTTP {unauthorised[0]}):"
            " give one key for each tenant with `--api-key-env`"
        )
    if not case.strata:
        obstacles.append("no stratum was planned")
    for bound in bounds:
        obstacles += _stratum_obstacles(bound, target_rate)
    if obstacles:
        obstacles += failure_reasons(records)
    if target_rate is not None:
        obstacles += _joint_obstacles(bounds, target_rate)
    best = _best_content(case)
    if best is None:
        obstacles.append("the sensitivity of no content oracle could be measured")
    elif best.share < SENSITIVITY_MIN:
        obstacles.append(
            f"the best content oracle sees {best.share:.0%} of planted swaps,"
            f" under {SENSITIVITY_MIN:.0%}"
        )
    if not any(
        is_right(record) and record.role is not Role.TRIGGER and record.outcome is Outcome.ANSWERED
        for record in records
    ):
        obstacles.append("no in-limit request was answered right")
    return tuple(obstacles)


def _stratum_obstacles(bound: Bound, target_rate: float | None) -> list[str]:
    obstacles = []
    if bound.requests < EXAMINED_MIN:
        obstacles.append(
            f"stratum `{bound.stratum}`: {bound.requests} of {bound.sent} requests could be"
            f" examined, {EXAMINED_MIN} are needed"
        )
    if bound.sent and bound.censored / bound.sent > CENSORED_MAX:
        obstacles.append(
            f"stratum `{bound.stratum}`: {bound.censored} of {bound.sent} requests are censored,"
            f" over {CENSORED_MAX:.0%}"
        )
    if target_rate is not None and (bound.upper is None or bound.upper > target_rate):
        upper = "unknown" if bound.upper is None else f"{bound.upper:.3g}"
        obstacles.append(
            f"stratum `{bound.stratum}`: the bound is {upper}, over the target rate {target_rate:g}"
        )
    return obstacles


def _joint_obstacles(bounds: Sequence[Bound], target_rate: float) -> list[str]:
    """Holm over the strata: that all of them are bounded must hold together."""
    known = [bound for bound in bounds if bound.upper is not None and bound.sensitivity is not None]
    adjusted = holm([
        clearance_p(bound.detections, bound.requests, target_rate, sensitivity=bound.sensitivity)
        for bound in known
        if bound.sensitivity is not None
    ])  # fmt: skip
    return [
        f"stratum `{bound.stratum}`: that its rate is under {target_rate:g} has p {p:.2g} among"
        f" {len(known)} strata (Holm)"
        for bound, p in zip(known, adjusted, strict=True)
        # Half of the error is the sensitivity's.
        if bound.upper is not None and bound.upper <= target_rate
        and p > (1 - bound.confidence) / 2
    ]  # fmt: skip


def _clean_reasons(bounds: Sequence[Bound]) -> tuple[str, ...]:
    return tuple(
        f"stratum `{bound.stratum}`: 0 of {bound.requests} requests contaminated; leak rate at"
        f" most {bound.upper:.3g} at {bound.confidence:.4g} confidence"
        for bound in bounds
        if bound.upper is not None
    )


def _finding(item: Evidence) -> Finding:
    rule = RULES[item.rule_id]
    return Finding(evidence=item, kind=rule.kind, severity=rule.severity)


def _ranked(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Rank by what the rule's kind is worth, then by chance, then by score."""
    return sorted(
        evidence,
        key=lambda item: (
            RULES[item.rule_id].kind not in CONVICTING_KINDS,
            item.chance if item.chance is not None else 1.0,
            -item.score,
            item.sink_request_id,
        ),
    )


def _oracle(case: _Case, detector: Detector, confidence: float) -> OracleReport:
    found = case.detections[detector.rule_id]
    measured = case.sensitivities.get(detector.rule_id)
    reason = found.reason
    reference = reference_sensitivities().get(detector.rule_id)
    if measured is None and found.available and reference is not None:
        measured = Sensitivity(hits=reference.hits, trials=reference.trials)
        reason = "; ".join(filter(None, (reason, reference.reason)))
    elif measured is not None and not measured.trials:
        reason = reason or "no calibration answer was long enough for a swap on paper"
    elif found.available and not detector.can_swap:
        reason = reason or "sensitivity can't be measured by swap on paper"
    has_trials = measured is not None and measured.trials > 0
    return OracleReport(
        rule_id=detector.rule_id,
        available=found.available,
        reason=reason,
        sensitivity=measured.share if measured is not None and has_trials else None,
        sensitivity_lower=(
            lower_limit(measured.hits, measured.trials, confidence=1 - (1 - confidence) / 2)
            if measured is not None and has_trials
            else None
        ),
        false_alarms=found.null_alarms,
        trials=found.null_trials,
        fired=len({item.sink_request_id for item in found.evidence}),
        examined=found.examined,
    )


def _not_examinable(case: _Case) -> tuple[NotExaminable, ...]:
    planned = {record.request_id for record in case.corpus.records if record.stratum in case.strata}
    counted = Counter(
        reason for request_id, reason in case.censored.items() if request_id in planned
    )
    return tuple(NotExaminable(reason=reason, count=count) for reason, count in counted.items())


def _counts(case: _Case, passed: Sequence[Evidence]) -> dict[str, int]:
    records = case.corpus.records
    exposed = {
        item.sink_request_id for item in passed if RULES[item.rule_id].kind in CONVICTING_KINDS
    }
    counts = {
        "requests": len(records),
        "never_sent_twins": len(case.corpus.twins),
        "sinks_with_findings": len({item.sink_request_id for item in passed}),
        "sinks_with_foreign_text": len(exposed),
        "prompt_tokens_sent": sum(record.prompt_tokens_sent or 0 for record in records),
        "completion_tokens": sum(record.completion_tokens or 0 for record in records),
    }
    roles = Counter(record.role.value for record in records)
    outcomes = Counter(record.outcome.value for record in records)
    replicas = {record.replica for record in records if record.replica is not None}
    if replicas:
        counts["replicas_seen"] = len(replicas)
    counts |= {f"role_{role.value}": roles[role.value] for role in Role if roles[role.value]}
    counts |= {f"outcome_{item.value}": outcomes[item.value] for item in Outcome}
    return counts


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
