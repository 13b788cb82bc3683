"""Tables: CSV that no spreadsheet runs, and Parquet with the same rows."""

import csv
import io

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.table_report import render_csv, render_parquet, safe_cell


def lines_of(content):
    return list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))


def test_the_first_row_is_the_run_and_the_others_its_findings(incident, records, key):
    lines = lines_of(render_csv(incident, records, key=key))
    assert [line["row"] for line in lines] == ["run"] + ["finding"] * len(incident.findings)
    assert lines[0]["verdict"] == "contaminated"
    assert lines[1]["sink_request_id"] == "trigger-0"
    assert lines[1]["source_tenant"] == "a"
    assert lines[1]["sent_at"] == "2026-09-21T14:13:22.000Z"
    assert float(lines[1]["chance"]) == incident.findings[0].evidence.chance


def test_a_run_without_findings_still_tells_its_verdict(undecided):
    (line,) = lines_of(render_csv(undecided, {}))
    assert line["verdict"] == "inconclusive"
    assert "were censored" in line["details"]


@given(st.text(alphabet=" =+-@|%\t＝＋－＠a1", max_size=6))
def test_no_cell_is_a_formula(text):
    assert not safe_cell(text).lstrip(" ").startswith(tuple("=+-@|%\t\r\n＝＋－＠"))


@pytest.mark.parametrize("text", ["plain", "a=b", "1-2", ""])
def test_harmless_cells_stay_as_they_are(text):
    assert safe_cell(text) == text


def test_parquet_holds_the_rows_of_the_csv(incident, records, key):
    table = pl.read_parquet(io.BytesIO(render_parquet(incident, records, key=key)))
    lines = lines_of(render_csv(incident, records, key=key))
    for name in ("row", "rule", "sink_request_id", "source_tenant", "text"):
        assert [value or "" for value in table[name].to_list()] == [line[name] for line in lines]
    assert table["chance"].dtype == pl.Float64


def test_no_secret_stands_in_a_table(incident, records, key):
    content = render_csv(incident, records, key=key).decode("utf-8")
    assert records["fill-0"].canaries[0].code_text not in content
    assert records["fill-0"].canaries[0].phrase not in content
