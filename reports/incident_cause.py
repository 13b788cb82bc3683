"""From the rules that fired to a cause that would explain them: a hypothesis, never a finding."""

from collections.abc import Mapping

from kvaudit.findings import AuditRun
from reports.markdown import code
from reports.wording import counted

# Rules that must all have fired, and what would explain them together; the first that fits is told.
_HYPOTHESES: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"KVA302"}),
        "prompts longer than a pool can hold were answered instead of refused, so that answers "
        "were computed from KV-cache pages that earlier requests left",
    ),
    (
        frozenset({"KVA305"}),
        "the prefill and decode roles disagreed on the length of one request, so that pages were "
        "read that were never written for it",
    ),
    (
        frozenset({"KVA306"}),
        "fewer KV-cache bytes were transferred than the prompt needed, so that pages kept what "
        "earlier requests left",
    ),
    (
        frozenset({"KVA304", "KVA201"}),
        "a prefix cache served pages of another tenant's prompt",
    ),
    (
        frozenset({"KVA301"}),
        "the server computed answers from another prompt than the one that was sent",
    ),
    (
        frozenset({"KVA203"}),
        "answers were delivered to requests that they do not belong to (a cache or a routing of "
        "responses)",
    ),
)


def cause_hypothesis(run: AuditRun) -> str:
    """Return the hypothesis with its evidence as Markdown; "" if nothing points to one."""
    fault = run.config.get("fault")
    if isinstance(fault, str) and fault:
        return f"The fault {code(fault)} was switched on in the reference engine for this run."
    sinks = _sinks_by_rule(run)
    for rule_ids, explanation in _HYPOTHESES:
        if rule_ids <= set(sinks):
            seen = ", ".join(
                f"{code(rule_id)} on {counted(len(found), 'response')}"
                for rule_id, found in sorted(sinks.items())
            )
            return f"Hypothesis: {explanation}. Evidence: {seen}."
    return ""


def _sinks_by_rule(run: AuditRun) -> Mapping[str, set[str]]:
    sinks: dict[str, set[str]] = {}
    for finding in run.findings:
        sinks.setdefault(finding.evidence.rule_id, set()).add(finding.evidence.sink_request_id)
    return sinks
