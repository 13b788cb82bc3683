"""The incident report: a draft that fills what it can and says of the rest why it is unknown.

Fields follow Article 33(3) of the GDPR and what incident reviews ask for. Nothing here turns
responses into people, or "no evidence of" into "did not happen".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvaudit.findings import AuditRun, Kind, Verdict
from kvaudit.records import RequestRecord
from reports.events import EVENT_KINDS, FACT_NAMES, IncidentFacts
from reports.incident_cause import cause_hypothesis
from reports.incident_numbers import (
    Range,
    receiving_tenants,
    responses,
    source_tenants,
)
from reports.instants import duration_text, time_text
from reports.markdown import code, table, words
from reports.redact import Redactor, kinds_of_secrets
from reports.timeline import sent_times
from reports.wording import (
    FOREIGN_KINDS,
    KIND_WORDS,
    VERDICT_WORDS,
    bound_sentence,
    counted,
    evidence_chance,
    headline,
    names_source,
    rule_name,
    strongest_per_sink,
    worth,
)  # fmt: skip

CLOCK_HOURS = 72  # GDPR Article 33(1)
CLOCK_NS = CLOCK_HOURS * 3_600 * 1_000_000_000
EVIDENCE_ROWS_MAX = 50


class Field(NamedTuple):
    """One field of the form; `value` is Markdown, "" while it is unknown."""

    section: str
    name: str
    value: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    run: AuditRun
    records: Mapping[str, RequestRecord]
    incident: IncidentFacts
    redactor: Redactor


def render_incident(
    run: AuditRun,
    records: Mapping[str, RequestRecord],
    *,
    reveal: bool = False,
    key: bytes = b"",
    incident: IncidentFacts | None = None,
) -> bytes:
    """Return the draft as Markdown, UTF-8."""
    given = _Given(
        run=run, records=records, incident=incident or IncidentFacts(),
        redactor=Redactor(key=key, reveal=reveal),
    )  # fmt: skip
    parts = [_opening(given)]
    section = ""
    for number, shown in enumerate(incident_fields(run, records, incident, given.redactor), 1):
        if shown.section != section:
            section = shown.section
            parts.append(f"## {section}")
        value = shown.value or f"*unknown, because {shown.because}*"
        parts.append(f"**{number}. {shown.name}.** {value}")
    parts += [_timeline(given), _evidence(given), _reading()]
    return ("\n\n".join(part for part in parts if part) + "\n").encode("utf-8")


def incident_fields(
    run: AuditRun,
    records: Mapping[str, RequestRecord],
    incident: IncidentFacts | None = None,
    redactor: Redactor | None = None,
) -> list[Field]:
    """Return every field of the form, filled or with the reason why not."""
    given = _Given(
        run=run, records=records, incident=incident or IncidentFacts(),
        redactor=redactor or Redactor(),
    )  # fmt: skip
    groups: list[tuple[str, list[tuple[str, str, str]]]] = [
        ("Who reports", _who(given)),
        ("What happened", _what(given)),
        ("When", _when(given)),
        ("How many", _how_many(given)),
        ("Whose data", _whose(given)),
        ("Cause", _cause(given)),
        ("Consequences and measures", _measures(given)),
        ("Notifications", _notifications(given)),
        ("Limits of this report", _limits(given)),
    ]
    return [
        Field(section, name, value, because)
        for section, listed in groups
        for name, value, because in listed
    ]


def _opening(given: _Given) -> str:
    run = given.run
    synthetic = (
        "\n\nThese are the audit's own requests with synthetic texts: the numbers below count "
        "them, and not what real tenants sent or received."
        if run.command == "audit"
        else ""
    )
    shown = "revealed" if given.redactor.reveal else "redacted"
    return (
        f"# Incident report (draft): {VERDICT_WORDS[run.verdict].lower()}\n\n"
        f"{words(headline(run))} {words(worth(run))}\n\n"
        f"Run {code(run.run_id)}, kvaudit {code(run.version)}; texts are {shown}."
        f"{synthetic}"
    )


def _who(given: _Given) -> list[tuple[str, str, str]]:
    return [
        _fact(given, "Reference", "reference"),
        _fact(given, "Controller", "controller"),
        _fact(given, "Processor", "processor"),
        _fact(given, "Contact", "contact"),
    ]


def _what(given: _Given) -> list[tuple[str, str, str]]:
    run = given.run
    kinds = [kind for kind in Kind if any(finding.kind is kind for finding in run.findings)]
    nature = ""
    if run.verdict is Verdict.CONTAMINATED:
        nature = "Loss of confidentiality between tenants of one inference server: " + "; ".join(
            KIND_WORDS[kind] for kind in [k for k in kinds if k in FOREIGN_KINDS] or kinds
        )
    elif kinds:
        nature = "Not established. Findings: " + "; ".join(KIND_WORDS[kind] for kind in kinds)
    no_finding = "the run has no finding: no evidence of a leak, which is no proof of none"
    reasons = "; ".join(words(reason) for reason in run.reasons)
    target = run.target.get("kind")
    named = (run.target.get(name) for name in ("kind", "version", "model"))
    server = [str(value) for value in named if value]
    return [
        ("Nature", nature, no_finding),
        ("Verdict", f"{VERDICT_WORDS[run.verdict]}. {reasons}".strip(), ""),
        ("Service concerned", code(", ".join(server)) if target else "",
         "the run does not say what the server was"),
        ("How it was established", f"By {code(run.repeat)}" if run.repeat else "",
         "no command was recorded"),
    ]  # fmt: skip


def _when(given: _Given) -> list[tuple[str, str, str]]:
    sent = sent_times(given.run, given.records)
    times = sorted(moment for moment in sent.values() if moment is not None and time_text(moment))
    undated = len(sent) - len(times)
    no_time = "no response in a finding has a known time" if sent else "no response is in a finding"
    note = f"; for {undated:,} more the time is not known" if undated else ""
    rate = ""
    if times and times[-1] - times[0] >= 60_000_000_000:
        rate = f"{len(times) / ((times[-1] - times[0]) / 3.6e12):.3g} per hour"
    started = given.incident.first("deployed")
    return [
        ("First affected response", f"{time_text(times[0])}{note}" if times else "", no_time),
        ("Last affected response", time_text(times[-1]) if times else "", no_time),
        ("Observed window", duration_text(times[-1] - times[0]) if times else "", no_time),
        ("Affected responses per hour", rate,
         "the observed window is shorter than a minute" if times else no_time),
        ("Start of the fault", time_text(started.unix_ns) if started else "",
         "no event of kind `deployed` is given, and the first affected response that was seen "
         "need not be the first there was"),
        _event(given, "Detection", "detected", "reported"),
    ]  # fmt: skip


def _how_many(given: _Given) -> list[tuple[str, str, str]]:
    run = given.run
    return [
        ("Responses with foreign text", _range(responses(run), "response"), ""),
        ("Tenants that received foreign text",
         _range(receiving_tenants(run, given.records), "tenant"), ""),
        ("Tenants whose text it is", _range(source_tenants(run), "tenant"), ""),
        _fact(given, "Requests served in the window", "population"),
        ("Rate and bound", "; ".join(
            f"{words(bound.stratum)}: {bound_sentence(bound).rstrip('.')}" for bound in run.bounds
        ), "no stratum was examined"),
    ]  # fmt: skip


def _whose(given: _Given) -> list[tuple[str, str, str]]:
    counts = kinds_of_secrets(
        finding.evidence.excerpt for finding in given.run.findings if finding.evidence.excerpt
    )
    seen = ", ".join(f"{kind} ({count:,})" for kind, count in counts.items())
    is_purged = given.run.counts.get("purged_texts")
    unseen = (
        "the texts of this run were removed by `kvaudit purge --text`"
        if is_purged
        else "no excerpt holds a pattern that is recognised"
    )
    return [
        ("People concerned, and how many", *_fact(given, "", "subjects",
         "a tenant is not a person: how many people its texts name is not in the run")[1:]),
        ("Categories of personal data", *_fact(given, "", "categories")[1:]),
        ("What the shared texts look like", f"Patterns found in excerpts, not categories of data: "
         f"{seen}" if seen else "", unseen),
        _fact(given, "Countries concerned", "cross_border"),
    ]  # fmt: skip


def _cause(given: _Given) -> list[tuple[str, str, str]]:
    hypothesis = cause_hypothesis(given.run)
    return [
        _fact(given, "Cause as found", "cause"),
        ("Cause, as the evidence suggests", hypothesis,
         "the findings point to no one mechanism"),
        _event(given, "Cause found", "cause"),
    ]  # fmt: skip


def _measures(given: _Given) -> list[tuple[str, str, str]]:
    return [
        _fact(given, "Likely consequences", "consequences",
              "only who knows the texts and their readers can judge it"),
        _fact(given, "Measures taken or proposed", "measures"),
        _fact(given, "Measures against a repetition", "prevention"),
        _event(given, "Contained", "contained"),
        _event(given, "Fixed", "fixed"),
        _event(given, "Back to normal", "restored"),
    ]  # fmt: skip


def _notifications(given: _Given) -> list[tuple[str, str, str]]:
    aware, told = given.incident.first("aware"), given.incident.first("authority")
    deadline = ""
    if aware:
        due = aware.unix_ns + CLOCK_NS
        deadline = f"{time_text(due)}, {CLOCK_HOURS} hours after {time_text(aware.unix_ns)}"
        if told and told.unix_ns <= due:
            deadline += f"; notified {duration_text(due - told.unix_ns)} before it"
        elif told:
            deadline += f"; notified {duration_text(told.unix_ns - due)} late, which needs reasons"
        else:
            deadline += "; no notification is in the events"
    return [
        _event(given, "Controller became aware", "aware"),
        ("72-hour deadline", deadline, "no event of kind `aware` is given"),
        _event(given, "Supervisory authority notified", "authority"),
        _event(given, "Tenants told", "notified"),
        _fact(given, "How they are told", "notification"),
    ]


def _limits(given: _Given) -> list[tuple[str, str, str]]:
    run = given.run
    blind = "; ".join(
        f"{counted(item.count, 'request')}: {words(item.reason)}" for item in run.not_examinable
    )
    missing = "; ".join(
        f"{code(oracle.rule_id)} {rule_name(oracle.rule_id)}: {words(oracle.reason or 'no reason')}"
        for oracle in run.oracles
        if not oracle.available
    )
    return [
        ("Not examined", blind or "Nothing that was sent or read was left unexamined.", ""),
        ("Oracles that were not available", missing or "None.", ""),
    ]


def _timeline(given: _Given) -> str:
    if not given.incident.events:
        return "## Timeline\n\n*unknown, because no events file is given (`--events events.toml`)*"
    rows = [
        (time_text(event.unix_ns), event.kind, words(event.what)) for event in given.incident.events
    ]
    return "## Timeline\n\n" + table(("When (UTC)", "Kind", "What"), rows)


def _evidence(given: _Given) -> str:
    strongest = strongest_per_sink(given.run.findings)
    if not strongest:
        return "## Evidence\n\nThe run has no finding."
    rows = [
        (
            code(finding.evidence.sink_request_id),
            code(finding.evidence.sink_tenant),
            code(names_source(finding.evidence)),
            f"{code(finding.evidence.rule_id)} {rule_name(finding.evidence.rule_id)}",
            words(evidence_chance(finding)),
            code(given.redactor.excerpt(finding.evidence.excerpt))
            if finding.evidence.excerpt
            else "–",
        )
        for finding in strongest[:EVIDENCE_ROWS_MAX]
    ]
    header = ("Response", "Received by", "Source", "Strongest rule", "Chance", "Excerpt")
    left = len(strongest) - len(rows)
    more = f"\n\n{left:,} more responses are in the run's report.json." if left else ""
    return "## Evidence\n\n" + table(header, rows) + more


def _reading() -> str:
    return (
        "## How to read these numbers\n\n"
        "- A response is not a victim: one tenant can receive many responses, and one response can "
        "hold text of several tenants. A tenant is not a person.\n"
        "- The lower number is what evidence shows; the upper one adds what cannot be ruled out "
        "among the requests of this run. Neither counts a leak that left no trace.\n"
        "- “No evidence of” is not “did not happen”: it holds for what was examined, by the "
        "oracles that were available, up to the bounds above."
    )


def _fact(given: _Given, label: str, name: str, because: str = "") -> tuple[str, str, str]:
    value = given.incident.facts.get(name, "")
    reason = because or f"`{name}` ({FACT_NAMES[name]}) is not in the events file"
    return label, words(value) if value.strip() else "", reason


def _event(given: _Given, label: str, *kinds: str) -> tuple[str, str, str]:
    event = given.incident.first(*kinds)
    named = " or ".join(f"`{kind}`" for kind in kinds)
    because = f"no event of kind {named} ({EVENT_KINDS[kinds[0]]}) is given"
    return label, f"{time_text(event.unix_ns)}: {words(event.what)}" if event else "", because


def _range(count: Range, noun: str) -> str:
    if count.upper is None:
        lower = counted(count.lower, noun)
        return f"at least {lower}; upper limit unknown, because {count.because}"
    if count.upper == count.lower:
        return f"{counted(count.lower, noun)} (lower and upper limit)"
    return f"{count.lower:,} to {counted(count.upper, noun)}: {count.because}"
