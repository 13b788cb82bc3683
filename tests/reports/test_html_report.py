"""The page, read as a browser would, without one."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kvaudit.findings import Evidence, Finding, Kind, Severity
from reports.events import Event, IncidentFacts
from reports.html_report import report_html

VOID = {"meta", "input", "br", "link", "img", "circle", "path", "rect", "line"}


class Outline(HTMLParser):
    """Checks nesting; collects ids, links, headings and references."""

    def __init__(self, content):
        super().__init__()
        self.open, self.ids, self.links, self.headings, self.labels = [], [], [], [], []
        self.tables = 0
        self.feed(content.decode("utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "aria-labelledby" in attrs:
            self.labels.append(attrs["aria-labelledby"])
        if tag == "th":
            assert attrs.get("scope") in ("row", "col")
        self.tables += tag == "caption"

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
def test_the_page_is_nested_labelled_and_linked_without_a_break(which, request, records, key):
    content = report_html(request.getfixturevalue(which), records, key=key)
    page = Outline(content)
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert set(page.labels) <= set(page.ids)
    assert page.headings[0] == 1
    assert all(
        after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False)
    )
    assert content.count(b"<table") == page.tables


def test_one_run_gives_the_same_page_twice(incident, records, key):
    again = dict(reversed(records.items()))
    assert report_html(incident, records, key=key) == report_html(incident, again, key=key)


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else(incident, records):
    page = report_html(incident, records).decode("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_shared_text_is_marked_in_source_and_sink_and_redacted(incident, records, key):
    page = report_html(incident, records, key=key).decode("utf-8")
    secret = records["fill-0"].canaries[0]
    article = page[page.index("trigger-0</bdi>") : page.index("trigger-1</bdi>")]
    marked = re.findall(r"<mark>([^<]*)</mark>", article)
    code = next(text for text in marked if text.startswith("[code"))
    assert marked.count(code) == 2
    assert secret.code_text not in page
    assert secret.phrase not in page
    assert records["trigger-0"].canaries[0].phrase not in page


def test_no_key_and_no_secret_of_the_run_stands_in_the_page(incident, records, key):
    page = report_html(incident, records, key=key)
    assert key not in page
    assert key.hex().encode() not in page


def test_revealed_pages_show_the_text_and_warn(incident, records, key):
    page = report_html(incident, records, True, key=key).decode("utf-8")
    assert records["fill-0"].canaries[0].code_text in page
    assert "Texts are revealed." in page


def test_the_own_prompts_words_in_an_answer_are_marked_as_own(incident, records, key):
    page = report_html(incident, records, True, key=key).decode("utf-8")
    assert re.search(r'<span class="own">[^<]*Quarterly minutes of the garden club', page)


def test_a_text_that_is_not_kept_is_said_not_to_be_kept(incident, key):
    page = report_html(incident, {}, key=key).decode("utf-8")
    assert "The text of this request is not kept in the run." in page


def test_records_without_text_are_said_to_hold_none(incident, records, key):
    bare = {
        name: replace(record, messages=(), output_text=None) for name, record in records.items()
    }
    page = report_html(incident, bare, key=key).decode("utf-8")
    assert "The text of this request is not kept in the run." in page


def test_a_run_in_which_nothing_was_examined_says_so_in_every_section(undecided):
    page = report_html(undecided, {}).decode("utf-8")
    for sentence in (
        "No oracle was applied.",
        "No stratum was examined, so no rate is bounded.",
        "rate limited (429)",
        "No command was recorded.",
        "It is no pass",
    ):
        assert sentence in page


def test_events_are_marked_in_the_timeline(incident, records):
    start = incident.started_unix_ns
    events = (
        Event(unix_ns=start + 20_000_000_000, kind="fixed", what="configuration pushed"),
        Event(unix_ns=start + 10**15, kind="restored", what="public again"),
    )
    page = report_html(incident, records, incident=IncidentFacts(events=events)).decode("utf-8")
    assert page.count('class="event"') == 1
    assert "configuration pushed" in page
    assert "(outside the chart)" in page


def test_a_span_that_lies_outside_its_text_breaks_nothing(incident, records, key):
    finding = incident.findings[0]
    wrong = replace(finding.evidence.source, span=replace(finding.evidence.source.span, end=10**9))
    evidence = replace(finding.evidence, source=wrong, sink_span=None, excerpt="")
    run = replace(incident, findings=(replace(finding, evidence=evidence),))
    assert b"trigger-0" in report_html(run, records, key=key)


def test_a_span_beyond_its_text_shows_the_start_of_the_text_unmarked(incident, records, key):
    finding = incident.findings[0]
    beyond = replace(finding.evidence.source.span, start=10**8, end=10**9)
    source = replace(finding.evidence.source, span=beyond)
    evidence = replace(finding.evidence, source=source, sink_span=beyond, excerpt="")
    run = replace(incident, findings=(replace(finding, evidence=evidence),))
    page = report_html(run, records, True, key=key).decode("utf-8")
    article = page[page.index("<article") : page.index("</article>")]
    assert "Contract note for Anna Schmidt" in article
    assert "<mark>" not in article


def test_hazards_are_shown_without_counts_of_responses():
    from kvaudit.findings import AuditRun, Verdict

    hazard = Finding(
        evidence=Evidence(rule_id="KVA701", sink_request_id="prefill", sink_tenant="-"),
        kind=Kind.HAZARD,
        severity=Severity.CRITICAL,
    )
    run = AuditRun(
        run_id="r", command="preflight", version="0", verdict=Verdict.AT_RISK, reasons=(),
        findings=(hazard,),
    )  # fmt: skip
    page = report_html(run, {}).decode("utf-8")
    assert "responses with foreign text" not in page
    assert "pool-below-context" in page
