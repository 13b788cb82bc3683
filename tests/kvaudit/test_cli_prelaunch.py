"""`kvaudit prelaunch` from the command line."""

import json
from pathlib import Path

import pytest

from engine.config import EngineConfig, with_needs
from engine.faults import FAULTS, FaultSpec, fault_plan
from engine.server import ReferenceServer
from kvaudit.cli.main import run
from kvaudit.prelaunch import check_of_rule

INCIDENT = "reject-not-propagated"


@pytest.fixture
def start():
    running = []

    def start_one(fault=None, model="copier"):
        config, _ = with_needs(EngineConfig(model=model), fault_plan(fault))
        running.append(ReferenceServer(config, host="127.0.0.1", port=0, grace_s=1))
        running[-1].start()
        return running[-1]

    yield start_one
    for one in running:
        one.stop()


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("gone/release.json", "there is no folder"),
        ("text.json", "holds no baseline"),
        ("bytes.json", "can't be read"),
    ],
)
def test_a_baseline_that_cannot_be_used_is_told_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], baseline: str, message: str
) -> None:
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    status = run(["prelaunch", "http://127.0.0.1:9", "--baseline", str(tmp_path / baseline)])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert "hint:" in err


def test_the_plan_names_all_scenarios_and_counts_calibration_once(
    start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prelaunch", start(model="tags").url, "--dry-run"]) == 0
    out, _ = capsys.readouterr()
    for name in ("blocks", "streaming", "company", "timing-pair"):
        assert f"plan: {name}:" in out
    assert "since calibration is sent once" in out


@pytest.mark.slow
def test_a_healthy_server_passes_and_keeps_to_its_baseline(
    start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = str(tmp_path / "release.json")
    server = start()
    for number in range(2):
        status = run(
            ["prelaunch", server.url, "--json", "--quiet", "--baseline", baseline,
             "--out", str(tmp_path / str(number))]
        )  # fmt: skip
        told = json.loads(capsys.readouterr().out)
        assert (status, told["verdict"], told["command"]) == (0, "clean", "prelaunch")
        assert not [held for held in told["checks"] if held["state"] == "failed"]
        assert not [held for held in told["drift"] if held["is_worse"]]


@pytest.mark.slow
def test_a_server_with_the_incident_fails_the_checks_that_stand_for_it(
    start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(INCIDENT)
    status = run(["prelaunch", server.url, "--quiet", "--out", str(tmp_path / "run")])
    out, _ = capsys.readouterr()
    assert status == 1
    failed = {line.split()[1] for line in out.splitlines() if line.startswith("FAIL")}
    assert {"canaries-stay-home", "over-limit-refused", "own-prompt-known"} <= failed
    assert "pass  same-as-a-stream-and-whole" in out


# All but the incident's, which the test above looks at more closely.
VISIBLE = [spec for name, spec in FAULTS.items() if spec.caught_by and name != INCIDENT]


@pytest.mark.slow
@pytest.mark.parametrize("spec", VISIBLE, ids=[spec.name for spec in VISIBLE])
def test_each_fault_that_a_client_can_see_fails_a_check_that_stands_for_its_rules(
    start, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: FaultSpec
) -> None:
    server = start(spec.name)
    status = run(["prelaunch", server.url, "--json", "--quiet", "--out", str(tmp_path / "run")])
    told = json.loads(capsys.readouterr().out)
    failed = {held["name"] for held in told["checks"] if held["state"] == "failed"}
    assert status == 1
    assert failed & {check_of_rule(rule_id) for rule_id in spec.caught_by}
