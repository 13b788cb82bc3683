import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvaudit.records import Outcome
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.reading import open_run

Place = Any  # see conftest.py


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
    (place.run / ".run.duckdb.99.part").write_text("left by a killed process")
    place.audit("--out", "run", "--resume")
    assert not list(place.run.glob(".*.part"))
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


def test_a_live_run_is_told_as_such_before_what_else_is_wrong(place: Place) -> None:
    process = place.start("--out", "run", delay="0.2", waves="50")
    place.wait_until_sent(1)
    done = place.audit("--out", "run", "--resume", "--seed", "99")
    process.kill()
    process.communicate()
    assert done.returncode == 2
    assert "another kvaudit is writing" in done.stderr
    done = place.audit("--out", "run", "--resume", "--seed", "99")
    assert "was begun with `seed`" in done.stderr


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
        [sys.executable, str(place.fake), "audit", "--out", "run"],
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
