import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.clock import SimulatedClock
from kvaudit.errors import NewerRunError, RunFolderError, StorageError
from kvaudit.records import Message, Outcome, Role
from kvaudit.store import journal as journal_module
from kvaudit.store.journal import Journal, JournalHeader, read_journal
from kvaudit.target import PlannedRequest, Replay, Reply

HEADER = JournalHeader(run_id="r", command="audit", version="0.1.0", started_unix_ns=1, seed=7)


def planned(number: int) -> PlannedRequest:
    mint = CanaryMint("secret")
    return PlannedRequest(
        request_id=f"q{number}",
        tenant="a",
        messages=(Message(role="user", content=f"prompt {number}"),),
        scenario="s",
        stratum="in-limit",
        role=Role.FILL,
        canaries=(mint.mint(f"c{number}", "a"),),
    )


def reply(number: int) -> Reply:
    return Reply(
        request_id=f"q{number}",
        outcome=Outcome.ANSWERED,
        status=200,
        output_text=f"answer {number}",
        output_logprobs=(-0.25, float("-inf")),
        headers=(("x-replica", "1"),),
    )


def written(path: Path, count: int = 3) -> Path:
    journal = Journal.start(path, HEADER, SimulatedClock())
    for number in range(count):
        journal.begin(planned(number), 0)
        journal.end(reply(number))
    journal.close()
    return path


def test_a_replay_of_a_request_that_never_ended_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.start(path, HEADER, SimulatedClock())
    journal.begin(planned(0), 0)
    journal.replay(Replay(request_id="q0", logprobs=(-1.0,)))
    journal.close()
    contents = read_journal(path)
    assert (contents.damaged_lines, contents.records[0].replay_logprobs) == (1, None)


def test_a_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.start(path, HEADER, SimulatedClock())
    journal.twin(planned(9))
    journal.begin(planned(0), 4)
    journal.end(reply(0))
    journal.note("stopped", "by hand")
    journal.close()
    contents = read_journal(path)
    assert contents.header == HEADER
    assert contents.twins == (planned(9),)
    (record,) = contents.records
    assert (record.output_text, record.wave, record.outcome) == ("answer 0", 4, Outcome.ANSWERED)
    assert record.output_logprobs == (-0.25, float("-inf"))
    assert record.canaries == planned(0).canaries
    assert [note.text for note in contents.notes] == ["by hand"]
    assert (contents.unknown_ids, contents.damaged_lines) == (frozenset(), 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for line in written(tmp_path / "j").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_request_begun_and_not_ended_is_unknown(tmp_path: Path) -> None:
    journal = Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    journal.begin(planned(0), 0)
    journal.begin(planned(1), 0)
    journal.end(reply(1))
    journal.close()
    contents = read_journal(tmp_path / "j")
    assert contents.unknown_ids == {"q0"}
    assert [record.outcome for record in contents.records] == [Outcome.UNKNOWN, Outcome.ANSWERED]


def test_each_line_can_be_read_before_the_journal_is_closed(tmp_path: Path) -> None:
    journal = Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    journal.begin(planned(0), 0)
    assert read_journal(tmp_path / "j").unknown_ids == {"q0"}
    journal.end(reply(0))
    assert not read_journal(tmp_path / "j").unknown_ids
    journal.close()


def test_a_journal_cut_anywhere_loses_at_most_its_last_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "j", count=2).read_bytes()
    borders = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole), 37), *borders, *(border - 1 for border in borders)}):
        (tmp_path / "cut").write_bytes(whole[:cut])
        contents = read_journal(tmp_path / "cut")
        # A line whose newline alone is missing is whole.
        ended = sum(border - 1 <= cut for border in borders[2::2])
        assert sum(record.outcome is Outcome.ANSWERED for record in contents.records) == ended
        assert contents.damaged_lines == (cut not in {0, *borders, *(at - 1 for at in borders)})


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe not utf-8",
        b'{"kind": "begin"',
        b"[1, 2]",
        b'{"kind": "surprise"}',
        b'{"kind": "end", "reply": {"request_id": "nobody", "outcome": "answered"}}',
        b'{"kind": "end", "reply": {"request_id": "q0", "outcome": "answered"}}',  # a second end
        b'{"kind": "begin", "wave": 0, "request": {"request_id": 5}}',
        b'{"kind": "begin", "wave": 0}',
        b'{"kind": "header", "schema": "one"}',
        b"[" * 100_000,
        b'{"kind": "note", "name": "x", "text": "y", "at_unix_ns": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_damaged_line_costs_that_line_and_is_counted(tmp_path: Path, damage: bytes) -> None:
    lines = written(tmp_path / "j").read_bytes().splitlines()
    lines.insert(4, damage)
    (tmp_path / "j").write_bytes(b"\n".join(lines))
    contents = read_journal(tmp_path / "j")
    assert contents.damaged_lines == 1
    assert [record.output_text for record in contents.records] == [
        "answer 0", "answer 1", "answer 2"
    ]  # fmt: skip


def test_a_damaged_begin_costs_its_end_too(tmp_path: Path) -> None:
    lines = written(tmp_path / "j").read_bytes().splitlines()
    lines[1] = lines[1][:40]
    (tmp_path / "j").write_bytes(b"\n".join(lines))
    contents = read_journal(tmp_path / "j")
    assert contents.damaged_lines == 2
    assert len(contents.records) == 2


def test_a_line_longer_than_any_of_ours_is_one_damaged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LINE_BYTES_MAX", 4_096)
    written(tmp_path / "j")
    with (tmp_path / "j").open("ab") as file:
        file.write(b"x" * 20_000 + b"\n")
        file.write(b'{"kind":"note","name":"after","text":"","at_unix_ns":1}\n')
    contents = read_journal(tmp_path / "j")
    assert contents.damaged_lines == 1
    assert [note.name for note in contents.notes] == ["after"]


def test_a_journal_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    journal = Journal.start(tmp_path / "j", replace(HEADER, schema=2), SimulatedClock())
    journal.close()
    with pytest.raises(NewerRunError, match="newer kvaudit"):
        read_journal(tmp_path / "j")


def test_resuming_closes_a_cut_line_and_repeats_no_twin(tmp_path: Path) -> None:
    path = written(tmp_path / "j")
    clock = SimulatedClock()
    with path.open("ab") as file:
        file.write(b'{"kind":"beg')
    contents = read_journal(path)
    journal = Journal.resume(path, contents, clock)
    journal.twin(planned(8))
    journal.twin(planned(8))
    journal.begin(planned(5), 1)
    journal.end(reply(5))
    journal.close()
    contents = read_journal(path)
    assert contents.damaged_lines == 1
    assert [record.request_id for record in contents.records] == ["q0", "q1", "q2", "q5"]
    assert contents.notes[-1].name == "resumed"
    assert path.read_bytes().count(b'"twin"') == 1


def test_a_retried_request_keeps_its_place_and_its_new_answer(tmp_path: Path) -> None:
    journal = Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    journal.begin(planned(0), 0)
    journal.begin(planned(1), 0)
    journal.begin(planned(0), 0)
    journal.end(reply(0))
    journal.close()
    contents = read_journal(tmp_path / "j")
    assert [record.request_id for record in contents.records] == ["q0", "q1"]
    assert contents.unknown_ids == {"q1"}


def test_two_processes_never_write_one_journal(tmp_path: Path) -> None:
    journal = Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    with pytest.raises(RunFolderError, match="another kvaudit"):
        Journal(tmp_path / "j", SimulatedClock())
    journal.close()
    Journal(tmp_path / "j", SimulatedClock()).close()


def test_lines_are_fsynced_once_a_second_and_before_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock()
    journal = Journal.start(tmp_path / "j", HEADER, clock)
    syncs = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (syncs.append(clock.now_ns), real(descriptor))
    )
    for number in range(25):
        journal.begin(planned(number), 0)
        clock.advance(100_000_000)
    assert len(syncs) == 2
    journal.sync()
    assert len(syncs) == 3
    journal.close()


def test_a_full_disk_is_a_storage_error_with_a_way_on(tmp_path: Path) -> None:
    (tmp_path / "j").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left") as caught:
        Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    assert caught.value.exit_status == 3
    assert "--resume" in (caught.value.hint or "")


def test_what_was_recorded_before_the_disk_filled_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.start(tmp_path / "j", HEADER, SimulatedClock())
    journal.begin(planned(0), 0)
    journal.end(reply(0))
    real, room = os.write, [100]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageError):
        journal.begin(planned(1), 0)
    monkeypatch.undo()
    journal.close()
    contents = read_journal(tmp_path / "j")
    assert (len(contents.records), contents.damaged_lines) == (1, 1)


KILLED_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_journal import HEADER, planned, reply
from kvaudit.clock import WallClock
from kvaudit.store.journal import Journal
journal = Journal.start(Path(sys.argv[1]), HEADER, WallClock())
print("ready", flush=True)
for number in range(1_000_000):
    journal.begin(planned(number), 0)
    journal.end(reply(number))
    print(number, flush=True)
"""


def test_sigkill_loses_at_most_the_request_in_flight(tmp_path: Path) -> None:
    rng = random.Random(3)
    for trial in range(3):
        path = tmp_path / f"j{trial}"
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED_WRITER, str(path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(rng.randrange(1, 40)):
            acknowledged = int(process.stdout.readline())
        process.kill()
        remaining = process.stdout.read().split(b"\n")
        process.stdout.close()
        process.wait()
        whole = [int(line) for line in remaining[:-1]]
        acknowledged = whole[-1] if whole else acknowledged
        contents = read_journal(path)
        ended = [held for held in contents.records if held.outcome is Outcome.ANSWERED]
        assert len(ended) >= acknowledged + 1
        assert len(contents.records) - len(ended) <= 1
        assert contents.damaged_lines <= 1
