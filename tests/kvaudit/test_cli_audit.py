import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.reading import open_run

Place = Any  # see conftest.py


def test_an_audit_leaves_a_whole_run_and_its_verdict_is_its_status(place: Place) -> None:
    done = place.audit("--out", "run", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == {"clean": 0, "contaminated": 1, "inconclusive": 3}[report["verdict"]]
    names = {entry.name for entry in place.run.iterdir()}
    assert names == {
        ".gitignore", "journal.jsonl", "run.duckdb", "records.parquet", "report.json",
        "report.html", "manifest.json", "tmp",
    }  # fmt: skip
    assert json.loads((place.run / "report.json").read_text()) == report
    assert len(place.sent()) == 12
    assert (report["command"], report["seed"]) == ("audit", 1)
    with open_run(RunFolder.open(place.run)) as run:
        assert len(list(run.records())) == 12


def test_stdout_holds_one_json_object_and_stderr_the_rest(place: Place) -> None:
    done = place.audit("--out", "run", "--json")
    assert json.loads(done.stdout)["schema"] == 1
    assert "plan: fake: 12 requests, at most 120 prompt and 48 output tokens" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(place: Place) -> None:
    piped = place.start("--out", "piped", delay="0.05")
    _, lines = piped.communicate(timeout=60)
    assert "of 12 requests done" in lines
    assert "\x1b" not in lines
    main_end, other_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(place.fake), "audit", "--out", "shown"],
        cwd=place.root, env=os.environ | place.environment(delay="0.1") | {"TERM": "xterm"},
        stdout=subprocess.DEVNULL, stderr=other_end,
    )  # fmt: skip
    os.close(other_end)
    shown = b""
    while True:
        try:
            shown += os.read(main_end, 65536)
        except OSError:  # the other end is closed
            break
    os.close(main_end)
    assert process.wait(timeout=60) in {0, 1, 3}
    assert "/12" in shown.decode()
    assert "\x1b[" in shown.decode()


def test_quiet_says_nothing_on_stderr(place: Place) -> None:
    done = place.audit("--out", "run", "--json", "--quiet")
    assert done.stderr == ""
    assert json.loads(done.stdout)


def test_a_summary_for_people_escapes_what_the_target_said(place: Place) -> None:
    done = place.audit("--out", "run")
    assert "exit status" in done.stdout
    assert "\x1b" not in done.stdout


def test_without_out_each_run_gets_a_folder_of_its_own(place: Place) -> None:
    place.audit(waves="1")
    place.audit(waves="1")
    runs = list((place.root / "kvaudit-runs").iterdir())
    assert len(runs) == 2
    assert all("reference-copier" in run.name for run in runs)


def test_a_dry_run_prints_the_plan_and_sends_nothing(place: Place) -> None:
    told = place.audit("--dry-run", "--trials", "3")
    assert told.returncode == 0
    assert "12 requests" in told.stdout
    assert "can't be `clean`" in told.stdout
    items = json.loads(place.audit("--dry-run", "--json").stdout)["items"]
    assert items == [
        {"scenario": "fake", "strata": ["in-limit"], "requests": 12, "prompt_tokens": 120,
         "output_tokens": 48}
    ]  # fmt: skip
    assert not place.sent()
    assert not (place.root / "kvaudit-runs").exists()


def test_a_limit_on_tokens_stops_before_it_is_passed(place: Place) -> None:
    done = place.audit("--out", "run", "--json", "--max-tokens", "100")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "inconclusive")
    assert any("--max-tokens of 100" in reason for reason in report["reasons"])
    assert len(place.sent()) == 6  # a third wave of 3 x 14 tokens would be 126


def test_a_limit_on_time_stops_between_two_waves(place: Place) -> None:
    done = place.audit("--out", "run", "--json", "--max-time", "0.1s", delay="0.05")
    assert done.returncode == 3
    assert any("--max-time" in reason for reason in json.loads(done.stdout)["reasons"])
    assert len(place.sent()) == 3


def test_a_target_that_fails_makes_the_run_inconclusive(place: Place) -> None:
    done = place.audit("--out", "run", "--json", failure="target")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "inconclusive")
    assert any("connection refused" in reason for reason in report["reasons"])
    contents = read_journal(place.run / "journal.jsonl")
    assert len(contents.records) == 7
    assert contents.unknown_ids == {"fake-2-0"}


def test_an_engine_that_refuses_to_start_is_an_inconclusive_run(place: Place) -> None:
    done = place.audit("--out", "run", "--json", failure="start")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "inconclusive")
    assert any("smaller than the context" in reason for reason in report["reasons"])
    assert (place.run / "report.html").exists()


def test_a_missing_extra_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [held for held in sys.modules if held.split(".")[0] == "engine"]:
        monkeypatch.delitem(sys.modules, name)  # another test may have loaded it, torch and all
    done = place.audit("--out", "run", failure="torch")
    assert done.returncode == 2
    assert "pip install -c constraints.txt '.[engine]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not place.run.exists()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("audit", ["--fault", "reject-not-propagate"], "did you mean `reject-not-propagated`?"),
        ("audit", ["--model", "copyer"], "did you mean `copier`?"),
        ("audit", ["--model", "no/such/folder"], "there is no folder `no/such/folder`"),
        ("audit", ["--scenario", "inciden"], "did you mean `incident`?"),
        ("serve", ["--fault", "reject-not-propagate"], "did you mean `reject-not-propagated`?"),
        ("serve", ["--model", "copyer"], "did you mean `copier`?"),
    ],
)
def test_a_wrong_name_is_told_before_a_missing_extra(
    place: Place, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str], message: str
) -> None:
    for name in [held for held in sys.modules if held.split(".")[0] == "engine"]:
        monkeypatch.delitem(sys.modules, name)
    done = place.command(command, *arguments, failure="torch")
    assert done.returncode == 2
    assert message in done.stderr
    assert "torch" not in done.stderr
    assert not (place.root / "kvaudit-runs").exists()


@pytest.mark.parametrize("model", ["copier", "smollm2", "tags", "folder"])
def test_a_known_model_is_not_refused_by_its_name(
    place: Place, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    (place.root / "folder").mkdir()
    for name in [held for held in sys.modules if held.split(".")[0] == "engine"]:
        monkeypatch.delitem(sys.modules, name)
    done = place.audit("--model", model, failure="torch")
    assert done.returncode == 2
    assert "needs `torch`" in done.stderr


def test_a_count_of_one_is_singular(place: Place) -> None:
    assert "with 1 trial the verdict" in place.audit("--dry-run", "--trials", "1").stdout
    assert "with 2 trials the verdict" in place.audit("--dry-run", "--trials", "2").stdout


def test_a_crash_of_our_own_never_looks_like_a_verdict(place: Place) -> None:
    done = place.audit("--out", "run", failure="bug")
    assert done.returncode == 3
    assert "this is a bug" in done.stderr
    assert len(read_journal(place.run / "journal.jsonl").records) == 7


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--profile", "quik"], "no profile `quik`", "`quick`"),
        (["--fix", "retier"], "no fix `retier`", "`retire`"),
        (["--device", "cuba"], "no device `cuba`", "`cuda`"),
        (["--dtype", "float31"], "no dtype `float31`", "`float32`"),
        (["--tenants", "1"], "`tenants` is 1", "between 2 and 64"),
        (["--trials", "0"], "`trials` is 0", "between 1"),
        (["--confidence", "1.5"], "`confidence` is 1.5", ".9999"),
        (["--max-time", "soon"], "`soon` is no duration", "5m"),
        (["--max-tokens", "-1"], "`max-tokens` is -1", "above 0"),
        (["--seed", "-1"], "`seed` is -1", "between 0"),
        (["--api-key-env", "KEY"], "for a server at a URL", "leave them out"),
        (["http://127.0.0.1:1", "--fault", "x"], "change the reference engine", "serve"),
        (["refrence"], "there is no target `refrence`", "`reference`"),
        (["refrence", "--fault", "x"], "there is no target `refrence`", "`reference`"),
        (["http://192.0.2.1"], "is not this machine", "--i-am-authorised"),
        (["--keep-text", "none"], "`--keep-text none` is not built", "--help"),
        (["--resume"], "`--resume` needs the run", "--out"),
        (["--resume", "--out", "nowhere"], "there is no folder `nowhere`", "--out"),
        (["--resume", "--out", "."], "holds no kvaudit run", "journal.jsonl"),
        (["--out", "sent/x"], "a file is in its way", "--out"),
        (["--config", "none.toml"], "can't read `none.toml`", None),
        (["--seeed", "1"], "no option `--seeed`", "`--seed`"),
        (["--seed", "one"], "invalid value for '--seed'", "--help"),
        (["one", "two"], "unexpected extra argument", "--help"),
    ],
)
def test_bad_input_exits_2_and_says_how_to_mend_it(
    place: Place, arguments: list[str], message: str, hint: str | None
) -> None:
    (place.root / "sent").write_text("")
    done = place.audit(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    if hint is not None:
        assert hint in done.stderr.split("hint:")[1]
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_unknown_scenario_suggests_the_nearest(place: Place) -> None:
    done = place.audit("--scenario", "incidnet")
    assert done.returncode == 2
    assert "did you mean `incident`?" in done.stderr


def test_flags_win_over_the_file_and_its_keys_are_checked(place: Place) -> None:
    (place.root / "kvaudit.toml").write_text("[audit]\ntenants = 5\nmax-tokens = 100\n")
    done = place.audit("--out", "run", "--json", "--tenants", "3")
    assert done.returncode == 3
    header = read_journal(place.run / "journal.jsonl").header
    assert header is not None
    assert (header.config["tenants"], header.config["max_tokens"]) == (3, 100)
    (place.root / "kvaudit.toml").write_text("[audit]\ntenant = 5\n")
    done = place.audit()
    assert done.returncode == 2
    assert "did you mean `tenants`?" in done.stderr


def test_a_run_is_never_overwritten(place: Place) -> None:
    place.audit("--out", "run", waves="1")
    before = (place.run / "journal.jsonl").read_bytes()
    done = place.audit("--out", "run", waves="1")
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert (place.run / "journal.jsonl").read_bytes() == before


def test_what_is_rendered_again_is_byte_identical(place: Place) -> None:
    place.audit("--out", "run")
    for name in ("json", "html"):
        done = place.command("report", "run", "--format", name, "--output", "again")
        assert done.returncode == 0, done.stderr
        assert (place.root / "again").read_bytes() == (place.run / f"report.{name}").read_bytes()


def test_the_repeat_command_repeats_the_settings(place: Place) -> None:
    import shlex

    place.audit("--out", "run", "--seed", "9", "--fix", "door", "--fix", "retire", waves="1")
    header = read_journal(place.run / "journal.jsonl").header
    assert header is not None
    words = shlex.split(header.repeat)
    assert words[:2] == ["kvaudit", "audit"]
    place.audit(*words[2:], "--out", "again", waves="1")
    again = read_journal(place.root / "again" / "journal.jsonl").header
    assert again is not None
    assert (again.config, again.repeat) == (header.config, header.repeat)
