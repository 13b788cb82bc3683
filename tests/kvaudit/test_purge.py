"""Text goes, numbers stay; whoever kills a purge on its way finds the old run or the new one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.cli.main import run
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.manifest import read_manifest
from kvaudit.store.reading import open_run

Place = Any  # see conftest.py
LOGS = Path(__file__).parents[1] / "data" / "logs"

# Ends the process like `kill -9` at one step of a purge.
KILLED = """
import os, sys
from kvaudit.store import purge
from kvaudit.cli.main import run
step, *arguments = sys.argv[1:]
real = purge._exchange
def exchange(new, old):
    if step == "before":
        os._exit(9)
    if step == "between":
        old.rename(purge._aside(new))
        os._exit(9)
    real(new, old)
    os._exit(9)
def rmtree(path):
    os._exit(9)
if step == "deleting":
    purge.shutil.rmtree = rmtree
else:
    purge._exchange = exchange
run(arguments)
os._exit(7)
"""


def secrets() -> Iterator[bytes]:
    """Every text that stands in the leaky run."""
    mint = CanaryMint("leaky")
    labels = [(f"solo-{index}", f"tenant-{index % 2 + 1}") for index in range(10)]
    for index in range(2):
        labels += [(f"fill-{index}", "tenant-1"), (f"trigger-{index}", "tenant-2")]
    for label, tenant in labels:
        canary = mint.mint(label, tenant)
        yield canary.code_text.encode()
        yield canary.code.encode()
        yield canary.phrase.encode()
        yield from (" ".join(canary.words[at : at + 3]).encode() for at in range(0, 9, 3))
    yield b"The project phrase"
    yield b"a secret of this run"


def holding(path: Path) -> set[str]:
    found = list(secrets())
    return {
        held.name
        for held in path.rglob("*")
        if held.is_file() and any(secret in held.read_bytes() for secret in found)
    }


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = run([*arguments, "--json"])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, json.loads(captured.out) if captured.out else captured.err


def test_no_file_holds_a_text_and_every_number_stays(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holding(leaky) >= {"journal.jsonl", "run.duckdb"}
    before = json.loads((leaky / "report.json").read_text())
    with open_run(RunFolder.open(leaky)) as reader:
        old = [(r.request_id, r.outcome, r.prompt_tokens, r.sent_unix_ns) for r in reader.records()]
    status, done = told(capsys, "purge", str(leaky), "--text", "--yes")
    assert (status, done["deleted"]) == (0, False)
    assert done["texts_removed"] > 40
    assert holding(leaky) == set()
    after = json.loads((leaky / "report.json").read_text())
    for name in ("verdict", "reasons", "bounds", "oracles", "not_examinable", "seed", "config"):
        assert after[name] == before[name]
    assert after["counts"] == before["counts"] | {"purged_texts": done["texts_removed"]}
    assert [held | {"excerpt": "", "details": 0} for held in before["findings"]] == [
        held | {"details": 0} for held in after["findings"]
    ]
    with open_run(RunFolder.open(leaky)) as reader:
        kept = list(reader.records())
    assert [(r.request_id, r.outcome, r.prompt_tokens, r.sent_unix_ns) for r in kept] == old
    assert {r.output_text for r in kept} == {None}
    assert not list(leaky.parent.glob(".*"))
    modes = {held.name: held.stat().st_mode & 0o777 for held in leaky.iterdir()}
    assert modes.pop("tmp") == 0o700
    assert set(modes.values()) == {0o600}
    assert leaky.stat().st_mode & 0o777 == 0o700


def test_a_purged_run_verifies_and_says_what_it_can_not_judge(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "purge", str(leaky), "--text", "--yes")
    status, found = told(capsys, "verify", str(leaky))
    assert (status, found["differences"]) == (0, [])
    assert found["purged"]["texts"] > 40
    judgement = next(held for held in found["checks"] if held["name"] == "judgement")
    assert judgement["state"] == "not done"
    assert "stand as stored" in judgement["note"]
    # What numbers decide is still derived, so a number can't be changed unseen.
    path = leaky / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"prompt_tokens":60', b'"prompt_tokens":1', 1))
    status, found = told(capsys, "verify", str(leaky))
    assert status == 1
    assert any("solo-0" in held["item"] for held in found["differences"])


def test_the_hashes_of_what_was_removed_stay_and_fit_an_unpurged_copy(
    leaky: Path, leaky_original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "purge", str(leaky), "--text", "--yes")
    manifest, original = (read_manifest(RunFolder.open(held)) for held in (leaky, leaky_original))
    assert manifest is not None
    assert original is not None
    assert manifest.purge is not None
    assert manifest.purge.evidence == original.evidence
    assert manifest.purge.files == original.files
    assert manifest.purge.requests == original.requests


def test_a_purged_run_is_shown_and_not_gone_on_with(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "purge", str(leaky), "--text", "--yes")
    for name in ("text", "html", "markdown", "sarif", "junit", "csv"):
        assert run(["report", str(leaky), "--format", name]) == 0
    assert "the texts of this run were removed" in capsys.readouterr().out
    assert run(["trace", str(leaky), "trigger-0"]) == 0
    assert "not kept in the run" in " ".join(capsys.readouterr().out.split())
    assert run(["audit", "--resume", "--out", str(leaky)]) == 2
    assert "was purged" in capsys.readouterr().err
    assert run(["purge", str(leaky), "--text", "--yes"]) == 2
    assert "purged already" in capsys.readouterr().err


def test_a_revealed_report_in_the_folder_goes_and_a_strange_file_stops_the_purge(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = leaky.parent / "incident.md"
    assert run(["report", str(leaky), "--reveal", "--reason", "x", "--output", str(page)]) == 0
    page.rename(leaky / "incident.md")  # kvaudit itself writes no report into a run
    (leaky / "notes.txt").write_text("mine")
    for flags in (["--text"], []):
        status, err = told(capsys, "purge", str(leaky), "--yes", *flags)
        assert status == 2
        assert "`notes.txt`" in err
    assert (leaky / "journal.jsonl").exists()
    (leaky / "notes.txt").unlink()
    assert told(capsys, "purge", str(leaky), "--yes", "--text")[0] == 0
    assert not (leaky / "incident.md").exists()
    revealed = json.loads((leaky / "reveals.jsonl").read_text())
    assert (revealed["what"], revealed["why"]) == ("report", "x")


def test_nothing_but_a_run_folder_is_deleted(
    tmp_path: Path, leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    assert told(capsys, "purge", str(other), "--yes")[0] == 2
    (other / "journal.jsonl").write_text("")
    assert told(capsys, "purge", str(other), "--yes")[0] == 2
    assert (other / "thesis.tex").exists()
    link = tmp_path / "link"
    link.symlink_to(leaky)
    status, err = told(capsys, "purge", str(link), "--yes")
    assert status == 2
    assert "is a link" in err
    (leaky / "tmp2").mkdir()
    assert told(capsys, "purge", str(leaky), "--yes")[0] == 2
    (leaky / "tmp2").rmdir()
    (leaky / "report.sarif").symlink_to(other / "thesis.tex")
    assert told(capsys, "purge", str(leaky), "--yes")[0] == 2
    (leaky / "report.sarif").unlink()
    assert told(capsys, "purge", str(leaky), "--yes") == (0, {
        "schema": 1, "command": "purge", "run": str(leaky), "deleted": True, "texts_removed": None,
    })  # fmt: skip
    assert not leaky.exists()
    assert {held.name for held in tmp_path.iterdir()} == {"other", "link"}


def test_nobody_asked_means_nothing_removed(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = told(capsys, "purge", str(leaky), "--text")
    assert status == 2
    assert "--yes" in err
    assert (leaky / "journal.jsonl").exists()


def test_a_run_that_is_being_written_is_left_alone(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvaudit.clock import SimulatedClock
    from kvaudit.store.journal import Journal

    path = leaky / "journal.jsonl"
    journal = Journal.resume(path, read_journal(path), SimulatedClock())
    for flags in ([], ["--text"]):
        status, err = told(capsys, "purge", str(leaky), "--yes", *flags)
        assert status == 2
        assert "another kvaudit is writing" in err
    journal.close()


def test_a_damaged_line_stays_damaged_and_loses_what_it_held(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = leaky / "journal.jsonl"
    path.write_bytes(
        path.read_bytes() + b'{"kind":"end","reply":{"output_text":"The project phrase'
    )
    told(capsys, "purge", str(leaky), "--text", "--yes")
    assert holding(leaky) == set()
    assert read_journal(path).damaged_lines == 1


@pytest.mark.slow
def test_the_text_of_a_scan_goes_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scan"
    logs = [str(LOGS / "generic-proxy-chunks.jsonl"), str(LOGS / "litellm-standard-logging.jsonl")]
    told(capsys, "scan", *logs, "--out", str(out))
    status, found = told(capsys, "verify", str(out))
    assert (status, found["differences"]) == (0, [])
    with open_run(RunFolder.open(out), reveal=True) as reader:
        rows = list(reader.query("SELECT input_text, output_text FROM log_rows").rows())
    texts = [text for row in rows for text in row.values() if text and len(text) > 30]
    assert texts
    assert told(capsys, "purge", str(out), "--text", "--yes")[0] == 0
    held = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not [text for text in texts if text[:30].encode() in held]
    with open_run(RunFolder.open(out), reveal=True) as reader:
        after = list(reader.query("SELECT input_text, output_text FROM log_rows").rows())
        kept = list(reader.query("SELECT count(*) AS n FROM requests").rows())
    assert len(after) == len(rows)
    assert kept[0]["n"] > 0
    assert {text for row in after for text in row.values()} == {None}
    status, found = told(capsys, "verify", str(out))
    assert (status, found["differences"]) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before", "after", "between"])
def test_a_killed_purge_of_the_text_leaves_the_old_run_or_the_new_one(
    leaky: Path, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, step, "purge", str(leaky), "--text", "--yes"],
        capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    if step == "between":  # a system without an exchange: the run waits under another name
        assert not leaky.exists()
    else:
        assert told(capsys, "verify", str(leaky))[0] == 0
        assert (holding(leaky) == set()) == (step == "after")
    status, again = told(capsys, "purge", str(leaky), "--text", "--yes")
    assert (status, "purged already" in str(again)) == (
        (2, True) if step == "after" else (0, False)
    )
    assert holding(leaky.parent) == set()
    assert [held.name for held in leaky.parent.iterdir()] == [leaky.name]
    assert told(capsys, "verify", str(leaky))[0] == 0


@pytest.mark.slow
def test_a_killed_deletion_leaves_no_run_and_ends_when_asked_again(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "deleting", "purge", str(leaky), "--yes"],
        capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    assert not leaky.exists()
    assert holding(leaky.parent)
    assert told(capsys, "purge", str(leaky))[0] == 0
    assert not list(leaky.parent.iterdir())
