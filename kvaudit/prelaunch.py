"""The pre-launch suite: what a judged audit says, as named checks that pass or fail. Pure.

An audit answers "contaminated or not"; whoever launches wants to know which promise broke. Each
check is one promise. It stands on rules, on strata or scenarios of the plan, or on the records
themselves, and a check that nothing examined is `not examined`, never passed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvaudit.detect.answers import is_right
from kvaudit.findings import AuditRun, Finding, Json, Severity
from kvaudit.records import Outcome, RequestRecord
from kvaudit.rules import RULES

SHOWN_REQUESTS = 5


class CheckState(StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"  # something to know that decides nothing: a shared cache, a cut prompt
    NOT_EXAMINED = "not examined"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of one run.

    Attributes:
        name: Stable name in kebab case.
        promise: What holds when it passed.
        reason: Why it came out so.
        examined: Requests that could have failed it.
        rules: Rules that failed it.
        request_ids: Requests that failed it, the first few.
    """

    name: str
    promise: str
    state: CheckState
    reason: str
    examined: int
    rules: tuple[str, ...] = ()
    request_ids: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Return it as an object of the JSON contract."""
        return {
            "name": self.name, "promise": self.promise, "state": self.state.value,
            "reason": self.reason, "examined": self.examined, "rules": list(self.rules),
            "request_ids": list(self.request_ids),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A judged run as the checks see it."""

    run: AuditRun
    records: tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise and what it stands on.

    Attributes:
        rules: Findings of these rules fail it, wherever they are.
        strata: Any finding on a request of these strata fails it, and they must be examined.
        scenarios: The same by scenario.
        compare: Looks at the records themselves.
    """

    name: str
    promise: str
    rules: frozenset[str] = frozenset()
    strata: frozenset[str] = frozenset()
    scenarios: frozenset[str] = frozenset()
    compare: Callable[["Check", Seen], CheckResult] | None = field(default=None, repr=False)

    def result(self, seen: Seen) -> CheckResult:
        """Return how the check came out for one run."""
        if self.compare is not None:
            return self.compare(self, seen)
        return _by_rules(self, seen) if self.rules else _by_place(self, seen)


def results_of(run: AuditRun, records: Iterable[RequestRecord]) -> tuple[CheckResult, ...]:
    """Return every check of the suite for one judged run, in the suite's order."""
    seen = Seen(run=run, records=tuple(records))
    return tuple(check.result(seen) for check in CHECKS)


def _by_rules(check: Check, seen: Seen) -> CheckResult:
    failing = [held for held in seen.run.findings if held.evidence.rule_id in check.rules]
    oracles = [held for held in seen.run.oracles if held.rule_id in check.rules]
    examined = max((held.examined for held in oracles if held.available), default=0)
    if failing:
        return _with_findings(check, failing, examined)
    if examined == 0:
        reasons = dict.fromkeys(held.reason for held in oracles if held.reason)
        return _result(
            check, CheckState.NOT_EXAMINED, "; ".join(reasons) or "no request could show it", 0
        )
    return _result(check, CheckState.PASSED, f"no finding in {_count(examined)}", examined)


def _by_place(check: Check, seen: Seen) -> CheckResult:
    there = {
        record.request_id
        for record in seen.records
        if record.is_examined
        and (record.stratum in check.strata or record.scenario in check.scenarios)
    }
    failing = [held for held in seen.run.findings if held.evidence.sink_request_id in there]
    if failing:
        return _with_findings(check, failing, len(there))
    if not there:
        return _result(check, CheckState.NOT_EXAMINED, "no such request was examined", 0)
    return _result(check, CheckState.PASSED, f"no finding in {_count(len(there))}", len(there))


def _over_limit_refused(check: Check, seen: Seen) -> CheckResult:
    """A prompt that no pool can hold is refused; a cut is allowed only where usage declares it."""
    over = [record for record in seen.records if record.stratum in OVER_STRATA]
    examined = [record for record in over if record.is_examined]
    failing = [held for held in seen.run.findings if held.evidence.rule_id == "KVA302"]
    if failing:
        return _with_findings(check, failing, len(examined))
    if not examined:
        return _result(check, CheckState.NOT_EXAMINED, "no prompt over a limit was sent", 0)
    cut = {
        held.sink_request_id: str(held.details.get("explained_by"))
        for held in seen.run.candidates
        if held.rule_id in ("KVA301", "KVA302", "KVA401") and held.details.get("explained_by")
    }
    silent = [
        record
        for record in examined
        if record.request_id in cut and not cut[record.request_id].startswith("usage")
    ]
    if silent:
        return _result(
            check, CheckState.FAILED,
            f"{len(silent)} of {len(examined)} prompts over the limit were cut without a word",
            len(examined), request_ids=[record.request_id for record in silent],
        )  # fmt: skip
    refused = sum(record.outcome is Outcome.REFUSED for record in examined)
    if cut:
        return _result(
            check, CheckState.NOTED,
            f"{len(cut)} of {len(examined)} were cut, as their usage declares", len(examined),
        )  # fmt: skip
    said = f"{refused} of {len(examined)} refused"
    if refused < len(examined):  # with no stated limit nobody can say that these were over one
        said += f", {len(examined) - refused} answered with no sign of a limit"
        return _result(check, CheckState.NOTED, said, len(examined))
    return _result(check, CheckState.PASSED, said, len(examined))


def _same_both_ways(check: Check, seen: Seen) -> CheckResult:
    """One prompt is answered alike as a stream and in one piece."""
    pairs: dict[int, dict[bool, RequestRecord]] = {}
    for record in seen.records:
        if record.scenario == "streaming" and record.outcome is Outcome.ANSWERED:
            pairs.setdefault(record.block, {})[bool(record.stream)] = record
    whole = [pair for pair in pairs.values() if len(pair) == 2]
    if not whole:
        return _result(check, CheckState.NOT_EXAMINED, "no prompt was answered both ways", 0)
    # Two runs may differ in a late token by batch numerics; whether the own code is known may not.
    broken = [pair for pair in whole if is_right(pair[True]) != is_right(pair[False])]
    differ = sum(pair[True].output_text != pair[False].output_text for pair in whole)
    if broken:
        return _result(
            check, CheckState.FAILED,
            f"{len(broken)} of {len(whole)} prompts are answered right one way and wrong the other",
            len(whole), request_ids=[pair[True].request_id for pair in broken],
        )  # fmt: skip
    if differ:
        return _result(
            check, CheckState.NOTED,
            f"{differ} of {len(whole)} answers differ in wording, none in the asked value",
            len(whole),
        )  # fmt: skip
    return _result(check, CheckState.PASSED, f"{len(whole)} pairs read the same", len(whole))


def _same_when_repeated(check: Check, seen: Seen) -> CheckResult:
    """One prompt is answered alike alone, at once again, and after another tenant's prompt."""
    by_stratum: dict[str, dict[int, RequestRecord]] = {name: {} for name in ("alone", *REPEATED)}
    for record in seen.records:
        if record.scenario == "company" and record.outcome is Outcome.ANSWERED:
            by_stratum.get(record.stratum, {})[record.block] = record
    pairs = [
        (alone, again)
        for stratum in REPEATED
        for block, again in sorted(by_stratum[stratum].items())
        if (alone := by_stratum["alone"].get(block)) is not None
    ]
    if not pairs:
        return _result(check, CheckState.NOT_EXAMINED, "no prompt was answered twice", 0)
    lost = [again for alone, again in pairs if is_right(alone) and not is_right(again)]
    differ = sum(alone.output_text != again.output_text for alone, again in pairs)
    if lost:
        return _result(
            check, CheckState.FAILED,
            f"{len(lost)} of {len(pairs)} repeated prompts were answered right alone only",
            len(pairs), request_ids=[record.request_id for record in lost],
        )  # fmt: skip
    if differ:
        return _result(
            check, CheckState.NOTED,
            f"{differ} of {len(pairs)} repeated answers differ in wording, none in the asked value",
            len(pairs),
        )  # fmt: skip
    return _result(check, CheckState.PASSED, f"{len(pairs)} pairs read the same", len(pairs))


REPEATED = ("again", "back-again")
OVER_STRATA = frozenset(("over-limit", "just-over-the-limit", "mid-band", "end-of-the-context"))

CHECKS: tuple[Check, ...] = (
    Check(name="canaries-stay-home", promise="No planted secret reached another tenant",
          rules=frozenset(("KVA101", "KVA102"))),
    Check(name="texts-stay-home", promise="No text of another tenant stands in an answer",
          rules=frozenset(("KVA201", "KVA202", "KVA205"))),
    Check(name="answers-reach-their-asker", promise="Every answer belongs to its own request",
          rules=frozenset(("KVA203", "KVA204"))),
    Check(name="over-limit-refused",
          promise="A prompt over a limit is refused, or its cut is declared",
          compare=_over_limit_refused),
    Check(name="numbers-add-up", promise="Reported lengths fit what was sent",
          rules=frozenset(("KVA301", "KVA305", "KVA306"))),
    Check(name="own-prompt-known", promise="Answers know their own prompt, at any length and depth",
          rules=frozenset(("KVA401", "KVA407"))),
    Check(name="same-in-company", promise="A known answer is the same alone and in company",
          rules=frozenset(("KVA406",))),
    Check(name="same-when-repeated", promise="A prompt sent once more is answered alike",
          compare=_same_when_repeated),
    Check(name="same-log-probabilities",
          promise="Answers were computed from the prompt that was sent",
          rules=frozenset(("KVA408",))),
    Check(name="first-token-in-time", promise="No answer began before its prompt was read",
          rules=frozenset(("KVA303",))),
    Check(name="answers-make-sense", promise="No loops, salad, runs or empty answers",
          rules=frozenset(("KVA402", "KVA403", "KVA404", "KVA405"))),
    Check(name="sound-after-an-abort", promise="What follows a cancelled request is answered right",
          strata=frozenset(("after-an-abort",))),
    Check(name="sound-on-a-cached-prefix", promise="A reused prefix brings nothing else along",
          strata=frozenset(("reuse",))),
    Check(name="same-as-a-stream-and-whole", promise="Streaming changes no answer",
          compare=_same_both_ways),
    Check(name="cache-stays-home", promise="No tenant is served from a prefix it never sent",
          rules=frozenset(("KVA304", "KVA601"))),
)  # fmt: skip

# What the suite sends besides the profile's blocks; a scenario is looked up by its name.
SCENARIOS = ("blocks", "streaming", "company", "timing-pair")


def check_of_rule(rule_id: str) -> str | None:
    """Return the name of the check that a finding of this rule fails; None if none does."""
    if rule_id == "KVA302":
        return "over-limit-refused"
    return next((check.name for check in CHECKS if rule_id in check.rules), None)


def _with_findings(check: Check, failing: Sequence[Finding], examined: int) -> CheckResult:
    sinks = tuple(dict.fromkeys(held.evidence.sink_request_id for held in failing))
    rules = tuple(sorted({held.evidence.rule_id for held in failing}))
    is_bad = any(held.severity in (Severity.CRITICAL, Severity.ERROR) for held in failing)
    words = "; ".join(f"{rule_id}: {RULES[rule_id].summary}" for rule_id in rules)
    return _result(
        check,
        CheckState.FAILED if is_bad else CheckState.NOTED,
        f"{_count(len(sinks))}: {words}",
        examined,
        rules=rules,
        request_ids=sinks,
    )


def _result(
    check: Check,
    state: CheckState,
    reason: str,
    examined: int,
    *,
    rules: Sequence[str] = (),
    request_ids: Sequence[str] = (),
) -> CheckResult:
    return CheckResult(
        name=check.name, promise=check.promise, state=state, reason=reason, examined=examined,
        rules=tuple(rules), request_ids=tuple(request_ids)[:SHOWN_REQUESTS],
    )  # fmt: skip


def _count(requests: int) -> str:
    return f"{requests} request{'s' * (requests != 1)}"


def counted(results: Iterable[CheckResult]) -> Mapping[CheckState, int]:
    """Count check results by state."""
    states = [result.state for result in results]
    return {state: states.count(state) for state in CheckState}
