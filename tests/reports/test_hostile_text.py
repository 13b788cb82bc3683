"""Whatever an attacker writes: every format stays well-formed, bounded, printable and silent."""

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from markdown_it import MarkdownIt

from reports import FORMATS, ReportInput
from reports.json_report import ID_DETAIL_KEYS
from reports.tenant_annex import render_annex

PAYLOADS = json.loads((Path(__file__).parent.parent / "data/hostile_payloads.json").read_text())
BYTES_MAX = 400_000
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
FORBIDDEN = {"iframe", "img", "object", "embed", "link", "base", "form", "template"}
BEACON = "http://127.0.0.1:9/beacon"


def text_of(payload):
    return payload["text"].replace("BEACON", BEACON) * payload.get("repeat", 1)


def hidden_characters(text):
    return sorted(
        {hex(ord(char)) for char in text if unicodedata.category(char) in HIDDEN} - {"0xa"}
    )


class Tags(HTMLParser):
    """Collects what a browser would build."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.strange = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            href_away = name == "href" and not (value or "").startswith("#")
            if name.startswith("on") or name in ("style", "src", "action", "srcdoc") or href_away:
                self.strange.append((tag, name, value))


def check_html(content):
    page = Tags(content)
    assert page.tags.count("script") == 1
    assert page.tags.count("style") == 1
    assert not {"iframe", "img", "object", "embed", "link", "base", "form", "template"} & set(
        page.tags
    )
    assert page.strange == []


def check_markdown(content):
    page = Tags(MarkdownIt("commonmark").enable("table").render(content))
    allowed = {
        "h1", "h2", "p", "strong", "em", "code", "table", "thead", "tbody", "tr", "th", "td",
        "ul", "li",
    }  # fmt: skip
    assert set(page.tags) <= allowed
    assert page.strange == []
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", content)
    assert "://" not in outside_code


def without_ids(value):
    """Ids stay the log's own in JSON, where they are escaped; all else is printable as it is."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ID_DETAIL_KEYS}
    return value


def check_json(content):
    told = without_ids(json.loads(content))
    assert told["verdict"] == "contaminated"
    assert [hidden_characters(text) for text in strings(told) if hidden_characters(text)] == []


def check_sarif(content):
    told = json.loads(content)
    assert [hidden_characters(text) for text in strings(told) if hidden_characters(text)] == []
    for result in told["runs"][0]["results"]:
        assert result["message"]["text"]
        assert not re.search(r"(?<!\\)[\[\]]", result["message"]["text"])


def check_junit(content):
    suite = ET.fromstring(content).find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == 4
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))


def check_csv(content):
    lines = list(csv.reader(io.StringIO(content, newline="")))
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    for cell in (cell for line in lines for cell in line):
        assert not cell.lstrip(" ").startswith(tuple("=+-@|%\t\r\n＝＋－＠"))
        assert "\n" not in cell
        assert "\r" not in cell


def check_text(content):
    lines = content.split("\n")
    assert len(lines) < 100
    assert max(map(len, lines)) < 10_000
    assert not [line for line in lines if line.lstrip().startswith("::") or "##vso[" in line]


CHECKS = {
    "html": check_html, "json": check_json, "text": check_text, "markdown": check_markdown,
    "sarif": check_sarif, "junit": check_junit, "csv": check_csv,
}  # fmt: skip


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def test_there_are_at_least_sixty_payloads_with_names_of_their_own():
    assert len({payload["name"] for payload in PAYLOADS}) == len(PAYLOADS) >= 60


def test_every_text_format_has_its_check():
    assert set(CHECKS) == set(FORMATS) - {"parquet"}


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload["name"])
def test_hostile_text_breaks_no_format(payload, hostile_case, key):
    run, records = hostile_case(text_of(payload))
    for reveal in (False, True):
        given = ReportInput(run=run, records=records, key=key, reveal=reveal)
        for name, check in CHECKS.items():
            content = FORMATS[name].render(given)
            assert len(content) < BYTES_MAX, (name, len(content))
            decoded = content.decode("utf-8")
            if name != "csv":  # its line ends are checked by its own check
                assert hidden_characters(decoded) == [], name
            check(decoded)
        annex = render_annex(run, records, text_of(payload), reveal=reveal, key=key)
        check_markdown(annex.decode("utf-8"))


@pytest.mark.parametrize(
    "name", ["script tag", "nul", "lone surrogates", "csv formula equals", "line breaks", "empty"]
)
def test_hostile_text_goes_through_parquet(name, hostile_case, key):
    payload = next(payload for payload in PAYLOADS if payload["name"] == name)
    run, records = hostile_case(text_of(payload))
    content = FORMATS["parquet"].render(ReportInput(run=run, records=records, key=key))
    table = pl.read_parquet(io.BytesIO(content))
    assert table["row"].to_list() == ["run", "finding", "finding"]
    for text in table["text"].to_list():
        assert hidden_characters(text) == []
