"""Ids of requests stay the log's own for programs, and are printable for people."""

import csv
import io
import json
from dataclasses import replace

import polars as pl
import pytest

from kvaudit.findings import Source
from reports import FORMATS, ReportInput
from reports.neutral import json_escaped, name

SINK = "req\u202e-1\x1b[31m\n\u200b\U000e0041"
SOURCE = "src\ufe0f\u0301\u0301\u0301\u0301\u0301::error"


@pytest.fixture
def odd(incident):
    finding = incident.findings[0]
    source = Source(request_id=SOURCE, tenant="a", side=finding.evidence.source.side)
    evidence = replace(
        finding.evidence, sink_request_id=SINK, source=source,
        details={
            "record_id": SINK, "capacity_source": "estimated",
            "other_sources": [{"request_id": SOURCE, "tenant": "c"}],
        },
    )  # fmt: skip
    return ReportInput(
        run=replace(incident, findings=(replace(finding, evidence=evidence),)), records={}, key=b"k"
    )


def test_the_json_has_the_logs_own_ids_and_shows_nothing_invisible(odd):
    text = FORMATS["json"].render(odd).decode()
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\u202e" in text
    (finding,) = json.loads(text)["findings"]
    assert finding["sink"]["request_id"] == SINK
    assert finding["source"]["request_id"] == SOURCE
    assert finding["details"]["record_id"] == SINK
    assert finding["details"]["other_sources"][0]["request_id"] == SOURCE
    assert finding["details"]["capacity_source"] == "estimated"


def test_parquet_has_the_logs_own_ids_and_csv_shows_them_printable(odd):
    table = pl.read_parquet(io.BytesIO(FORMATS["parquet"].render(odd)))
    assert table["sink_request_id"].to_list() == [None, SINK]
    assert table["source_request_id"].to_list() == [None, SOURCE]
    _, row = csv.DictReader(io.StringIO(FORMATS["csv"].render(odd).decode(), newline=""))
    assert row["sink_request_id"].isprintable()
    assert row["sink_request_id"] == name(SINK)


@pytest.mark.parametrize("format_name", ["text", "html", "markdown"])
def test_people_see_printable_ids_alone(odd, format_name):
    shown = FORMATS[format_name].render(odd).decode()
    assert "\u202e" not in shown
    assert "\x1b" not in shown


def test_escaping_keeps_what_a_json_text_means():
    for text in (SINK, SOURCE, "\ud800", "\x7f\x9b\u2028", "plain Zoë 漢字"):
        made = json_escaped(json.dumps({"k": text}, ensure_ascii=False))
        assert json.loads(made) == {"k": text}
        assert made.isprintable()
    assert json_escaped('"plain Zoë 漢字"') == '"plain Zoë 漢字"'
