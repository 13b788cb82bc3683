"""`trace`, `diff` and `report` on a run whose answers hold another tenant's canary."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from kvaudit.canary import CanaryMint
from kvaudit.cli import trace as trace_command
from kvaudit.cli.main import run
from reports import FORMATS

Place = Any  # see conftest.py

EVENTS = """
[incident]
controller = "Example Ltd"
[[event]]
time = 2026-09-22T13:22:00Z
kind = "aware"
"""


def code() -> str:
    mint = CanaryMint("leaky")
    for index in range(10):
        mint.mint(f"solo-{index}", f"tenant-{index % 2 + 1}")
    return mint.mint("fill-0", "tenant-1").code_text


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err


def reveals(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "reveals.jsonl").read_text().splitlines()]


def test_a_trace_shows_source_and_sink_side_by_side_with_the_span_marked(
    leaky: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    status, out, _ = told(capsys, "trace", str(leaky), "trigger-0")
    assert status == 0
    line = next(line for line in out.splitlines() if "Prompt of fill-0, tenant tenant-1" in line)
    assert "Answer to trigger-0, tenant tenant-2" in line
    both = [line for line in out.splitlines() if "  |  " in line]
    for side in (0, 1):
        text = " ".join(line.split("  |  ")[side] for line in both)
        assert text.count("⟦") == text.count("⟧") > 0
    assert all(len(line) <= 140 for line in out.splitlines() if "  |  " in line)
    assert "KVA101 foreign-canary (critical, exposure)" in out
    assert "Another tenant's canary stands unchanged in the answer." in out
    assert "Chance of accident under 1 in 10^" in out
    assert code() not in out


def test_a_terminal_gets_the_span_in_reverse_video(
    leaky: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_command, "has_colour", lambda _: True)
    _, out, _ = told(capsys, "trace", str(leaky), "trigger-0")
    assert out.count("\x1b[7m") == out.count("\x1b[27m") > 0
    assert "⟦" not in out


def test_a_source_tells_what_it_reached_and_a_bystander_that_it_reached_nothing(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = told(capsys, "trace", str(leaky), "fill-0")
    assert "Text of this request is in 1 answer of other tenants" in out
    assert "trigger-0 of tenant tenant-2" in out
    _, out, _ = told(capsys, "trace", str(leaky), "solo-0")
    assert "No finding says that its answer holds" in out
    assert "No finding says that text of this request is in another answer" in out


def test_the_json_of_a_trace_is_redacted_unless_revealed_and_says_which(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = told(capsys, "trace", str(leaky), "trigger-0", "--json")
    found = json.loads(out)
    assert (found["command"], found["redacted"]) == ("trace", True)
    assert code() not in out
    held = next(held for held in found["findings"] if held["rule"] == "KVA101")
    assert [piece for piece in held["sink"]["pieces"] if piece["mark"] == "shared"]
    assert [piece for piece in held["source"]["pieces"] if piece["mark"] == "shared"]
    assert not (leaky / "reveals.jsonl").exists()
    _, out, _ = told(
        capsys, "trace", str(leaky), "trigger-0", "--json", "--reveal", "--reason", "ticket 12"
    )
    assert json.loads(out)["redacted"] is False
    assert code() in out
    (note,) = reveals(leaky)
    assert (note["what"], note["why"], note["user_id"]) == (
        "trace trigger-0", "ticket 12", os.getuid()
    )  # fmt: skip
    assert note["at"].endswith("Z")
    assert note["user"]


def test_an_unknown_request_suggests_the_nearest(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = told(capsys, "trace", str(leaky), "triger-0")
    assert (status, out) == (2, "")
    assert "did you mean `trigger-0`?" in err
    _, _, err = told(capsys, "trace", str(leaky), "zzz\x1b[2J")
    assert "kvaudit query RUN requests" in err
    assert "\x1b" not in err


def test_hostile_text_reaches_no_terminal_raw(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.audit("--out", "run")
    for flags in ([], ["--reveal"]):
        status, out, _ = told(capsys, "trace", "run", "fake-0-0", *flags)
        assert status == 0
        assert "\x1b" not in out


def test_a_reason_alone_is_refused(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["trace", str(leaky), "fill-0"], ["report", str(leaky)], ["query", str(leaky)]):
        status, _, err = told(capsys, *words, "--reason", "why not")
        assert status == 2
        assert "`--reveal`" in err


def test_a_revealed_report_notes_who_when_and_why(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "report", str(leaky), "--format", "csv", "--reveal", "--reason", "for counsel")
    told(capsys, "query", str(leaky), "requests", "--json", "--reveal", "--reason", "look")
    told(capsys, "report", str(leaky), "--reveal")
    assert [(held["what"], held["why"]) for held in reveals(leaky)] == [
        ("report csv", "for counsel"), ("query requests", "look"), ("report text", None)
    ]  # fmt: skip
    assert (leaky / "reveals.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_report_that_can_not_be_noted_is_not_shown(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (leaky / "reveals.jsonl").mkdir()
    status, out, _ = told(capsys, "report", str(leaky), "--reveal")
    assert (status, out) == (3, "")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_bytes_to_a_file_and_to_stdout(
    leaky: Path, name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        assert run(["report", str(leaky), "--format", name, "--output", str(path), "-q"]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    capfdbinary.readouterr()
    assert run(["report", str(leaky), "--format", name]) == 0
    assert capfdbinary.readouterr().out == first.read_bytes()


def test_parquet_goes_through_a_pipe(leaky: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvaudit.cli.main", "report", str(leaky), "--format", "parquet"],
        capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    table = pl.read_parquet(io.BytesIO(done.stdout))
    assert table["verdict"][0] == "contaminated"
    assert table.height > 2


def test_the_ending_of_the_output_names_the_format(
    leaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = {
        "x.html": b"<!doctype html>", "x.json": b"{", "x.md": b"#", "x.sarif": b"{",
        "x.xml": b"<?xml", "x.csv": b"row,run_id", "x.parquet": b"PAR1", "x.txt": b"CONTAM",
    }  # fmt: skip
    for name, start in starts.items():
        told(capsys, "report", str(leaky), "--output", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().lower().startswith(start.lower()), name


def test_an_events_file_reaches_the_incident_report_and_the_page(
    leaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.toml"
    events.write_text(EVENTS)
    for name, word in (("markdown", "Example Ltd"), ("html", "2026-09-22T13:22:00.000Z")):
        status, out, _ = told(
            capsys, "report", str(leaky), "--format", name, "--events", str(events)
        )
        assert status == 0
        assert word in out
    for words, message in (
        (["--format", "sarif", "--events", str(events)], "shows no events"),
        (["--format", "markdown", "--events", "none.toml"], "can't read `none.toml`"),
        (["--format", "csv", "--tenant", "tenant-1"], "makes an annex"),
        (["--tenant", "tenant-9"], "no tenant in this run `tenant-9`"),
        (["--format", "htlm"], "there is no report format `htlm`"),
    ):
        status, out, err = told(capsys, "report", str(leaky), *words)
        assert (status, out) == (2, "")
        assert message in err
    events.write_text("[[event]]\nkind = 'aware'\n")
    status, _, err = told(capsys, "report", str(leaky), "--format", "html", "--events", str(events))
    assert status == 2
    assert "has no time" in err


def test_an_annex_holds_one_tenant_alone(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "report", str(leaky), "--tenant", "tenant-2", "--reveal")
    assert "trigger-0" in out
    assert "tenant-1" not in out
    assert "fill-0" not in out
    assert code() not in out
    _, out, _ = told(capsys, "report", str(leaky), "--tenant", "tenant-1", "--reveal")
    assert code() in out
    assert "trigger-0" not in out
    assert "tenant-2" not in out


def test_a_run_is_the_same_as_itself_and_as_its_repetition(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.audit("--out", "one", waves="2")
    place.audit("--out", "two", waves="2")
    for other in ("one", "two"):
        status, out, _ = told(capsys, "diff", "one", other, "--json")
        assert (status, json.loads(out)["changes"]) == (0, [])
    status, out, _ = told(capsys, "diff", "one", "two")
    assert "say the same" in out
    place.audit("--out", "three", "--seed", "9", waves="4")
    status, out, _ = told(capsys, "diff", "one", "three", "--json")
    assert status == 1
    changes = {(held["part"], held["item"]): held for held in json.loads(out)["changes"]}
    assert changes["config", "seed"]["before"] == 1
    assert changes["config", "seed"]["after"] == 9
    assert changes["bound", "in-limit, requests"]["before"] == 6


@pytest.mark.parametrize(
    ("sql", "part", "item"),
    [
        ("UPDATE run SET verdict = 'clean'", "verdict", ""),
        ("DELETE FROM findings WHERE rule_id = 'KVA101'", "findings",
         "KVA101, sink trigger over-limit, source tenant tenant-1"),
        ("UPDATE bounds SET upper = 0.5", "bound", "over-limit, upper"),
        ("UPDATE oracles SET available = false WHERE rule_id = 'KVA401'", "oracle",
         "KVA401, available"),
        ("UPDATE run SET reasons = ['other']", "reason", "added"),
    ],
)  # fmt: skip
def test_every_part_that_differs_is_told(
    leaky: Path,
    leaky_original: Path,
    sql: str,
    part: str,
    item: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with duckdb.connect(str(leaky / "run.duckdb")) as connection:
        connection.execute(sql)
    status, out, _ = told(capsys, "diff", str(leaky_original), str(leaky), "--json")
    assert status == 1
    found = {(held["part"], held["item"]) for held in json.loads(out)["changes"]}
    assert (part, item) in found
    assert {held[0] for held in found} == {part}
    status, out, _ = told(capsys, "diff", str(leaky_original), str(leaky))
    assert status == 1
    assert part in out


def test_a_run_without_a_verdict_can_not_be_compared(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.audit("--out", "run", failure="bug")
    for words in (["diff", "run", "run"], ["trace", "run", "fake-0-0"], ["report", "run"]):
        status, out, err = told(capsys, *words)
        assert (status, out) == (2, "")
        assert "no verdict yet" in err
