"""JUnit XML: what a CI shows. An inconclusive run is an error there, never a pass.

One test case says the verdict, one each stratum, one each oracle. An oracle that was not available
is skipped with its reason; one that is silent passes. Of a preflight, each hazard that holds is one
(a warning passes), and each question that decides and that no source answers.
"""

from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from kvaudit.findings import AuditRun, Bound, Finding, OracleReport, Severity, Verdict
from reports import neutral
from reports.hazard_words import hazard_name, hazard_sentence, is_hazard, open_questions
from reports.instants import time_text
from reports.redact import Redactor
from reports.wording import (
    bound_sentence,
    evidence_chance,
    finding_sentence,
    headline,
    oracle_sentence,
    rule_name,
    sorted_findings,
    worth,
)  # fmt: skip

FINDINGS_TOLD_PER_RULE = 100


class _Case(NamedTuple):
    """One test case; `element` is "", `failure`, `error` or `skipped`."""

    group: str
    name: str
    element: str
    message: str
    text: str = ""


def render_junit(run: AuditRun, *, reveal: bool = False, key: bytes = b"") -> bytes:
    """Return the run as JUnit XML, UTF-8."""
    redactor = Redactor(key=key, reveal=reveal)
    cases = [
        _verdict(run),
        *(_stratum(bound, run.verdict) for bound in run.bounds),
        *(_oracle(oracle, run, redactor) for oracle in run.oracles),
        *(_hazard(finding) for finding in sorted_findings(run.findings) if is_hazard(finding)),
        *(
            _Case("unknown", asked, "error", f"no source tells it; on it hangs: {hanging}")
            for asked, hanging in open_questions(run)
        ),
    ]
    name = f"kvaudit {neutral.name(run.command)}"
    totals = {**_totals(cases), "time": _seconds(run)}
    # Jenkins' schema has no count of skipped cases in the root.
    root = {key: value for key, value in totals.items() if key != "skipped"}
    suites = Element("testsuites", {"name": name, **root})
    suite = SubElement(suites, "testsuite", {"name": name, **totals})
    if time_text(run.started_unix_ns):
        suite.set("timestamp", time_text(run.started_unix_ns).split(".")[0])
    properties = SubElement(suite, "properties")
    for key_name, value in _properties(run):
        SubElement(properties, "property", name=key_name, value=value)
    for case in cases:
        shown = SubElement(suite, "testcase", classname=f"kvaudit.{case.group}", name=case.name)
        shown.set("time", "0")
        if case.element:
            inner = SubElement(shown, case.element, message=case.message)
            if case.element != "skipped":
                inner.set("type", case.group)
            inner.text = case.text or None
    indent(suites)
    content: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _verdict(run: AuditRun) -> _Case:
    element = {
        Verdict.CLEAN: "", Verdict.INCONCLUSIVE: "error",
        Verdict.AT_RISK: "failure", Verdict.CONTAMINATED: "failure",
    }[run.verdict]  # fmt: skip
    text = "\n".join([worth(run), *map(neutral.sentence, run.reasons)])
    is_preflight = run.command == "preflight"
    name = "no known hazard decides" if is_preflight else "no tenant's text reached another"
    return _Case("verdict", name, element, headline(run), text)


def _hazard(finding: Finding) -> _Case:
    severity = finding.severity
    name = f"{neutral.name(finding.evidence.rule_id)} {hazard_name(finding)} ({severity.value})"
    element = "failure" if severity in (Severity.CRITICAL, Severity.ERROR) else ""
    return _Case("hazard", name, element, hazard_sentence(finding))


def _stratum(bound: Bound, verdict: Verdict) -> _Case:
    name, sentence = f"stratum {neutral.name(bound.stratum)}", bound_sentence(bound)
    if bound.detections and verdict is Verdict.CONTAMINATED:
        return _Case("stratum", name, "failure", sentence)
    if bound.detections or bound.upper is None or not bound.requests:
        return _Case("stratum", name, "error", sentence)
    return _Case("stratum", name, "", sentence)


def _oracle(oracle: OracleReport, run: AuditRun, redactor: Redactor) -> _Case:
    name = f"{neutral.name(oracle.rule_id)} {rule_name(oracle.rule_id)}"
    sentence = oracle_sentence(oracle)
    if not oracle.available or not oracle.examined:
        return _Case("oracle", name, "skipped", sentence)
    mine = [f for f in sorted_findings(run.findings) if f.evidence.rule_id == oracle.rule_id]
    if not mine:
        return _Case("oracle", name, "", sentence)
    lines = [_line(finding, redactor) for finding in mine[:FINDINGS_TOLD_PER_RULE]]
    if len(mine) > FINDINGS_TOLD_PER_RULE:
        lines.append(f"and {len(mine) - FINDINGS_TOLD_PER_RULE:,} more")
    element = "failure" if run.verdict is Verdict.CONTAMINATED else "error"
    # A finding that does not decide the verdict must not turn a clean run red.
    return _Case("oracle", name, "" if run.verdict is Verdict.CLEAN else element, sentence,
                 "\n".join(lines))  # fmt: skip


def _line(finding: Finding, redactor: Redactor) -> str:
    excerpt = finding.evidence.excerpt
    reads = f' It reads: "{redactor.excerpt(excerpt)}".' if excerpt else ""
    return f"{finding_sentence(finding)}{reads} {evidence_chance(finding).capitalize()}."


def _totals(cases: list[_Case]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(case.element == "failure" for case in cases)),
        "errors": str(sum(case.element == "error" for case in cases)),
        "skipped": str(sum(case.element == "skipped" for case in cases)),
    }


def _seconds(run: AuditRun) -> str:
    if run.started_unix_ns is None or run.ended_unix_ns is None:
        return "0"
    return f"{max(run.ended_unix_ns - run.started_unix_ns, 0) / 1e9:.3f}"


def _properties(run: AuditRun) -> list[tuple[str, str]]:
    return [
        ("verdict", run.verdict.value),
        ("run_id", neutral.name(run.run_id)),
        ("version", neutral.name(run.version)),
        ("seed", "none" if run.seed is None else str(run.seed)),
        ("repeat", neutral.sentence(run.repeat)),
        *((f"not_examinable: {neutral.name(item.reason)}", str(item.count))
          for item in run.not_examinable),
    ]  # fmt: skip
