"""Reports as agreed, byte for byte: a change of wording is made on purpose and seen in review.

To accept a change, write the new bytes over the file and read the difference.
"""

from pathlib import Path

import pytest

from reports import FORMATS, ReportInput

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = {
    "report-incident.json": ("json", None),
    "incident.md": ("markdown", None),
    "annex-a.md": ("markdown", "a"),
    "incident.junit.xml": ("junit", None),
    "findings.csv": ("csv", None),
}


@pytest.mark.parametrize("name", FILES)
def test_the_report_reads_as_agreed(name, incident, records, key):
    format_name, tenant = FILES[name]
    given = ReportInput(run=incident, records=records, key=key, tenant=tenant)
    assert FORMATS[format_name].render(given) == (GOLDEN / name).read_bytes()
