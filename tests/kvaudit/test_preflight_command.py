"""`kvaudit preflight` as a program: the incident's launch, exit statuses, reports for a CI."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvaudit.cli.main import run

DATA = Path(__file__).resolve().parents[1] / "data"
DEPLOYMENTS = DATA / "deployments"
SCHEMA = json.loads((DATA / "sarif-2.1.0-used.json").read_text(encoding="utf-8"))
CONTEXT = 1_048_576


def incident(folder: Path, way: str, pool: int, version: str) -> list[str]:
    """Write the launch of two roles; returns its sources."""
    texts: dict[str, str] = {}
    for role, tokens in (("prefill", pool), ("decode", 2_040_000)):
        if way == "server_info":
            limit = min(CONTEXT, tokens) - 6
            texts[f"{role}.json"] = json.dumps({
                "version": version, "disaggregation_mode": role, "context_length": CONTEXT,
                "page_size": 64, "kv_cache_dtype": "fp8_e4m3", "allow_auto_truncate": False,
                "scheduler_info": {"max_total_num_tokens": tokens, "max_req_input_len": limit},
            })  # fmt: skip
            continue
        words = ["python3", "-m", "sglang.launch_server", "--model-path", "glm", "--page-size",
                 "64", "--disaggregation-mode", role, f"--context-length={CONTEXT}",
                 "--max-total-tokens", str(tokens)]  # fmt: skip
        if way == "commands":
            texts[f"{role}.sh"] = f"pip install sglang=={version}\n" + " \\\n ".join(words) + "\n"
            continue
        pod = {"spec": {"containers": [{"name": "s", "image": f"lmsysorg/sglang:v{version}",
                                        "command": words[:3], "args": words[3:]}]}}  # fmt: skip
        # JSON is YAML too.
        texts[f"{role}.yaml"] = json.dumps({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": role},
            "spec": {"template": pod},
        })  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in texts]


def preflight(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = run(["preflight", *words, "--json", "--quiet", "--out", str(tmp_path / "run")])
    return status, json.loads(capsys.readouterr().out)


WAYS = ("server_info", "commands", "kubernetes")


@pytest.mark.parametrize("way", WAYS)
def test_the_launch_of_the_incident_exits_1_with_its_band(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = preflight(tmp_path, capsys, *incident(tmp_path, way, 681_280, "0.5.19"))
    assert (status, report["verdict"]) == (1, "at_risk")
    (critical,) = (held for held in report["findings"] if held["severity"] == "critical")
    assert critical["rule"] == "KVA701"
    assert critical["details"]["exposed_band"] == [681_274, 1_048_570]
    assert "sgl-project/sglang#30233" in critical["details"]["sources"]
    assert critical["details"]["fix"]


@pytest.mark.parametrize("way", WAYS)
def test_the_mended_launch_exits_0_and_keeps_its_warnings(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = preflight(tmp_path, capsys, *incident(tmp_path, way, 2_040_000, "0.5.22"))
    assert (status, report["verdict"]) == (0, "clean")
    assert {held["severity"] for held in report["findings"]} == {"warning"}
    assert {"KVA707", "KVA709", "KVA710", "KVA716"} <= {held["rule"] for held in report["findings"]}


@pytest.mark.parametrize(
    ("version", "is_fixed"),
    [
        ("0.5.19.post1", False), ("0.5.20.dev7+g12ab", False), ("0.5.20a1", False),
        ("0.5.20rc1", False), ("0.5.20", True), ("0.5.20.post1", True), ("0.5.20-cu129", True),
        ("0.5.21rc1", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["server_info", "kubernetes"])
def test_candidates_come_before_the_fixed_version_and_posts_after_it(
    way: str, version: str, is_fixed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # An image's tag has no `+`; builds are written with `-` there.
    told = version if way == "server_info" else version.replace("+", "-")
    _, report = preflight(tmp_path, capsys, *incident(tmp_path, way, 681_280, told))
    assert ("KVA701" in {held["rule"] for held in report["findings"]}) is not is_fixed


@pytest.mark.parametrize("version", ["latest", "nightly", "main", "2026.11.1"])
def test_an_unknown_version_of_the_mended_launch_is_not_clean(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = incident(tmp_path, "kubernetes", 2_040_000, version)
    status, report = preflight(tmp_path, capsys, *sources)
    assert (status, report["verdict"]) == (3, "inconclusive")
    assert "`version`" in report["reasons"][0]


def rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> str:
    assert run(["report", str(tmp_path / "run"), "--format", name]) == 0
    return capsys.readouterr().out


def test_sarif_shows_each_hazard_at_the_source_that_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken_rules: Any
) -> None:
    source = str(DEPLOYMENTS / "01-helm-rendered.yaml")
    _, report = preflight(tmp_path, capsys, source)
    log = json.loads(rendered(tmp_path, capsys, "sarif"))
    assert list(broken_rules(log, SCHEMA, SCHEMA)) == []
    (told,) = log["runs"]
    assert {held["ruleId"] for held in told["results"]} == {
        held["rule"] for held in report["findings"]
    }
    rules = told["tool"]["driver"]["rules"]
    assert all(rule["shortDescription"]["text"] and rule["fullDescription"] for rule in rules)
    first = told["results"][0]
    assert (first["ruleId"], first["level"], first["kind"]) == ("KVA701", "error", "fail")
    assert "Prompts of 681,274 to 1,048,569 tokens are exposed." in first["message"]["text"]
    assert "Fix: Go to SGLang 0.5.22 or later" in first["message"]["text"]
    assert "chance" not in first["message"]["text"]
    place = first["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == source
    assert told["artifacts"][place["index"]]["location"]["uri"] == source
    levels = {held["ruleId"]: held["level"] for held in told["results"]}
    assert levels["KVA707"] == "warning"
    assert told["invocations"][0]["exitCode"] == 1


def junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str | None, list[str]]:
    suite = ET.fromstring(rendered(tmp_path, capsys, "junit")).find("testsuite")
    assert suite is not None
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert suite.get("tests") == str(len(cases))
    return cases


def test_junit_fails_by_hazard_and_passes_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preflight(tmp_path, capsys, str(DEPLOYMENTS / "01-helm-rendered.yaml"))
    cases = junit(tmp_path, capsys)
    assert cases["no known hazard decides"] == ["failure"]
    assert cases["KVA701 pool-below-context (critical)"] == ["failure"]
    assert cases["KVA703 pool-below-context-apart (error)"] == ["failure"]
    assert cases["KVA707 transfer-unchecked (warning)"] == []


def test_junit_of_an_open_question_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = preflight(tmp_path, capsys, str(DEPLOYMENTS / "14-role-by-variable.sh"))
    assert status == 3
    cases = junit(tmp_path, capsys)
    assert cases["no known hazard decides"] == ["error"]
    assert cases["disaggregation_mode of unified"] == ["error"]


def test_junit_and_sarif_of_a_clean_preflight_are_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = preflight(tmp_path, capsys, str(DEPLOYMENTS / "06-router-sidecar.yaml"))
    assert status == 0
    assert not [tags for tags in junit(tmp_path, capsys).values() if tags]
    (told,) = json.loads(rendered(tmp_path, capsys, "sarif"))["runs"]
    assert {(held["level"], held["kind"]) for held in told["results"]} == {("warning", "fail")}
