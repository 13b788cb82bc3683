"""One changed byte anywhere in a run makes `verify` fail and name it; an untouched run is whole."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvaudit.cli.main import run
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.manifest import read_manifest

Place = Any  # see conftest.py


def verified(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = run(["verify", str(path), "--json", *flags])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, json.loads(captured.out) if captured.out else captured.err


def told(found: Any) -> set[str]:
    return {f"{held['piece']}: {held['item']}: {held['field']}" for held in found["differences"]}


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(held.relative_to(path)): held.read_bytes() for held in path.rglob("*") if held.is_file()
    }


def replaced(path: Path, before: bytes, after: bytes) -> None:
    held = path.read_bytes()
    assert before in held
    path.write_bytes(held.replace(before, after, 1))


def in_reply(path: Path, request_id: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one reply in the journal and keep every other byte."""
    lines = path.read_bytes().splitlines(keepends=True)
    for at, line in enumerate(lines):
        data = json.loads(line)
        if data["kind"] == "end" and data["reply"]["request_id"] == request_id:
            change(data["reply"])
            lines[at] = json.dumps(data, separators=(",", ":")).encode() + b"\n"
            break
    else:
        raise AssertionError("no such reply")
    path.write_bytes(b"".join(lines))


def test_an_untouched_run_is_whole_and_is_not_written_to(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(leaky)
    status, found = verified(capsys, leaky)
    assert (status, found["differences"]) == (0, [])
    assert {held["name"]: held["state"] for held in found["checks"]} == dict.fromkeys(
        ("manifest", "files", "journal", "judgement", "database", "evidence", "reports",
         "records file"), "whole",
    )  # fmt: skip
    assert contents(leaky) == before
    assert (
        found["manifest_sha256"]
        == hashlib.sha256((leaky / "manifest.json").read_bytes()).hexdigest()
    )


def test_the_manifest_lists_every_finding_file_table_and_request(leaky: Path) -> None:
    manifest = read_manifest(RunFolder.open(leaky))
    assert manifest is not None
    assert set(manifest.files) == {"journal.jsonl", "records.parquet", "report.json", "report.html"}
    report = json.loads((leaky / "report.json").read_text())
    assert [held.rule for held in manifest.evidence] == [f["rule"] for f in report["findings"]]
    assert "KVA101" in {held.rule for held in manifest.evidence}
    exposed = [held for held in manifest.evidence if held.source is not None]
    assert exposed
    assert all(held.sink_answer and held.source_text for held in exposed)
    assert len(manifest.requests) == len(read_journal(leaky / "journal.jsonl").records)
    assert (manifest.seed, manifest.verdict) == (1, "contaminated")
    assert manifest.tables["findings"]["rows"] == len(report["findings"])
    assert (leaky / "manifest.json").stat().st_mode & 0o777 == 0o600


def test_one_byte_of_a_sinks_answer_names_the_request_and_its_findings(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(reply: dict[str, Any]) -> None:
        reply["output_text"] = "t" + reply["output_text"][1:]

    in_reply(leaky / "journal.jsonl", "trigger-1", change)
    status, found = verified(capsys, leaky)
    assert status == 1
    places = told(found)
    assert "journal.jsonl: request trigger-1: " in places
    assert "run.duckdb: requests trigger-1: output_text" in places
    assert "records.parquet: request trigger-1: output_text" in places
    assert any("finding" in held and "trigger-1 from request fill-1" in held for held in places)
    assert not any("trigger-0" in held or "solo" in held for held in places)


def test_one_byte_of_a_sources_prompt_names_the_finding(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (leaky / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for at, line in enumerate(lines):
        if b'"begin"' in line and b'"request_id":"fill-0"' in line:
            lines[at] = line.replace(b"The project", b"THe project", 1)
    (leaky / "journal.jsonl").write_bytes(b"".join(lines))
    status, found = verified(capsys, leaky)
    assert status == 1
    places = told(found)
    assert "run.duckdb: requests fill-0: messages" in places
    assert any("from request fill-0" in held and "source_text" in held for held in places)


def test_a_changed_number_is_named_too(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_reply(leaky / "journal.jsonl", "solo-3", lambda reply: reply.update(prompt_tokens=61))
    _, found = verified(capsys, leaky)
    assert "run.duckdb: requests solo-3: prompt_tokens" in told(found)


def test_a_cut_journal_names_the_line_that_is_lost(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = leaky / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], lines[6][:40] + b"\n", *lines[7:]]))
    status, found = verified(capsys, leaky)
    assert status == 1
    places = told(found)
    assert "journal.jsonl: line 7: " in places
    assert "journal.jsonl: request solo-2: " in places


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("UPDATE findings SET excerpt = 'x' WHERE position = 0", "run.duckdb: finding 0 ("),
        ("UPDATE requests SET output_text = 'x' WHERE request_id = 'solo-1'",
         "run.duckdb: requests solo-1: output_text"),
        ("DELETE FROM requests WHERE request_id = 'solo-1'", "run.duckdb: requests solo-1: "),
        ("DELETE FROM findings WHERE rule_id = 'KVA101'", "run.duckdb: findings KVA101 trigger-0"),
        ("UPDATE run SET verdict = 'clean'", "run.duckdb: run: verdict"),
        ("UPDATE bounds SET upper = 0.001", "run.duckdb: bounds over-limit: upper"),
        ("UPDATE oracles SET false_alarms = 9 WHERE rule_id = 'KVA101'",
         "run.duckdb: oracles KVA101: false_alarms"),
        ("DROP TABLE canaries", "run.duckdb: "),
        ("CREATE TABLE \"a b; --\" AS SELECT 'x'::BLOB AS c, now() AS t",
         "run.duckdb: table a b; --: "),
        ("ALTER TABLE bounds ALTER stratum TYPE BLOB", "run.duckdb: "),
        ("ALTER TABLE requests ADD COLUMN seen TIMESTAMP DEFAULT now()",
         "run.duckdb: table requests: "),
    ],
)  # fmt: skip
def test_a_changed_database_names_the_row_and_the_column(
    leaky: Path, sql: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with duckdb.connect(str(leaky / "run.duckdb")) as connection:
        connection.execute(sql)
    status, found = verified(capsys, leaky)
    assert status == 1
    assert any(held.startswith(place) for held in told(found)), told(found)


def test_a_database_that_was_only_written_anew_is_whole(
    leaky: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = (leaky / "run.duckdb").read_bytes()
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{leaky / 'run.duckdb'}' AS old (READ_ONLY)")
        connection.execute(f"ATTACH '{tmp_path / 'new.duckdb'}' AS new")
        connection.execute("COPY FROM DATABASE old TO new")
    shutil.move(tmp_path / "new.duckdb", leaky / "run.duckdb")
    assert (leaky / "run.duckdb").read_bytes() != before
    assert verified(capsys, leaky)[0] == 0


@pytest.mark.parametrize(
    ("name", "before", "after", "place"),
    [
        ("report.json", b'"fired": 2', b'"fired": 3', "$.oracles["),
        ("report.json", b'"schema": 1', b'"schema":  1', "line 2, byte"),
        ("report.json", b"{", b"", ""),
        ("report.html", b"<html", b"<HTML", "line 2, byte 2"),
    ],
)
def test_a_changed_report_names_the_place(
    leaky: Path,
    name: str,
    before: bytes,
    after: bytes,
    place: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replaced(leaky / name, before, after)
    status, found = verified(capsys, leaky)
    assert status == 1
    assert {held["piece"] for held in found["differences"]} == {name}
    assert any(place in held["item"] for held in found["differences"])


@pytest.mark.parametrize(
    "name",
    ["journal.jsonl", "run.duckdb", "records.parquet", "report.json", "report.html",
     "manifest.json"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "empty", "flipped"])
def test_a_missing_or_damaged_piece_is_named(
    leaky: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = leaky / name
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        held = bytearray(path.read_bytes())
        held[len(held) // 2] ^= 1
        path.write_bytes(held)
    status, found = verified(capsys, leaky)
    if name == "run.duckdb" and damage == "flipped" and status == 0:
        return  # a byte of free space: no row holds it
    assert status == 1
    # A changed digest looks like a change of what it belongs to.
    is_digest = (name, damage) == ("manifest.json", "flipped")
    assert is_digest or any(held["piece"] == name for held in found["differences"])


def test_every_byte_of_the_evidence_is_covered(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = leaky / "journal.jsonl"
    original = path.read_bytes()
    at = original.index(b'"output_text":"The project')
    for offset in (20, 60, 100):  # inside one answer that is evidence
        held = bytearray(original)
        held[at + offset] ^= 1
        path.write_bytes(held)
        status, found = verified(capsys, leaky)
        assert status == 1
        assert any("trigger-0" in place for place in told(found)), told(found)


def test_an_expected_hash_of_the_manifest_is_held_against_it(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = verified(capsys, leaky)
    assert verified(capsys, leaky, "--expect", found["manifest_sha256"])[0] == 0
    status, found = verified(capsys, leaky, "--expect", "0" * 64)
    assert (status, told(found)) == (1, {"manifest.json: : "})
    assert run(["verify", str(leaky), "--expect", "abc"]) == 2


@pytest.mark.slow
def test_an_audit_a_stopped_and_a_resumed_one_verify(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    def whole() -> Iterator[int]:
        yield verified(capsys, place.run)[0]

    place.audit("--out", "run", failure="target")
    assert list(whole()) == [0]
    place.audit("--out", "run", "--resume", "--max-tokens", "100000")
    assert list(whole()) == [0]
    place.audit("--out", "other", failure="start")
    assert verified(capsys, place.root / "other")[0] == 0
    place.audit("--out", "third", "--max-tokens", "100")
    assert verified(capsys, place.root / "third")[0] == 0


def test_a_run_that_was_never_judged_differs_and_says_so(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.audit("--out", "run", failure="bug")
    status, found = verified(capsys, place.run)
    assert status == 1
    problems = " ".join(held["problem"] for held in found["differences"])
    assert "never" in problems


def test_the_words_for_people_name_the_request(
    leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(leaky)]) == 0
    assert "leaky-run is whole; manifest.json has SHA-256" in capsys.readouterr().out
    in_reply(
        leaky / "journal.jsonl", "trigger-1", lambda reply: reply.update(output_text="\x1b[2J")
    )
    assert run(["verify", str(leaky)]) == 1
    out = capsys.readouterr().out
    assert "differs: journal.jsonl, request trigger-1" in out
    assert "\x1b" not in out
