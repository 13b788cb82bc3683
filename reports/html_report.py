"""The HTML report: one file, no network, the same bytes from the same run."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvaudit.findings import AuditRun, Kind
from kvaudit.records import RequestRecord
from reports import neutral
from reports.events import IncidentFacts
from reports.glossary import GLOSSARY
from reports.html_view import (
    WHOLE_SINKS_MAX,
    bound_view,
    flat_items,
    matrix_view,
    oracle_view,
    sink_views,
)  # fmt: skip
from reports.instants import time_text
from reports.redact import Redactor
from reports.timeline import timeline
from reports.wording import VERDICT_WORDS, headline, tally, worth

SINKS_SHOWN_AT_ONCE = 50  # the page's own script unfolds more


def report_html(
    run: AuditRun,
    records: Mapping[str, RequestRecord],
    reveal: bool = False,
    *,
    key: bytes = b"",
    incident: IncidentFacts | None = None,
) -> bytes:
    """Return the page as UTF-8.

    Args:
        run: The judged run.
        records: Records by request id; a missing one is said to be missing.
        reveal: Show text unredacted.
        key: Secret of the redaction tags.
        incident: Events to be marked in the timeline.
    """
    redactor = Redactor(key=key, reveal=reveal)
    style, script = _asset("report.css"), _asset("report.js")
    page = _environment().get_template("report.html.j2").render(
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704  our own file, and no character of a run in it
        script=Markup(script),  # noqa: S704  likewise
        run_id=neutral.name(run.run_id),
        command=neutral.name(run.command),
        version=neutral.name(run.version),
        repeat=neutral.sentence(run.repeat),
        seed=run.seed,
        verdict=run.verdict.value,
        verdict_word=VERDICT_WORDS[run.verdict],
        exit_status=run.verdict.exit_status,
        headline=headline(run),
        worth=worth(run),
        reasons=[neutral.sentence(reason) for reason in run.reasons],
        started=time_text(run.started_unix_ns),
        ended=time_text(run.ended_unix_ns),
        tally=tally(run),
        censored=sum(bound.censored for bound in run.bounds),
        finding_count=len(run.findings),
        candidate_count=len(run.candidates),
        sinks=sink_views(run, records, redactor),
        shown_at_once=SINKS_SHOWN_AT_ONCE,
        whole_max=WHOLE_SINKS_MAX,
        matrix=matrix_view(run),
        timeline=timeline(run, records, incident.events if incident else ()),
        oracles=[oracle_view(oracle) for oracle in run.oracles],
        bounds=[bound_view(bound) for bound in run.bounds],
        not_examinable=[(neutral.sentence(item.reason), item.count) for item in run.not_examinable],
        counts=[(neutral.name(name), count) for name, count in run.counts.items()],
        target=flat_items(run.target),
        config=flat_items(run.config),
        reveal=reveal,
        is_preflight=any(finding.kind is Kind.HAZARD for finding in run.findings),
        glossary=GLOSSARY,
    )  # fmt: skip
    return (page.rstrip("\n") + "\n").encode("utf-8", "strict")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _asset(name: str) -> str:
    return resources.files("reports").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a policy that loads nothing and runs nothing but the page's own style and script."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
    return f"'sha256-{digest}'"
