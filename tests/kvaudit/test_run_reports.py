"""SARIF, JUnit and JSON of every command that makes a run keep their schemas and their limits."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvaudit.cli.main import run
from kvaudit.findings import Verdict
from reports.json_report import json_schema

Place = Any  # see conftest.py
DATA = Path(__file__).parents[1] / "data"
SARIF = json.loads((DATA / "sarif-2.1.0-used.json").read_text())
# What GitHub's code scanning takes of one file: results, rules, locations of a result, bytes.
RESULTS_MAX, RULES_MAX, LOCATIONS_MAX, BYTES_MAX = 25_000, 25_000, 1_000, 10_000_000
TAGS_MAX, MESSAGE_MAX = 20, 32_768
JUNIT_CHILDREN = {
    "testsuites": {"testsuite"}, "testsuite": {"properties", "testcase"},
    "properties": {"property"}, "property": set(), "testcase": {"failure", "error", "skipped"},
    "failure": set(), "error": set(), "skipped": set(),
}  # fmt: skip
JUNIT_NEEDED = {
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"name", "classname", "time"}, "property": {"name", "value"},
    "failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"},
}  # fmt: skip
JUNIT_ELEMENT = {"clean": None, "contaminated": "failure", "inconclusive": "error"}


def rendered(path: Path, name: str, out: Path) -> bytes:
    assert run(["report", str(path), "--format", name, "--output", str(out), "--quiet"]) == 0
    return out.read_bytes()


def check(path: Path, broken_rules: Any, out: Path) -> str:
    """Assert that three formats of a run are valid and say the same; returns its verdict."""
    report = json.loads(rendered(path, "json", out))
    schema = json_schema()
    assert list(broken_rules(report, schema, schema)) == []
    check_sarif(rendered(path, "sarif", out), report, broken_rules)
    check_junit(ET.fromstring(rendered(path, "junit", out)), report)
    return str(report["verdict"])


def check_sarif(content: bytes, report: Any, broken_rules: Any) -> None:
    log = json.loads(content)
    assert list(broken_rules(log, SARIF, SARIF)) == []
    (told,) = log["runs"]
    assert len(told["results"]) == len(report["findings"]) <= RESULTS_MAX
    rules = told["tool"]["driver"]["rules"]
    assert len(rules) <= RULES_MAX
    assert len(content) <= BYTES_MAX
    for held in rules:
        assert len(held["properties"]["tags"]) <= TAGS_MAX
        assert 0 < float(held["properties"]["security-severity"]) <= 10
    for result in told["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert 1 <= len(result["locations"]) <= LOCATIONS_MAX
        assert len(result["message"]["text"]) <= MESSAGE_MAX
        assert (result["level"] == "none") == (result["kind"] != "fail")
    invocation = told["invocations"][0]
    assert invocation["exitCode"] == Verdict(report["verdict"]).exit_status
    assert invocation["executionSuccessful"] == (report["verdict"] != "inconclusive")


def check_junit(root: ET.Element, report: Any) -> None:
    for element in root.iter():
        assert {child.tag for child in element} <= JUNIT_CHILDREN[element.tag]
        assert JUNIT_NEEDED.get(element.tag, set()) <= set(element.attrib)
    (suite,) = root
    cases = list(suite.iter("testcase"))
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    assert int(suite.get("tests", "")) == len(cases)
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.get(count, "")) == sum(case.find(tag) is not None for case in cases)
    verdict = next(case for case in cases if case.get("classname") == "kvaudit.verdict")
    assert [child.tag for child in verdict] == [
        tag for tag in [JUNIT_ELEMENT[report["verdict"]]] if tag is not None
    ]


def test_a_contaminated_audit(leaky: Path, broken_rules: Any, tmp_path: Path) -> None:
    assert check(leaky, broken_rules, tmp_path / "out") == "contaminated"


def test_a_purged_audit(leaky: Path, broken_rules: Any, tmp_path: Path) -> None:
    assert run(["purge", str(leaky), "--text", "--yes", "--quiet"]) == 0
    assert check(leaky, broken_rules, tmp_path / "out") == "contaminated"


@pytest.mark.parametrize(
    "flags", [{}, {"failure": "target"}, {"failure": "start"}], ids=["done", "cut", "refused"]
)
def test_an_audit_however_it_ended(place: Place, flags: dict[str, str], broken_rules: Any) -> None:
    place.audit("--out", "run", **flags)
    assert check(place.run, broken_rules, place.root / "out") == "inconclusive"


@pytest.mark.slow
@pytest.mark.parametrize("log", ["generic-proxy-chunks.jsonl", "vllm-server.log"])
def test_a_scan(log: str, broken_rules: Any, tmp_path: Path) -> None:
    status = run(["scan", str(DATA / "logs" / log), "--out", str(tmp_path / "run"), "--quiet"])
    verdict = check(tmp_path / "run", broken_rules, tmp_path / "out")
    assert Verdict(verdict).exit_status == status


def test_the_checks_see_what_is_wrong(leaky: Path, broken_rules: Any, tmp_path: Path) -> None:
    log = json.loads(rendered(leaky, "sarif", tmp_path / "out"))
    for change in (
        lambda: log.update(version="2.0.0"),
        lambda: log["runs"][0]["results"][0].pop("message"),
        lambda: log["runs"][0]["results"][0].update(level="critical"),
        lambda: log["runs"][0].update(verdict="x"),
        lambda: log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"].update(
            startLine=0
        ),
    ):
        before = len(list(broken_rules(log, SARIF, SARIF)))
        change()
        assert len(list(broken_rules(log, SARIF, SARIF))) == before + 1
