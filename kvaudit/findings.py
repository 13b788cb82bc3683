"""What a run may say: Rule, Evidence, Finding, Severity, Verdict, AuditRun.

Detectors make Evidence; the judge weighs it against the null and makes Findings and a Verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Whatever `json.dumps` takes: no NaN, no infinity, no other class.
Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class Kind(StrEnum):
    """What a finding says happened."""

    EXPOSURE = "exposure"  # another tenant's text or canary is in the answer, source named
    MISDELIVERY = "misdelivery"  # the answer belongs to another request
    CORRUPTION = "corruption"  # computed from the wrong state, no source text visible
    ACCOUNTING = "accounting"  # the server's own numbers contradict each other
    SHARING = "sharing"  # cache shared across tenants, seen by counters or time
    HAZARD = "hazard"  # configuration or version known to leak


class Severity(StrEnum):
    """How bad a finding is; SARIF's level."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Family(StrEnum):
    """Oracles that fail for the same reason; two different ones on one request convict."""

    ACCOUNTING = "accounting"
    TIMING = "timing"
    RECALL = "recall"
    REPLAY = "replay"


class Verdict(StrEnum):
    """What a run may say, from best to worst; silence is never CLEAN."""

    CLEAN = "clean"
    INCONCLUSIVE = "inconclusive"
    AT_RISK = "at_risk"
    CONTAMINATED = "contaminated"

    @property
    def exit_status(self) -> int:
        """0 clean, 1 contaminated or at_risk, 3 inconclusive; 2 is kept for usage errors."""
        return {"clean": 0, "inconclusive": 3, "at_risk": 1, "contaminated": 1}[self.value]


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Join verdicts: one CONTAMINATED decides, and none at all is INCONCLUSIVE."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A stable id with a page in the docs.

    Attributes:
        id: Such as `KVA101`; never reused.
        name: Short kebab-case name.
        summary: One sentence.
        kind, severity: Of its findings.
        family: Oracle family for the pair rule; None if it convicts alone or never.
        sees: `a` live audit, `b` log scan, `c` preflight, `engine` sanitizer.
        is_built: False while this version has no detector for it.
        source: Paper, advisory or issue that the method or the case rests on.
    """

    id: str
    name: str
    summary: str
    kind: Kind
    severity: Severity
    sees: frozenset[str]
    family: Family | None = None
    is_built: bool = False
    source: str = ""


class Side(StrEnum):
    """Where in the source request the text stood."""

    PROMPT = "prompt"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of characters, `start` inclusive, `end` exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The request that text came from.

    Attributes:
        request_id, tenant: The first origin.
        side: Prompt or answer of that request.
        span: Where in that side's text.
    """

    request_id: str
    tenant: str
    side: Side
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observed trace in one sink request, with the chance that it is an accident.

    Attributes:
        rule_id: The rule that the detector serves.
        sink_request_id, sink_tenant: The request whose answer or numbers show it.
        source: The request that it came from; None when no source text is visible.
        sink_span: Where in the sink's answer.
        excerpt: The matching text of the sink, unredacted; "" where there is none.
        score: Strength, in bits where the rule says so, else the rule's own statistic.
        chance: Probability of an accident this strong in the whole run; None if not computed.
        details: Numbers and words that explain it, JSON values only.
    """

    rule_id: str
    sink_request_id: str
    sink_tenant: str
    source: Source | None = None
    sink_span: Span | None = None
    excerpt: str = ""
    score: float = 0.0
    chance: float | None = None
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence that passed its rule's threshold.

    Attributes:
        evidence: What was seen.
        kind, severity: From the rule, or milder where the judge says so in `details`.
        q_value: Share of false findings at this score; None where a chance is given instead.
    """

    evidence: Evidence
    kind: Kind
    severity: Severity
    q_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a clean stratum is worth: an exact (Clopper-Pearson) upper bound on the leak rate.

    Attributes:
        requests: Examined requests of the stratum.
        detections: How many of them are in a finding.
        sensitivity: Lower limit of the best content oracle's sensitivity, folded into `upper`.
        confidence: Confidence of `upper`.
        upper: Upper bound on the share of contaminated requests; None without a sensitivity.
        sent, censored: Requests sent, and those that ended without an examinable outcome.
    """

    stratum: str
    requests: int
    detections: int
    sensitivity: float | None
    confidence: float
    upper: float | None
    sent: int = 0
    censored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleReport:
    """How one rule did in this run.

    Attributes:
        rule_id: The rule.
        available: Whether it could be applied.
        reason: Why not, or what to know; "" if there is nothing to say.
        sensitivity: Observed share of planted swaps that it flags.
        sensitivity_lower: Exact lower confidence limit of it.
        false_alarms: Alarms on the null.
        trials: Size of the null.
        fired: Requests on which it fired.
        examined: Requests to which it was applied.
    """

    rule_id: str
    available: bool
    reason: str = ""
    sensitivity: float | None = None
    sensitivity_lower: float | None = None
    false_alarms: int | None = None
    trials: int = 0
    fired: int = 0
    examined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExaminable:
    """Requests that can't show a leak, counted by reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun:
    """One run: what was done, what was seen, and what it is worth.

    Attributes:
        run_id: Time and name; the default name of the run folder.
        command: The kvaudit command that made it: `audit`, `scan`, `preflight`, ...
        repeat: Command line that repeats the run.
        seed: All randomness comes from it; None where there is none.
        version: Version of kvaudit.
        started_unix_ns, ended_unix_ns: Wall clock.
        target: What the target said of itself, JSON values only.
        config: Effective configuration without secrets, JSON values only.
        reasons: Why the verdict is what it is, most important first.
        findings: Only what passed its rule's threshold, at least one per contaminated sink.
        candidates: Ranked evidence below the threshold.
        counts: Totals by name.
    """

    run_id: str
    command: str
    version: str
    verdict: Verdict
    reasons: tuple[str, ...]
    repeat: str = ""
    seed: int | None = None
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    target: Mapping[str, Json] = field(default_factory=dict)
    config: Mapping[str, Json] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    candidates: tuple[Evidence, ...] = ()
    bounds: tuple[Bound, ...] = ()
    oracles: tuple[OracleReport, ...] = ()
    not_examinable: tuple[NotExaminable, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
