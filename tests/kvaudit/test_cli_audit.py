import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvaudit.records import Outcome
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.reading import open_run

FAKE = Path(__file__).with_name("fake_audit.py")


@dataclass(frozen=True)
class Done:
    """What one command line came to."""

    returncode: int
    stdout: str
    stderr: str


class Place:
    """A folder to audit in, and the ids that really left in all runs there."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root = root
        self.run = root / "run"
        self._sent = root / "sent"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(root)

    def audit(self, *arguments: str, **fakes: str) -> Done:
        """Run in this process, which is quicker than one of its own."""
        return self.command("audit", *arguments, **fakes)

    def command(self, *arguments: str, **fakes: str) -> Done:
        from kvaudit.cli.main import run

        fake = _load_fake()
        with self._monkeypatch.context() as patch:
            for name, value in self.environment(**fakes).items():
                patch.setenv(name, value)
            for name, module in fake.modules().items():
                patch.setitem(sys.modules, name, module)
            if "torch" in fake.modules():
                patch.delitem(sys.modules, "engine.target", raising=False)
            patch.setattr("probes.plan.plan_for", fake.plan_for)
            patch.setattr("kvaudit.cli.audit_run.plan_for", fake.plan_for)
            status = run(arguments)
        captured = self._capsys.readouterr()
        return Done(status, captured.out, captured.err)

    def environment(self, **fakes: str) -> dict[str, str]:
        named = {f"FAKE_{name.upper()}": value for name, value in fakes.items()}
        return {"FAKE_SENT": str(self._sent)} | named

    def start(self, *arguments: str, **fakes: str) -> subprocess.Popen[str]:
        """Run in a process of its own, which can be killed."""
        return subprocess.Popen(
            [sys.executable, str(FAKE), "audit", *arguments],
            cwd=self.root, env=os.environ | self.environment(**fakes),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def sent(self) -> list[str]:
        return self._sent.read_text().split() if self._sent.exists() else []

    def wait_until_sent(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.sent()) < count:
            assert time.monotonic() < deadline, "the fake target was never reached"
            time.sleep(0.005)


@cache
def _load_fake() -> Any:
    spec = importlib.util.spec_from_file_location("fake_audit", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


def test_an_audit_leaves_a_whole_run_and_its_verdict_is_its_status(place: Place) -> None:
    done = place.audit("--out", "run", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == {"clean": 0, "contaminated": 1, "inconclusive": 3}[report["verdict"]]
    names = {entry.name for entry in place.run.iterdir()}
    assert names == {
        ".gitignore", "journal.jsonl", "run.duckdb", "records.parquet", "report.json",
        "report.html", "tmp",
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


def test_a_missing_extra_says_what_to_install(place: Place) -> None:
    done = place.audit("--out", "run", failure="torch")
    assert done.returncode == 2
    assert "pip install 'kvaudit[engine]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not place.run.exists()


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
        (["http://127.0.0.1:1"], "`kvaudit audit URL` is not built", "--help"),
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


# --- stopping and going on


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_the_records_and_end_inconclusive(
    place: Place, number: signal.Signals
) -> None:
    process = place.start("--out", "run", "--json", delay="0.1", waves="100")
    place.wait_until_sent(4)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    report = json.loads(stdout)
    assert (process.returncode, report["verdict"]) == (3, "inconclusive"), stderr
    assert any("interrupted" in reason for reason in report["reasons"])
    contents = read_journal(place.run / "journal.jsonl")
    assert len(contents.records) == len(place.sent())
    assert contents.unknown_ids == {place.sent()[-1]}
    assert "Traceback" not in stderr


def test_a_second_ctrl_c_ends_at_once(place: Place) -> None:
    process = place.start("--out", "run", delay="30", waves="100")
    place.wait_until_sent(1)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)  # while the judge's libraries are still being loaded
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert len(read_journal(place.run / "journal.jsonl").records) == 1


def test_a_run_killed_at_any_point_resumes_and_repeats_nothing(place: Place) -> None:
    rng = random.Random(11)
    arguments = ["--out", "run", "--json"]
    for _ in range(3):
        process = place.start(*arguments, delay="0.02", waves="12")
        place.wait_until_sent(min(len(place.sent()) + rng.randrange(1, 9), 34))
        time.sleep(rng.random() * 0.03)
        process.kill()
        process.communicate()
        arguments = ["--out", "run", "--json", "--resume"]
    done = place.audit(*arguments, waves="12")
    assert done.returncode in {0, 1, 3}, done.stderr
    sent = Counter(place.sent())
    assert len(sent) == 36
    assert max(sent.values()) == 1, "a request was sent twice"
    contents = read_journal(place.run / "journal.jsonl")
    assert {record.request_id for record in contents.records} == set(sent)
    assert len(contents.unknown_ids) <= 3
    assert [note.name for note in contents.notes].count("resumed") == 3
    counts = json.loads(done.stdout)["counts"]
    assert counts["resumed"] == 3
    assert counts["damaged_lines"] <= 3
    with open_run(RunFolder.open(place.run)) as run:
        assert len(list(run.records())) == 36


def test_an_interrupted_request_is_sent_again_only_when_asked(place: Place) -> None:
    place.audit("--out", "run", failure="target")
    assert read_journal(place.run / "journal.jsonl").unknown_ids == {"fake-2-0"}
    place.audit("--out", "run", "--resume")
    assert Counter(place.sent())["fake-2-0"] == 1
    assert read_journal(place.run / "journal.jsonl").unknown_ids == {"fake-2-0"}
    place.audit("--out", "run", "--resume", "--retry-unknown")
    contents = read_journal(place.run / "journal.jsonl")
    assert Counter(place.sent()) == Counter(
        {record.request_id: 1 for record in contents.records} | {"fake-2-0": 2}
    )
    assert not contents.unknown_ids
    assert {record.outcome for record in contents.records} == {Outcome.ANSWERED}


def test_a_resumed_run_keeps_its_settings_and_may_raise_its_limits(place: Place) -> None:
    place.audit("--out", "run", "--max-tokens", "50", "--seed", "5")
    assert len(place.sent()) == 3
    other = place.audit("--out", "run", "--resume", "--seed", "6")
    assert other.returncode == 2
    assert "begun with `seed` = `5`" in other.stderr
    place.audit("--out", "run", "--resume", "--max-tokens", "5000")
    assert len(place.sent()) == 12


def test_a_run_of_another_version_is_not_resumed(place: Place) -> None:
    place.audit("--out", "run", waves="1")
    journal = place.run / "journal.jsonl"
    text = journal.read_text()
    journal.write_text(text.replace('"version":"0.1.0"', '"version":"0.0.9"', 1))
    done = place.audit("--out", "run", "--resume")
    assert done.returncode == 2
    assert "kvaudit 0.0.9" in done.stderr
    journal.write_text(text.replace('"schema":1', '"schema":2', 1))
    done = place.audit("--out", "run", "--resume")
    assert done.returncode == 2
    assert "newer kvaudit" in done.stderr
    journal.write_text(text.replace('{"kind":"header"', '{"kind":"hea', 1))
    done = place.audit("--out", "run", "--resume")
    assert done.returncode == 2
    assert "first line" in done.stderr


def test_a_run_that_another_process_writes_is_not_touched(place: Place) -> None:
    process = place.start("--out", "run", delay="0.2", waves="50")
    place.wait_until_sent(1)
    done = place.audit("--out", "run", "--resume")
    process.kill()
    process.communicate()
    assert done.returncode == 2
    assert "another kvaudit is writing" in done.stderr


def test_a_second_process_queries_the_run_while_it_is_live(place: Place) -> None:
    process = place.start("--out", "run", delay="0.05", waves="60")
    place.wait_until_sent(8)
    query = place.command("query", str(place.run), "requests", "--json")
    assert process.poll() is None, "the audit was over too soon"
    process.kill()
    process.communicate()
    items = json.loads(query.stdout)["items"]
    assert items[0]["request_id"] == "fake-0-0"
    assert query.returncode == 0


def test_a_disk_that_fills_up_ends_with_3_and_keeps_what_was_recorded(place: Place) -> None:
    limit = 400_000  # bytes of any one file; the kernel refuses more, as a full disk does

    done = subprocess.run(
        [sys.executable, str(FAKE), "audit", "--out", "run"],
        cwd=place.root, env=place.environment(waves="20", bytes="30000"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "can't write" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(read_journal(place.run / "journal.jsonl").records) >= 1
    resumed = place.audit("--out", "run", "--resume", waves="20", bytes="30000")
    assert resumed.returncode in {0, 3}
    assert max(Counter(place.sent()).values()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as somebody without rights")
def test_a_folder_without_write_permission_exits_2(place: Place, tmp_path: Path) -> None:
    from kvaudit.errors import RunFolderError

    (tmp_path / "locked").mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            RunFolder.create(tmp_path / "locked" / "run")
        except RunFolderError as error:
            os._exit(error.exit_status)
        except PermissionError:
            os._exit(2)  # the folder above is closed to others too
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


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


@pytest.mark.slow
def test_the_reference_engine_is_killed_and_resumed_and_still_convicted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [
        sys.executable, "-c", "from kvaudit.cli.main import main; main()", "audit", "--out", "run",
        "--json", "--quiet",
    ]  # fmt: skip
    begun = ["--model", "tags", "--fault", "reject-not-propagated", "--trials", "8"]
    journal = tmp_path / "run" / "journal.jsonl"
    rng = random.Random(5)
    for number in range(3):
        process = subprocess.Popen(
            [*command, *(["--resume"] if number else begun)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        size = journal.stat().st_size if journal.exists() else 0
        deadline = time.monotonic() + 120
        while not (journal.exists() and journal.stat().st_size > size + rng.randrange(50_000)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.communicate()
    done = subprocess.run(
        [*command, "--resume"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "contaminated"), done.stderr
    begun_ids = [
        json.loads(line)["request"]["request_id"]
        for line in journal.read_text().splitlines()
        if line.startswith('{"kind":"begin"')
    ]
    assert len(begun_ids) == len(set(begun_ids)) == report["counts"]["requests"]
