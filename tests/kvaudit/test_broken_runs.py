"""Runs that are cut, damaged, unfinished or too new: none of them reads as a whole one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvaudit.cli import main as door
from kvaudit.clock import SimulatedClock
from kvaudit.errors import ConfigError, StorageError
from kvaudit.findings import AuditRun, Verdict
from kvaudit.records import Message, Outcome, Role
from kvaudit.store.database import RecordStore, storage_errors
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalHeader
from kvaudit.store.reading import open_run
from kvaudit.target import PlannedRequest, Reply

READERS = {
    "query": lambda run: ("query", run, "findings"),
    "report": lambda run: ("report", run),
    "trace": lambda run: ("trace", run, "q0"),
    "diff": lambda run: ("diff", run, run),
}
SCAN_AGAIN = "kvaudit scan gateway.jsonl --pool-tokens 9"
every_reader = pytest.mark.parametrize("arguments", READERS.values(), ids=READERS)
Arguments = Callable[[Path], tuple[object, ...]]


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = door.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def made_run(
    path: Path, *, command: str = "audit", is_judged: bool = True, last_id: str = "q2"
) -> Path:
    folder = RunFolder.create(path)
    header = JournalHeader(
        run_id="r1", command=command, version="0.1.0", started_unix_ns=5, repeat=SCAN_AGAIN
    )
    journal = Journal.start(folder.journal_path, header, SimulatedClock())
    for request_id in () if command == "scan" else ("q0", "q1", last_id):
        planned = PlannedRequest(
            request_id=request_id, tenant="a", scenario="s", stratum="in-limit",
            messages=(Message(role="user", content="a prompt"),), role=Role.CONTROL,
        )  # fmt: skip
        journal.begin(planned, 0)
        journal.end(Reply(request_id=request_id, outcome=Outcome.ANSWERED, output_text="an answer"))
    journal.close()
    if is_judged:
        RecordStore(folder, SimulatedClock()).finish(
            AuditRun(
                run_id="r1", command=command, version="0.1.0", verdict=Verdict.CLEAN, reasons=()
            )
        )
    return path


def with_line(run: Path, number: int, change: Callable[[str], str]) -> None:
    path = run / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[number] = change(lines[number])
    path.write_text("".join(lines))


@pytest.mark.parametrize("is_judged", [True, False])
@every_reader
def test_a_run_whose_first_line_is_cut_is_an_error_and_no_empty_table(
    arguments: Arguments, is_judged: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", is_judged=is_judged)
    with_line(run, 0, lambda line: line[:30] + "\n")
    status, out, err = told(capsys, *arguments(run))
    assert (status, out) == (2, "")
    assert "the first line of" in err
    assert "hint:" in err


@every_reader
def test_a_run_of_a_newer_journal_is_refused(
    arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run")
    with_line(run, 0, lambda line: json.dumps(json.loads(line) | {"schema": 99}) + "\n")
    status, out, err = told(capsys, *arguments(run))
    assert (status, out) == (2, "")
    assert "newer kvaudit (journal schema 99" in err


@every_reader
def test_lost_lines_are_told_once_with_their_count(
    arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run")
    with_line(run, 2, lambda line: line[:20] + "\n")
    with_line(run, 4, lambda line: line[:20] + "\n")
    status, _, err = told(capsys, *arguments(run))
    assert status == 0
    warnings = {line for line in err.splitlines() if line.startswith("warning: 2 lines")}
    assert len(warnings) == 1, err


@every_reader
def test_a_whole_judged_run_is_told_without_a_warning(
    arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = told(capsys, *arguments(made_run(tmp_path / "run")))
    assert (status, err) == (0, "")


def test_a_run_without_a_verdict_says_so_and_how_far_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", is_judged=False)
    with (run / "journal.jsonl").open("a") as file:
        file.write('{"kind":"beg')  # the line that is being written
    status, _, err = told(capsys, "query", run, "findings")
    assert status == 0, err
    assert err == "warning: this run has no verdict yet: 3 requests so far\n"
    status, _, err = told(capsys, "report", run)
    assert status == 2
    assert "3 requests so far" in err
    assert f"kvaudit audit --resume --out {run}" in err


@pytest.mark.parametrize("name", ["query", "report", "diff", "trace"])
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_scan_without_its_database_is_scanned_again(
    damage: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", command="scan")
    database = run / "run.duckdb"
    if damage == "missing":
        database.unlink()
    else:
        database.write_bytes(b"no database" * 1_000)
    status, out, err = told(capsys, *READERS[name](run))
    assert (status, out) == (2, "")
    assert SCAN_AGAIN in err
    assert "--resume" not in err
    assert "away" not in err


def test_an_audits_bad_database_is_built_again_from_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run")
    (run / "run.duckdb").write_bytes(b"no database" * 1_000)
    status, _, err = told(capsys, "query", run, "requests")
    assert status == 2
    assert "move `run.duckdb` away" in err
    (run / "run.duckdb").unlink()
    status, out, err = told(capsys, "query", run, "requests", "--json")
    assert status == 0, err
    assert [row["request_id"] for row in json.loads(out)["items"]] == ["q0", "q1", "q2"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "PRAGMA version",
        "PRAGMA show_tables",
        "EXPLAIN SELECT 1",
        "CALL pragma_version()",
        " ; ;",
        "-- nothing but a remark",
    ],
)
def test_a_query_is_one_statement_that_reads(sql: str, tmp_path: Path) -> None:
    folder = RunFolder.open(made_run(tmp_path / "run"))
    with open_run(folder) as run, pytest.raises(ConfigError, match="one statement that reads"):
        run.query(sql)


@pytest.mark.parametrize("sql", ["SELECT 1 AS n;", "WITH t AS (SELECT 1 AS n) FROM t"])
def test_a_single_select_is_answered(sql: str, tmp_path: Path) -> None:
    with open_run(RunFolder.open(made_run(tmp_path / "run"))) as run:
        assert list(run.query(sql).rows()) == [{"n": 1}]


@pytest.mark.slow
def test_a_full_disk_is_told_in_our_words(tmp_path: Path) -> None:
    import resource
    import signal

    folder = RunFolder.open(made_run(tmp_path / "run"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    try:
        with pytest.raises(StorageError, match="the disk is full or the file size limit") as caught:
            RecordStore(folder, SimulatedClock()).refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, kept)
    assert caught.value.exit_status == 3
    assert "Error:" not in caught.value.message


@pytest.mark.parametrize("given", ["q\u202e\x1b1", "q\\u{202E}\\u{1B}1", "q\\u202e\\x1b1"])
def test_trace_takes_the_logs_own_id_and_each_shown_form(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", last_id="q\u202e\x1b1")
    status, out, err = told(capsys, "trace", run, given)
    assert (status, err) == (0, "")
    assert out.startswith("request q\\u{202E}\\u{1B}1 of tenant a")
    _, out, _ = told(capsys, "trace", run, given, "--json")
    assert json.loads(out)["request"]["request_id"] == "q\u202e\x1b1"


def test_what_duckdb_says_of_a_full_disk_is_not_shown(tmp_path: Path) -> None:
    import duckdb

    text = 'IO Error: Could not write all bytes to file "x": wanted=4096 wrote=1: No space left'
    reached = "the disk is full or the file size limit is reached"
    with pytest.raises(StorageError, match=reached), storage_errors(tmp_path / "run.duckdb"):
        raise duckdb.IOException(text)
