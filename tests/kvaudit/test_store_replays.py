"""Replays in a run's files: journal, database, Parquet; and in files from before there were any."""

from kvaudit.clock import SimulatedClock
from kvaudit.records import Message, Outcome, Role
from kvaudit.store import database
from kvaudit.store.database import build_database, migrations
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalHeader, read_journal
from kvaudit.store.reading import open_run
from kvaudit.store.records_file import export_records, read_records
from kvaudit.target import PlannedRequest, Replay, Reply

HEADER = JournalHeader(run_id="r1", command="audit", version="0.1.0", started_unix_ns=5)


def new_run(path, replays=()):
    folder = RunFolder.create(path)
    journal = Journal.start(folder.journal_path, HEADER, SimulatedClock())
    for name in ("q0", "q1", "q2"):
        planned = PlannedRequest(
            request_id=name, tenant="a", messages=(Message(role="user", content="text"),),
            scenario="s", stratum="in-limit", role=Role.TRIGGER,
        )  # fmt: skip
        journal.begin(planned, 0)
        journal.end(Reply(request_id=name, outcome=Outcome.ANSWERED, output_text="fine"))
    for replay in replays:
        journal.replay(replay)
    journal.close()
    return folder


def test_a_replay_comes_back_from_journal_database_and_parquet(tmp_path):
    done = Replay(request_id="q0", logprobs=(-0.25, -3.5))
    folder = new_run(tmp_path / "run", [done, Replay(request_id="q1", reason="no token ids")])
    contents = read_journal(folder.journal_path)
    build_database(folder, contents)
    export_records(folder, contents.records)
    with open_run(folder) as run:
        stored = list(run.records())
    for records in (list(contents.records), stored, list(read_records(folder.records_path))):
        assert [(held.replay_logprobs, held.replay_reason) for held in records] == [
            ((-0.25, -3.5), None), (None, "no token ids"), (None, None),
        ]  # fmt: skip


def test_a_database_from_before_replays_is_read_through_an_upgraded_copy(tmp_path, monkeypatch):
    folder = new_run(tmp_path / "run")
    first = migrations()[:1]
    with monkeypatch.context() as patch:
        patch.setattr(database, "migrations", lambda: first)
        build_database(folder, read_journal(folder.journal_path))
    with open_run(folder) as run:
        record = next(iter(run.records()))
    assert (record.request_id, record.replay_logprobs) == ("q0", None)
