"""The catalogue, and what every format promises."""

import subprocess
import sys
from dataclasses import replace

import pytest

from kvaudit.errors import UnknownNameError
from reports import FORMATS, ReportInput
from reports.formats import report_format


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
def test_two_renders_are_byte_identical(name, which, request, records, key):
    run = request.getfixturevalue(which)
    given = ReportInput(run=run, records=records, key=key)
    assert FORMATS[name].render(given) == FORMATS[name].render(given)


@pytest.mark.parametrize("name", FORMATS)
def test_the_key_makes_the_tags_and_stands_in_no_format(name, incident, records, key):
    # The strongest finding of each sink is its code, so that formats of few words show a tag.
    codes = tuple(f for f in incident.findings if f.evidence.rule_id == "KVA101")
    run = replace(incident, findings=codes)
    content = FORMATS[name].render(ReportInput(run=run, records=records, key=key))
    other = FORMATS[name].render(ReportInput(run=run, records=records, key=b"x" * 32))
    assert content != other
    assert key not in content


@pytest.mark.parametrize("name", FORMATS)
def test_an_inconclusive_run_never_reads_as_an_empty_clean_one(name, undecided, healthy):
    assert FORMATS[name].render(ReportInput(run=undecided)) != FORMATS[name].render(
        ReportInput(run=healthy)
    )


@pytest.mark.parametrize("name", set(FORMATS) - {"parquet"})
def test_every_format_names_the_verdict(name, undecided, healthy, incident):
    for run in (undecided, healthy, incident):
        content = FORMATS[name].render(ReportInput(run=run)).decode("utf-8").lower()
        assert run.verdict.value in content


def test_an_unknown_format_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        report_format("htlm")
    assert caught.value.nearest == "html"


def test_the_catalogue_imports_no_renderer():
    program = (
        "import sys, reports;"
        "print([m for m in sys.modules if m in ('jinja2', 'polars', 'reports.html_report')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
