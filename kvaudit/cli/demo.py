"""`kvaudit demo`: one leak from both sides, then the same deployment with the fix on.

Nothing is played: two audits run in this process, and the story is read back from their records.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit.cli.flags import Json, Out, Quiet, Seed
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.findings import AuditRun, Finding, Kind, Verdict
from kvaudit.records import Outcome, RequestRecord, Role

FAULT = "reject-not-propagated"
FIX = "door"
DEFAULT_SEED = 1
TRIALS = 8  # one more than a clean verdict needs
SHOWN_CHARS = 220
INDENT = "      "


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One of the two runs, as it was read back.

    Attributes:
        path: Its run folder.
        run: The judged run.
        records: Its requests by id.
    """

    path: Path
    run: AuditRun
    records: Mapping[str, RequestRecord]


def demo(out: Out = None, seed: Seed = None, json: Json = False, quiet: Quiet = False) -> int:
    """Show a leak in the built-in engine, and the same engine with the fix on; a minute or two."""
    from kvaudit.clock import WallClock, iso_utc

    started = iso_utc(WallClock().unix_ns()).replace(":", "").split(".")[0]
    home = out or Path("kvaudit-runs") / f"{started}-demo"
    chosen = DEFAULT_SEED if seed is None else seed
    plan = {"fault": FAULT, "trials": TRIALS, "seed": chosen}
    red = _audited(plan, home / "red", quiet=quiet)
    green = _audited(plan | {"fix": [FIX]}, home / "green", quiet=quiet)
    status = status_of(red.run.verdict, green.run.verdict)
    if json:
        write_json(_as_json(red, green, status))
    else:
        write_text("\n".join(story(red, green)) + "\n")
    return status


def status_of(red: Verdict, green: Verdict) -> int:
    """0 when the defect was seen and the fix is clean; 3 when a run could not tell; else 1."""
    if red is Verdict.CONTAMINATED and green is Verdict.CLEAN:
        return 0
    return 3 if Verdict.INCONCLUSIVE in (red, green) else 1


def story(red: Chapter, green: Chapter) -> list[str]:
    """Return the lines of the story, told from the records alone."""
    told = strongest(red)
    lines = _opening(red)
    if told is None:
        lines += [
            "",
            "  No answer shows another tenant's text.",
            *_ending(red, expected="contaminated"),
        ]
    else:
        lines += [*_exposure(red, told), *_ending(red, expected="contaminated")]
    return [*lines, "", *_second_half(green, told), "", *_where(red, green)]


def strongest(chapter: Chapter) -> Finding | None:
    """Return the exposure that is told: most rules on its answer, then the smallest chance."""
    exposures = [
        finding
        for finding in chapter.run.findings
        if finding.kind is Kind.EXPOSURE and finding.evidence.source is not None
    ]
    return min(
        exposures,
        key=lambda finding: (
            -len(_rules_on(chapter.run, finding.evidence.sink_request_id)),
            1.0 if finding.evidence.chance is None else finding.evidence.chance,
            finding.evidence.sink_request_id,
        ),
        default=None,
    )


def _audited(flags: dict[str, Any], out: Path, *, quiet: bool) -> Chapter:
    """Audit the reference engine into `out`, then read the run back from there."""
    from kvaudit.cli.audit_run import Options, run_audit
    from kvaudit.clock import WallClock
    from kvaudit.store.reading import open_run

    options = Options(
        out=out,
        as_json=False,
        is_quiet=quiet,
        is_dry_run=False,
        is_resumed=False,
        retries_unknown=False,
        flags=flags,
        settings={},
    )
    if not quiet:
        say(f"auditing into {out}")
    folder = run_audit(options, WallClock())
    assert folder is not None, "this is no dry run"
    with open_run(folder, reveal=True) as reader:
        run = reader.run()
        records = {record.request_id: record for record in reader.records()}
    assert run is not None, "an audit that returned has been judged"
    return Chapter(path=out, run=run, records=records)


def _opening(chapter: Chapter) -> list[str]:
    run, records = chapter.run, chapter.records.values()
    tenants = {record.tenant for record in records}
    return [
        f"1. A server with a defect: `{FAULT}`",
        "",
        *_paragraph(
            f"{_server(run)} {len(records):,} requests of {len(tenants)} tenants were sent. Each"
            " prompt holds secrets that were minted for it and stand nowhere else; never-sent twins"
            " of them are the control."
        ),
    ]


def _server(run: AuditRun) -> str:
    """Say how large the pools are, as the target itself told."""
    roles = run.target.get("roles")
    pools = [
        f"{role['role']} pool {role['pool_tokens']:,}"
        for role in (roles if isinstance(roles, list) else [])
        if isinstance(role, dict) and isinstance(role.get("pool_tokens"), int)
    ]
    context = run.target.get("context_tokens")
    told = f"context {context:,} tokens, " if isinstance(context, int) else ""
    return f"The built-in engine, model `{run.target.get('model')}`: {told}{', '.join(pools)}."


def _exposure(chapter: Chapter, finding: Finding) -> list[str]:
    from reports.wording import evidence_chance, rule_name

    evidence = finding.evidence
    assert evidence.source is not None, "an exposure that is told names its source"
    sink = chapter.records[evidence.sink_request_id]
    source = chapter.records[evidence.source.request_id]
    seen = [
        f"    {rule_id} {rule_name(rule_id)}: {evidence_chance(other)}"
        for rule_id, other in _rules_on(chapter.run, sink.request_id).items()
    ]
    return [
        "",
        f"  What {sink.tenant} asked ({sink.request_id}, {sink.prompt_tokens_sent:,} tokens):",
        *_quoted(_tail(sink.prompt_text)),
        *_own_secret(sink),
        f"  What came back (status {sink.status}, finish reason `{sink.finish_reason}`, usage"
        f" {sink.prompt_tokens} + {sink.completion_tokens} tokens):",
        *_quoted(sink.output_text or ""),
        f"  Whose text that is ({source.tenant}, {evidence.source.side.value} of"
        f" {source.request_id}):",
        *_quoted(_around(source.prompt_text, evidence.excerpt)),
        "  Seen by:",
        *seen,
    ]


def _own_secret(sink: RequestRecord) -> list[str]:
    if sink.expected is None:
        return []
    held = "is" if sink.expected in (sink.output_text or "") else "is not"
    return [
        f"    The right answer is its own `{escape(sink.expected)}`, which {held} in the reply.",
        "",
    ]


def _ending(chapter: Chapter, *, expected: str) -> list[str]:
    run = chapter.run
    verdict = run.verdict.value
    remark = "" if verdict == expected else f", where {expected} was to be shown"
    return [
        "",
        *_paragraph(_how_many(chapter)),
        f"  Verdict: {verdict}, exit status {run.verdict.exit_status}{remark}",
        *(line for reason in run.reasons[:3] for line in _paragraph(reason, indent="    ")),
    ]


def _how_many(chapter: Chapter) -> str:
    """Count what came back to the requests that could meet foreign pages."""
    triggers = [held for held in chapter.records.values() if held.role is Role.TRIGGER]
    hit = [held for held in triggers if held.request_id in _exposed(chapter.run)]
    successes = sum(held.status == 200 for held in hit)
    return (
        f"{len(hit):,} of {len(triggers):,} prompts over the first limit were answered with"
        f" another tenant's text; {successes:,} of these answers have status 200."
    )


def _second_half(chapter: Chapter, told: Finding | None) -> list[str]:
    from reports.wording import bound_sentence

    run = chapter.run
    lines = [f"2. The same server, same seed, same plan, with the fix `{FIX}` on", ""]
    if told is not None:
        lines += _same_request(chapter, told.evidence.sink_request_id)
    right = sum(_is_right(record) for record in chapter.records.values())
    lines += [
        f"  Answers that hold their own secret: {right:,}."
        f" Answers that hold another tenant's: {len(_exposed(run)):,}.",
        f"  Verdict: {run.verdict.value}, exit status {run.verdict.exit_status}",
        "  What that is worth:",
    ]
    for bound in run.bounds:
        lines += _paragraph(f"{bound.stratum}: {bound_sentence(bound)}", indent="    ")
    if run.verdict is not Verdict.CLEAN:
        lines += [line for reason in run.reasons[:3] for line in _paragraph(reason, indent="    ")]
    return lines


def _same_request(chapter: Chapter, request_id: str) -> list[str]:
    record = chapter.records.get(request_id)
    if record is None:
        return [f"  The request {request_id} was not sent again.", ""]
    if record.outcome is Outcome.REFUSED:
        message = record.error_message or record.error_type
        told = f"The same request {request_id} is now refused with {record.status}: {message}"
        return [*_paragraph(told), ""]
    return [
        f"  The same request {request_id} now ends as `{record.outcome.value}`:",
        *_quoted(record.output_text or ""),
    ]


def _where(red: Chapter, green: Chapter) -> list[str]:
    return [
        "3. Look for yourself",
        "",
        f"  Reports:  {red.path / 'report.html'}",
        f"            {green.path / 'report.html'}",
        f"  Ask:      kvaudit query {red.path} pairs",
        f"  Repeat:   {red.run.repeat}",
        f"            {green.run.repeat}",
    ]


def _rules_on(run: AuditRun, request_id: str) -> dict[str, Finding]:
    """Return the strongest finding of each rule on one answer, in the order of the run."""
    found: dict[str, Finding] = {}
    for finding in run.findings:
        if finding.evidence.sink_request_id == request_id:
            found.setdefault(finding.evidence.rule_id, finding)
    return found


def _exposed(run: AuditRun) -> set[str]:
    """Return the ids of the answers in which a source's text was found."""
    return {
        finding.evidence.sink_request_id
        for finding in run.findings
        if finding.kind is Kind.EXPOSURE
    }


def _is_right(record: RequestRecord) -> bool:
    return (
        record.role is not Role.CALIBRATION
        and record.expected is not None
        and record.expected in (record.output_text or "")
    )


def _tail(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else "… " + text[-SHOWN_CHARS:].split(" ", 1)[-1]


def _around(text: str, needle: str) -> str:
    """Return the surroundings of `needle`; the beginning of the text where it is not found."""
    at = max(text.find(needle), 0)
    start = max(at - SHOWN_CHARS // 3, 0)
    end = min(max(at + len(needle), start + SHOWN_CHARS), len(text))
    shown = text[start:end]
    return f"{'… ' if start else ''}{shown.strip()}{' …' if end < len(text) else ''}"


def _quoted(text: str) -> list[str]:
    shown = escape(" ".join(text.split()))
    cut = shown if len(shown) <= 2 * SHOWN_CHARS else shown[: 2 * SHOWN_CHARS] + " …"
    wrapped = textwrap.wrap(cut, width=90, break_on_hyphens=False) or ["(nothing)"]
    return [*(f"{INDENT}| {line}" for line in wrapped), ""]


def _paragraph(text: str, *, indent: str = "  ") -> list[str]:
    wrapped = textwrap.wrap(escape(text), width=96 - len(indent), break_on_hyphens=False)
    return [f"{indent}{line}" for line in wrapped]


def _as_json(red: Chapter, green: Chapter, status: int) -> dict[str, object]:
    from reports.json_report import report_json

    chapters: Sequence[tuple[str, Chapter]] = (("red", red), ("green", green))
    return {
        "schema": 1,
        "command": "demo",
        "exit_status": status,
        "items": [
            {"name": name, "path": str(chapter.path), "report": report_json(chapter.run)}
            for name, chapter in chapters
        ],
    }
