"""axe-core's judgement of the page; needs the npm package, which nothing else here does."""

import os
from pathlib import Path

import pytest

from reports.html_report import report_html

pytestmark = pytest.mark.slow

AXE = Path(os.environ.get("KVAUDIT_AXE", "node_modules/axe-core/axe.min.js"))
RUN = (
    "const done = arguments[0];"
    "axe.run().then(found => done(found.violations.map(v => `${v.impact} ${v.id}: ${v.help}`)))"
)


@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
@pytest.mark.parametrize("view", ["browser", "phone"])
def test_axe_finds_no_violation(which, view, request, records, key, tmp_path):
    if not AXE.is_file():
        pytest.skip("needs axe-core: `npm install axe-core`, or its file in KVAUDIT_AXE")
    browser = request.getfixturevalue(view)
    path = tmp_path / "report.html"
    path.write_bytes(report_html(request.getfixturevalue(which), records, key=key))
    browser.open(path)
    browser.script("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.script(AXE.read_text(encoding="utf-8"))
    assert browser.call("POST", "/execute/async", {"script": RUN, "args": []}) == []
