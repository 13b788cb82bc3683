"""The plain-text summary: short enough to be read aloud, complete enough to act on."""

from kvaudit.findings import AuditRun, Finding, OracleReport
from reports import neutral
from reports.redact import Redactor
from reports.wording import (
    VERDICT_WORDS,
    bound_sentence,
    counted,
    evidence_chance,
    finding_sentence,
    headline,
    oracle_sentence,
    oracle_state,
    rule_name,
    rules_of_sink,
    strongest_per_sink,
    worth,
)  # fmt: skip

FINDINGS_TOLD = 5


def summary_text(
    run: AuditRun, *, reveal: bool = False, key: bytes = b"", told: int = FINDINGS_TOLD
) -> str:
    """Return the summary as printable text, redacted, ending in one newline.

    Args:
        run: The judged run.
        reveal: Show text unredacted.
        key: Secret of the redaction tags.
        told: How many answers are told one by one; the rest is counted.
    """
    sections = [
        _opening(run),
        _findings(run, Redactor(key=key, reveal=reveal), told),
        _section("What each stratum is worth", [
            f"{neutral.name(bound.stratum)}: {bound_sentence(bound)}" for bound in run.bounds
        ] or ["no stratum was examined, so no rate is bounded"]),
        _oracles(run.oracles),
        _section("Not examinable", [
            f"{counted(item.count, 'request')}: {neutral.sentence(item.reason)}"
            for item in run.not_examinable
        ]),
        _repeat(run),
    ]  # fmt: skip
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(run: AuditRun) -> str:
    lines = [
        f"{VERDICT_WORDS[run.verdict].upper()} (exit status {run.verdict.exit_status})",
        headline(run),
        worth(run),
    ]
    # An inconclusive headline has told the first reason already.
    told = {run.reasons[0]} if run.reasons and run.verdict == "inconclusive" else set()
    lines += [f"Reason: {neutral.sentence(reason)}" for reason in run.reasons if reason not in told]
    return "\n".join(lines)


def _findings(run: AuditRun, redactor: Redactor, told: int) -> str:
    if not run.findings:
        return ""
    strongest = strongest_per_sink(run.findings)
    rules = rules_of_sink(run.findings)
    lines: list[str] = []
    for finding in strongest[:told]:
        lines += _told(finding, rules[finding.evidence.sink_request_id], redactor)
    if len(strongest) > told:
        lines.append(f"... and {counted(len(strongest) - told, 'more answer')} with findings.")
    has_source = any(finding.evidence.source is not None for finding in strongest)
    return _section("Whose text came out where" if has_source else "What was found", lines)


def _told(finding: Finding, rules: list[str], redactor: Redactor) -> list[str]:
    evidence = finding.evidence
    lines = [finding_sentence(finding)]
    if evidence.excerpt:
        shown = "" if redactor.reveal else " (redacted)"
        lines.append(f'    It reads{shown}: "{redactor.excerpt(evidence.excerpt)}"')
    named = ", ".join(f"{rule_id} {rule_name(rule_id)}" for rule_id in rules)
    lines.append(f"    Seen by {named}; {evidence_chance(finding)}.")
    return lines


def _oracles(oracles: tuple[OracleReport, ...]) -> str:
    lines: list[str] = []
    for state in ("fired", "silent", "not applied", "not available"):
        lines += [
            f"{oracle.rule_id} {rule_name(oracle.rule_id)}: {_in_words(state, oracle)}."
            for oracle in oracles
            if oracle_state(oracle) == state
        ]
    return _section("Oracles", lines or ["none was applied"])


def _in_words(state: str, oracle: OracleReport) -> str:
    sentence = oracle_sentence(oracle)
    return sentence if state == "not available" else f"{state} {sentence}"


def _repeat(run: AuditRun) -> str:
    lines = [neutral.sentence(run.repeat)] if run.repeat else ["no command was recorded"]
    seed = "" if run.seed is None else f", seed {run.seed}"
    lines.append(f"run {neutral.name(run.run_id)}, kvaudit {neutral.name(run.version)}{seed}")
    return _section("Repeat this run", lines)


def _section(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return "\n".join([title, *(f"  {line}" for line in lines)])
