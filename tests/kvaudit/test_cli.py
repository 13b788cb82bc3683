import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kvaudit
from kvaudit.cli import main as door
from kvaudit.cli.app import COMMANDS
from kvaudit.cli.terminal import escape, write_table
from kvaudit.clock import SimulatedClock
from kvaudit.errors import ShadowedPackageError
from kvaudit.findings import AuditRun, Evidence, Finding, Kind, Severity, Verdict
from kvaudit.records import Message, Outcome, Role
from kvaudit.rules import RULES
from kvaudit.store.database import RecordStore
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalHeader
from kvaudit.target import PlannedRequest, Reply

ANSWER = "an answer of some length"
HEAVY = {"torch", "numba", "polars", "duckdb", "scipy", "pyarrow", "numpy", "rich", "httpx"}


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = door.run(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run")
    header = JournalHeader(run_id="r1", command="audit", version="0.1.0", started_unix_ns=5)
    journal = Journal.start(folder.journal_path, header, SimulatedClock())
    for number, text in enumerate(["=1+1", "\x1b[2Jevil \u202e text", 'third, with "quotes"']):
        journal.begin(
            PlannedRequest(
                request_id=f"q{number}", tenant=text[:8], scenario="s", stratum="in-limit",
                messages=(Message(role="user", content="a long prompt of a tenant"),),
                role=Role.CONTROL,
            ),
            0,
        )  # fmt: skip
        journal.end(
            Reply(
                request_id=f"q{number}",
                outcome=Outcome.ANSWERED,
                output_text="an answer of some length",
            )
        )
    journal.close()
    evidence = Evidence(rule_id="KVA101", sink_request_id="q1", sink_tenant="b", excerpt=ANSWER)
    RecordStore(folder, SimulatedClock()).finish(
        AuditRun(
            run_id="r1", command="audit", version="0.1.0", verdict=Verdict.CONTAMINATED,
            reasons=("q1",),
            findings=(Finding(evidence=evidence, kind=Kind.EXPOSURE, severity=Severity.CRITICAL),),
        )
    )  # fmt: skip
    return folder.path


# --- the door


def test_help_costs_little_more_than_an_empty_application() -> None:
    empty = (
        "import typer\napp = typer.Typer()\n"
        f"for n in range({len(COMMANDS)}): app.command(f'c{{n}}')(lambda: None)\napp()"
    )
    ours = "import sys; sys.argv[0] = 'kvaudit'\nfrom kvaudit.cli.main import main\nmain()"

    def cpu_seconds(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python(code, "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cpu_seconds(ours)  # writes byte code
    costs = [cpu_seconds(ours) - cpu_seconds(empty) for _ in range(3)]
    assert min(costs) <= 0.15


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom kvaudit.cli.main import run\nstatus = run(['--help'])\n"
        "print(status, *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = python(code)
    status, *loaded = done.stderr.split()
    assert status == "0"
    assert "kvaudit" in loaded
    assert not HEAVY & set(loaded)
    assert not {"engine", "probes", "reports"} & set(loaded)


def test_faults_need_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom kvaudit.cli.main import run\n"
        "sys.exit(run(['faults', '--json']))"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)
    assert items["schema"] == 1
    assert {item["name"] for item in items["items"]} >= {"reject-not-propagated"}


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = told(capsys, *name.split(), "--help")
    assert status == 0
    assert "Examples:" in out
    assert f"kvaudit {name}" in out.split("Examples:")[1]


def test_every_example_parses(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    from typer.main import get_command

    root: Any = get_command(door.app)
    for _, _, examples in COMMANDS:
        for example in examples:
            command, words = root, shlex.split(example)[1:]
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            with command.make_context("kvaudit", words) as context:
                assert not context.args, f"{example}: {context.args} is left over"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["aduit"], "there is no command `aduit`", "`audit`"),
        (["model", "fetchh"], "there is no command `fetchh`", "`model fetch`"),
        (["rules", "--explian", "x"], "there is no option `--explian`", "`--explain`"),
        (["rules", "--explain", "KVA1O1"], "there is no rule `KVA1O1`", "`KVA101`"),
        (["faults", "--explain", "reject"], "there is no fault `reject`", "reject-not-propagated"),
        (["query"], "missing argument", "--help"),
        (["query", "nowhere", "requests"], "there is no folder `nowhere`", "--out"),
        (["report", "."], "holds no kvaudit run", "journal.jsonl"),
        (["config", "show", "--config", "no.toml"], "can't read `no.toml`", ""),
    ],
)
def test_a_usage_error_exits_2_with_the_nearest_name(
    arguments: list[str],
    message: str,
    hint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = told(capsys, *arguments)
    assert (status, out) == (2, "")
    first, _, rest = err.partition("\n")
    assert first.lower().startswith("error: ")
    assert message in first.lower() or message in first
    assert hint in rest
    assert "Traceback" not in err


def test_no_command_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys)
    assert (status, out) == (2, "")
    assert "Commands:" in err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--version") == (0, f"kvaudit {kvaudit.__version__}\n", "")


def test_a_crash_of_our_own_is_3_and_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(door, "app", crash)
    status, _, err = told(capsys, "rules")
    assert status == 3
    assert "Traceback" in err
    assert "this is a bug" in err


def test_a_package_in_front_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from kvaudit.cli.main import run\nsys.exit(run(['rules']))"
    )
    done = python(code)
    assert done.returncode == 2
    assert "the package `reports` is not kvaudit's own" in done.stderr
    assert "pipx" in done.stderr
    assert "imported" not in done.stderr


def test_our_own_packages_pass_the_door() -> None:
    try:
        door.check_packages()
    except ShadowedPackageError as error:
        pytest.fail(error.message)


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    terminal: bool, environment: dict[str, str], coloured: bool
) -> None:
    code = "import sys\nfrom kvaudit.cli.main import run\nsys.exit(run(['aduit']))"
    settings = {"TERM": "xterm", "NO_COLOR": ""} | environment
    if not terminal:
        assert "\x1b[" not in python(code, **settings).stderr
        return
    main_end, other_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | settings, stderr=other_end
    )
    os.close(other_end)
    process.wait(timeout=60)
    shown = os.read(main_end, 10_000).decode()
    os.close(main_end)
    assert "there is no command" in shown
    assert ("\x1b[" in shown) == coloured


def test_a_reader_that_goes_away_is_no_verdict(run_folder: Path) -> None:
    code = "from kvaudit.cli.main import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "query", str(run_folder), "SELECT * FROM range(200000)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


# --- catalogues


def test_catalogues_are_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "rules", "--json")
    data = json.loads(out)
    assert (status, err) == (0, "")
    assert (data["schema"], data["command"]) == (1, "rules")
    assert [item["id"] for item in data["items"]] == list(RULES)
    built = {item["id"] for item in data["items"] if item["built"]}
    assert built == {held.id for held in RULES.values() if held.is_built}


def test_one_entry_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "rules", "--explain", "kva101")
    assert RULES["KVA101"].summary in out
    _, out, _ = told(capsys, "faults", "--explain", "F01")
    assert "reject-not-propagated" in out
    assert "sgl-project/sglang#30233" in out


def test_settings_are_shown_with_their_origin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kvaudit.toml").write_text("[audit]\ntenants = 9\nfix = ['door']\n")
    _, out, _ = told(capsys, "config", "show", "--json")
    items = {item["name"]: item for item in json.loads(out)["items"]}
    assert (items["tenants"]["value"], items["tenants"]["from"]) == (9, "file")
    assert (items["fix"]["value"], items["fix"]["from"]) == (["door"], "file")
    assert items["seed"]["from"] == "default"


# --- query and report


def test_a_query_answers_as_table_json_csv_and_parquet(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT request_id, tenant, wave FROM requests"
    _, table, _ = told(capsys, "query", str(run_folder), sql)
    assert table.splitlines()[0].split() == ["request_id", "tenant", "wave"]
    _, as_json, _ = told(capsys, "query", str(run_folder), sql, "--format", "json")
    items = json.loads(as_json)["items"]
    assert items[0] == {"request_id": "q0", "tenant": "=1+1", "wave": 0}
    _, as_csv, _ = told(capsys, "query", str(run_folder), sql, "--format", "csv")
    assert as_csv.splitlines()[1] == "q0,'=1+1,0", "a spreadsheet must not run it"
    output = tmp_path / "out.parquet"
    status, out, _ = told(capsys, "query", str(run_folder), sql, "--output", str(output))
    assert (status, out) == (0, "")
    assert pq.read_table(output).to_pylist() == items
    assert output.stat().st_mode & 0o777 == 0o600


def test_hostile_text_does_not_reach_the_terminal(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("table", "json"):
        _, out, _ = told(capsys, "query", str(run_folder), "requests", "--format", form)
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "evil" in out or "x1b[2Jev" in out


def test_a_list_names_views_columns_and_questions(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = told(capsys, "query", str(run_folder), "--list", "--json")
    items = {item["name"]: item for item in json.loads(out)["items"]}
    assert {"requests", "findings", "candidates", "exposures", "timeline"} <= set(items)
    assert "seconds_between" in items["exposures"]["columns"]
    assert items["pairs"]["kind"] == "question"
    _, out, _ = told(capsys, "query", str(run_folder), "--list")
    assert "seconds_between" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["expsures"], "did you mean `exposures`?"),
        (["SELECT nothing FROM requests"], "the query failed"),
        (["requests", "--format", "xlsx"], "there is no format `xlsx`"),
        (["requests", "--format", "parquet"], "Parquet is no text"),
        (["requests", "--format", "table", "--output", "x.txt"], "a table is for the screen"),
        (["requests", "--format", "csv", "--output", "no/such/x.csv"], "can't write"),
    ],
)
def test_a_bad_query_exits_2(
    run_folder: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = told(capsys, "query", str(run_folder), *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_revealing_text_is_asked_for_and_noted(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = told(capsys, "query", str(run_folder), "requests", "--json")
    assert ANSWER not in out
    assert not (run_folder / "reveals.jsonl").exists()
    _, out, _ = told(capsys, "query", str(run_folder), "requests", "--json", "--reveal")
    assert ANSWER in out
    _, out, _ = told(capsys, "report", str(run_folder), "--format", "json", "--reveal")
    assert ANSWER in out
    notes = [json.loads(line) for line in (run_folder / "reveals.jsonl").read_text().splitlines()]
    assert [note["what"] for note in notes] == ["query requests", "report json"]
    assert (run_folder / "reveals.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_report_of_a_contaminated_run_exits_0(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = told(capsys, "report", str(run_folder))
    assert status == 0
    assert "CONTAMINATED" in out
    status, out, _ = told(capsys, "report", str(run_folder), "--json")
    assert json.loads(out)["verdict"] == "contaminated"


def test_a_report_format_that_is_not_there_exits_2(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = told(capsys, "report", str(run_folder), "--format", "jsn")
    assert (status, out) == (2, "")
    assert "did you mean `json`?" in err


def test_a_run_without_a_verdict_has_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path / "live")
    header = JournalHeader(run_id="r1", command="audit", version="0.1.0", started_unix_ns=5)
    Journal.start(folder.journal_path, header, SimulatedClock()).close()
    status, _, err = told(capsys, "report", str(folder.path))
    assert status == 2
    assert "no verdict yet" in err
    assert "--resume" in err


# --- the terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("naïve 東京 🙂", "naïve 東京 🙂"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        ("\u202e\u2066", "\\u202e\\u2066"),
        ("\x9b1m", "\\x9b1m"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_only_what_can_be_printed_is_printed(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_wide_characters_and_long_cells_keep_the_columns_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_table(["name", "n"], [["東京", 1], ["x" * 100, 2], [None, 3]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("-" * 60 + "  -")
    assert lines[2].startswith("東京" + " " * 56)
    assert lines[3].split() == ["x" * 59 + "…", "2"]
