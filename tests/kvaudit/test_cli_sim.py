"""`kvaudit sim` at the command line: what it prints, saves and returns."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvaudit.cli import main as door
from kvaudit.cli.sim import parse_seeds
from kvaudit.errors import ConfigError

F01 = "reject-not-propagated"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "simulate.md"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = door.run(["sim", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_sound_seeds_end_with_0_and_count_what_was_reached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "none"
    status, text, _ = told(capsys, "--seeds", "3-8", "--fault", "none", "--out", str(out))
    assert status == 0
    assert "6 seeds, no fault: none failed" in text
    assert re.search(r"coverage: \d+ of 84 pairs", text)
    assert not out.exists(), "nothing failed, so nothing is saved"


def test_a_failing_seed_ends_with_1_and_is_told_saved_and_repeated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "red"
    status, text, _ = told(capsys, "--seeds", "4-4", "--fault", F01, "--out", str(out))
    assert status == 1
    saved = out / "seed-4.json"
    assert f"saved: kvaudit sim --replay {saved}" in text
    assert f"kvaudit sim --seeds 4-4 --fault {F01}" in text
    assert saved.stat().st_mode & 0o777 == 0o600
    status, again, warned = told(capsys, "--replay", str(saved))
    assert (status, warned) == (1, "")
    story = text[text.index(" 1. ") : text.index("kvaudit 0")]
    assert story in again


def test_json_is_one_object_with_every_failing_seed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--seeds", "6", "--fault", F01, "--out", str(tmp_path / "red"), "--json")
    status, text, _ = told(capsys, *arguments)
    held = json.loads(text)
    assert status == 1
    assert (held["command"], held["fault"], held["interrupted"]) == ("sim", F01, False)
    assert held["seeds"] == {"first": 1, "last": 6, "run": 6}
    assert 4 in {one["seed"] for one in held["failed"]}
    assert {one["failure"]["kind"] for one in held["shrunk"]} == {
        one["kind"] for one in held["failed"]
    }
    assert all(Path(one["file"]).is_file() for one in held["shrunk"])
    coverage = held["coverage"]
    assert coverage["reached"] + len(coverage["unreached"]) == coverage["pairs"]


def test_the_fix_that_closes_a_fault_makes_its_seeds_sound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text, _ = told(capsys, "--seeds", "4-6", "--fault", F01, "--fix", "door")
    assert status == 0
    assert f"fault `{F01}`, fixes door: none failed" in text


def test_the_search_can_stop_at_the_first_failing_seed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--seeds", "500", "--fault", F01, "--first", "--json", "--out", str(tmp_path))
    status, text, _ = told(capsys, *arguments)
    assert (status, len(json.loads(text)["failed"])) == (1, 1)


def test_a_scenario_that_runs_otherwise_than_saved_is_warned_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "red"
    told(capsys, "--seeds", "4-4", "--fault", F01, "--out", str(out))
    path = out / "seed-4.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"fault": None}))
    status, text, warned = told(capsys, "--replay", str(path))
    assert status == 0
    assert "the run is sound" in text
    assert "differs from the one that was saved" in warned


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--seeds", "nine"], "`seeds` is `nine`", "40-60"),
        (["--seeds", "9-3"], "`seeds` is `9-3`", "40-60"),
        (["--seeds", "99999999"], "more than 1,000,000", "fewer"),
        (["--fault", "reject"], "there is no fault `reject`", F01),
        (["--fix", "dor"], "there is no fix `dor`", "`door`"),
        (["--model", "copyer"], "there is no model of the simulator `copyer`", "`copier`"),
        (["--replay", "nowhere.json"], "can't read `nowhere.json`", "saved"),
        (["--replay", "x.json", "--seeds", "9"], "takes no `--seeds`", "leave"),
        (["--seeds", "1", "--fix", "start-check"], "prefill pool holds", "raise"),
    ],
)
def test_bad_input_says_what_is_wrong_and_how_to_mend_it(
    arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = told(capsys, *arguments)
    assert status == (3 if "start-check" in arguments else 2)
    assert out == ""
    assert message in err
    assert hint in err


def test_settings_come_from_the_file_and_flags_win(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "kvaudit.toml"
    config.write_text(f'[sim]\nseeds = 4\nfault = "{F01}"\nfix = "door"\n')
    status, text, _ = told(capsys, "--config", str(config), "--seeds", "2")
    assert status == 0
    assert f"2 seeds, fault `{F01}`, fixes door" in text
    config.write_text("[sim]\nseads = 4\n")
    assert told(capsys, "--config", str(config))[0] == 2


def test_seeds_are_a_count_or_a_range() -> None:
    assert parse_seeds("7") == (1, 7)
    assert parse_seeds("7-7") == (7, 7)
    with pytest.raises(ConfigError):
        parse_seeds("-7")


def test_ctrl_c_leaves_a_summary_of_what_was_run() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvaudit.cli.main", "sim", "--seeds", "900000", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell starts what runs in its background with this signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert "seeds run, 0 failed" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    held = json.loads(out)
    assert process.returncode == 130
    assert held["interrupted"] is True
    assert 0 < held["seeds"]["run"] < 900_000


def test_the_story_in_the_guide_is_what_the_command_tells(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = re.search(r"    \$ kvaudit (sim --seeds 4-4.*)\n((?:    .*\n)+)", GUIDE.read_text())
    assert shown is not None
    arguments = [*shown[1].split()[1:], "--out", str(tmp_path / "red")]
    _, text, _ = told(capsys, *arguments)
    story = re.sub(r"^    ", "", shown[2], flags=re.MULTILINE)
    assert text.startswith(story)
