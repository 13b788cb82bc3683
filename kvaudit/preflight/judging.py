"""Which hazards hold for a deployment, which can't be told, and what the verdict is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvaudit.findings import Evidence, Finding, Json, Kind, Severity, Verdict
from kvaudit.preflight.capacity import (
    NAMES,
    Band,
    capacity_fact,
    capacity_facts,
    exposed_band,
    is_pool_planned,
    own_context,
    pool_tokens,
    sizing_doubt,
    unsaid,
)
from kvaudit.preflight.conditions import Answer, Facts, Unknown, Value, ask
from kvaudit.preflight.deployment import Deployment, Role
from kvaudit.preflight.hazards import Hazard, hazards
from kvaudit.preflight.versions import parse_version

DECISIVE = (Severity.CRITICAL, Severity.ERROR)
_SERVING = ("prefill", "decode", "unified")
_NO_HAZARDS = "hazards of its engine"
_ROUTERS = ("sglang-router", "aibrix")  # nothing is served without workers of ours behind them
_RANK = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that no source says.

    Attributes:
        role: Whose.
        fact: What.
        hazards: Ids of the hazards that hang on it, the decisive ones first.
        is_decisive: Whether the verdict hangs on it.
    """

    role: str
    fact: str
    hazards: tuple[str, ...]
    is_decisive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What preflight says of a deployment.

    Attributes:
        verdict: `at_risk`, `inconclusive` or `clean`.
        reasons: Most important first.
        findings: Hazards that hold, worst first.
        gaps: What is not known.
        assumptions: What was taken for granted.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    assumptions: tuple[str, ...]


def judge_deployment(deployment: Deployment) -> Judgement:
    """Return the verdict on a deployment."""
    findings: list[Finding] = []
    missing: dict[tuple[str, str], list[Hazard]] = {}
    for hazard in hazards().values():
        holding = []
        open_facts: set[tuple[str, str]] = set()
        for role in deployment.roles:
            if role.engine not in hazard.engines:
                continue
            answer = _answer(hazard, role, deployment)
            if answer.holds:
                holding.append(role)
            elif answer.holds is None:
                open_facts |= {
                    (role.name, told)
                    for fact in answer.missing
                    for told in unsaid(fact, role, deployment)
                }
        if holding:
            findings.append(_finding(hazard, holding, deployment))
        else:
            for key in open_facts:
                missing.setdefault(key, []).append(hazard)
    findings.sort(key=lambda held: (_RANK[held.severity], held.evidence.rule_id))
    gaps = _gaps(deployment, missing)
    if not deployment.roles:
        gaps += (Gap(role="the deployment", fact="engine", hazards=(), is_decisive=True),)
    verdict, reasons = _verdict(findings, gaps)
    return Judgement(
        verdict=verdict, reasons=reasons, findings=tuple(findings), gaps=gaps,
        assumptions=_assumptions(deployment),
    )  # fmt: skip


def _answer(hazard: Hazard, role: Role, deployment: Deployment) -> Answer:
    versioned = _affected(hazard, role)
    if versioned.holds is False or hazard.condition is None:
        return versioned
    facts = Facts(
        fact=_asker(role, deployment),
        roles=[(other.role, _asker(other, deployment)) for other in deployment.roles
               if other.engine in hazard.engines or other.role in ("store", "gateway")],
    )  # fmt: skip
    conditional = ask(hazard.condition, facts)
    if conditional.holds is False or versioned.holds:
        return conditional
    return Answer(holds=None, missing=versioned.missing | conditional.missing)


def _affected(hazard: Hazard, role: Role) -> Answer:
    if not hazard.affected:
        return Answer(holds=True)
    said = role.fact("version")
    version = parse_version(said) if isinstance(said, str) else None
    if version is None:
        return Answer(holds=None, missing=frozenset({"version"}))
    return Answer(holds=any(held.holds(version) for held in hazard.affected))


def _asker(role: Role, deployment: Deployment) -> Callable[[str], Value]:
    def fact(name: str) -> Value:
        if name in NAMES:
            return capacity_fact(name, role, deployment)
        said = role.fact(name)
        if name != "context_length" or said is not None:
            return said
        shown = own_context(role)  # left out of the launch, it shows in what the server admits
        return None if isinstance(shown, Unknown) else shown

    return fact


def _finding(hazard: Hazard, roles: list[Role], deployment: Deployment) -> Finding:
    details: dict[str, Json] = {
        "what": hazard.summary,
        "hazard": hazard.name,
        "leaks": hazard.leaks,
        "fix": hazard.fix,
        "sources": list(hazard.sources),
        "solid": hazard.solid,
        "checked": hazard.checked.isoformat(),
        "roles": [role.name for role in roles],
        "versions": {role.name: _shown(role.fact("version")) for role in roles},
        "said_by": [source for role in roles for source in role.sources],
    }
    band = exposed_band(deployment)
    if "exposed" in hazard.when and isinstance(band, Band):
        details["exposed_band"] = [band.start, band.end]
        details["assumptions"] = list(band.assumptions)
    if "pool_below_context" in hazard.when or "exposed" in hazard.when:
        details["sizes"] = {role.name: capacity_facts(role, deployment) for role in deployment.roles
                            if role.engine in hazard.engines}  # fmt: skip
    evidence = Evidence(
        rule_id=hazard.id,
        sink_request_id=roles[0].name if len(roles) == 1 else _sink(hazard, roles),
        sink_tenant="-",
        details=details,
    )
    return Finding(evidence=evidence, kind=Kind.HAZARD, severity=hazard.severity)


def _sink(hazard: Hazard, roles: list[Role]) -> str:
    # The band lies above what prefill can hold, so prefill is where it is mended.
    prefill = [role.name for role in roles if role.role == "prefill"]
    return prefill[0] if "exposed" in hazard.when and prefill else "deployment"


def _shown(value: Value) -> Json:
    return None if isinstance(value, Unknown) else value


def _gaps(
    deployment: Deployment, missing: Mapping[tuple[str, str], list[Hazard]]
) -> tuple[Gap, ...]:
    gaps = [
        Gap(
            role=role,
            fact=fact,
            hazards=tuple(held.id for held in sorted(
                hanging, key=lambda held: (_RANK[held.severity], held.id))),
            is_decisive=any(held.severity in DECISIVE for held in hanging),
        )
        for (role, fact), hanging in missing.items()
    ]  # fmt: skip
    told = {(gap.role, gap.fact) for gap in gaps if gap.is_decisive}
    for role in deployment.roles:
        if role.engine is None:
            gaps.append(Gap(role=role.name, fact="engine", hazards=(), is_decisive=True))
        elif role.role in _SERVING and not _is_known(role.engine):
            gaps.append(Gap(role=role.name, fact=_NO_HAZARDS, hazards=(), is_decisive=True))
        elif _no_version(role) and (role.name, "version") not in told:
            gaps = [gap for gap in gaps if (gap.role, gap.fact) != (role.name, "version")]
            ids = tuple(held.id for held in hazards().values()
                        if held.affected and role.engine in held.engines)  # fmt: skip
            gaps.append(Gap(role=role.name, fact="version", hazards=ids, is_decisive=bool(ids)))
    gaps += _roles_missing(deployment)
    return tuple(sorted(gaps, key=lambda gap: (not gap.is_decisive, gap.role, gap.fact)))


def _roles_missing(deployment: Deployment) -> list[Gap]:
    """Return what must be there and is not: a role, the workers of a router, a role's name."""
    present = {role.role for role in deployment.roles}
    gaps = [
        Gap(role=absent, fact="the role itself", hazards=("KVA701",), is_decisive=True)
        for absent, other in (("prefill", "decode"), ("decode", "prefill"))
        if other in present and absent not in present
    ]
    for role in deployment.roles:
        if role.engine in _ROUTERS and not present & set(_SERVING):
            gaps.append(Gap(role=f"the servers behind {role.name}", fact="engine", hazards=(),
                            is_decisive=True))  # fmt: skip
        # Options that no source fills in may make it any role.
        name = {"sglang": "disaggregation_mode", "vllm": "kv_role"}.get(role.engine or "")
        is_open = role.role == "unified" and name and isinstance(role.fact(name), Unknown)
        if is_open and (role.engine == "sglang" or name in role.settings):
            gaps.append(Gap(role=role.name, fact=str(name), hazards=("KVA701", "KVA703"),
                            is_decisive=True))  # fmt: skip
    return gaps


def _is_known(engine: str) -> bool:
    """Whether any hazard names the engine: else nothing was looked for, which is not clean."""
    return any(engine in hazard.engines for hazard in hazards().values())


def _no_version(role: Role) -> bool:
    said = role.fact("version")
    return not isinstance(said, str) or parse_version(said) is None


def _verdict(findings: Iterable[Finding], gaps: Iterable[Gap]) -> tuple[Verdict, tuple[str, ...]]:
    decisive = [held for held in findings if held.severity in DECISIVE]
    reasons = [_reason(held) for held in decisive]
    reasons += [_gap_reason(gap) for gap in gaps if gap.is_decisive]
    if decisive:
        return Verdict.AT_RISK, tuple(reasons)
    if reasons:
        return Verdict.INCONCLUSIVE, tuple(reasons)
    return Verdict.CLEAN, ("no hazard of severity critical or error holds",)


def _reason(finding: Finding) -> str:
    details = finding.evidence.details
    band = details.get("exposed_band")
    text = f"{finding.evidence.rule_id} {details['hazard']}: {str(details['what']).rstrip('.')}"
    if isinstance(band, list):
        text += f"; prompts of {band[0]:,} to {band[1] - 1:,} tokens are exposed"
    return text


def _gap_reason(gap: Gap) -> str:
    if gap.fact == _NO_HAZARDS:
        return f"no hazard of this version names the engine of {gap.role}, so none was looked for"
    hangs = ", ".join(gap.hazards[:4]) + (" and more" if len(gap.hazards) > 4 else "")
    tail = f"; {hangs} hang{'s' * (len(gap.hazards) == 1)} on it" if gap.hazards else ""
    return f"no source tells `{gap.fact}` of {gap.role}{tail}"


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    doubts = [doubt for role in deployment.roles if (doubt := sizing_doubt(role, deployment))]
    return (*doubts, *_planned(deployment))


def _planned(deployment: Deployment) -> tuple[str, ...]:
    return tuple(
        f"the pool of {role.name} is the {pool_tokens(role):,} tokens of its flags;"
        " a start-up log or `/server_info` tells the real size"
        for role in deployment.roles
        if is_pool_planned(role)
    )
