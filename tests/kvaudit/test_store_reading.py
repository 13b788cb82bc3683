import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.errors import ConfigError, RunFolderError, UnknownNameError
from kvaudit.findings import (
    AuditRun,
    Evidence,
    Finding,
    Kind,
    Severity,
    Side,
    Source,
    Verdict,
)
from kvaudit.records import Message, Outcome, Role
from kvaudit.store.database import RecordStore
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalHeader, read_journal
from kvaudit.store.reading import named_queries, open_run
from kvaudit.target import PlannedRequest, Reply


def new_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    header = JournalHeader(run_id="r1", command="audit", version="0.1.0", started_unix_ns=5)
    journal = Journal.start(folder.journal_path, header, SimulatedClock())
    journal.begin(planned("q0", "a"), 0)
    journal.end(reply("q0", 0))
    journal.begin(planned("q1", "b"), 1)
    journal.end(reply("q1", 2_500_000_000))
    journal.twin(planned("twin", "a"))
    journal.close()
    return folder


def planned(request_id: str, tenant: str) -> PlannedRequest:
    return PlannedRequest(
        request_id=request_id,
        tenant=tenant,
        messages=(Message(role="user", content="a secret prompt of tenant a"),),
        scenario="s",
        stratum="in-limit",
        role=Role.TRIGGER,
    )


def reply(request_id: str, after_ns: int) -> Reply:
    return Reply(
        request_id=request_id,
        outcome=Outcome.ANSWERED,
        status=200,
        output_text="an answer with foreign words in it",
        sent_unix_ns=1_790_000_000_000_000_000 + after_ns,
        ended_unix_ns=1_790_000_001_000_000_000 + after_ns,
    )


def judged_run() -> AuditRun:
    evidence = Evidence(
        rule_id="KVA101",
        sink_request_id="q1",
        sink_tenant="b",
        source=Source(request_id="q0", tenant="a", side=Side.PROMPT),
        excerpt="foreign words in it",
    )
    weaker = Evidence(rule_id="KVA401", sink_request_id="q0", sink_tenant="a")
    return AuditRun(
        run_id="r1",
        command="audit",
        version="0.1.0",
        verdict=Verdict.CONTAMINATED,
        reasons=("canary of a in q1",),
        findings=(
            Finding(evidence=evidence, kind=Kind.EXPOSURE, severity=Severity.CRITICAL),
            Finding(evidence=weaker, kind=Kind.CORRUPTION, severity=Severity.ERROR),
        ),
    )


@pytest.fixture
def judged(tmp_path: Path) -> RunFolder:
    folder = new_run(tmp_path / "run")
    RecordStore(folder, SimulatedClock()).finish(judged_run())
    return folder


OTHER_PROCESS = """
import sys
from pathlib import Path
from kvaudit.store.folder import RunFolder
from kvaudit.store.reading import open_run
with open_run(RunFolder.open(Path(sys.argv[1]))) as run:
    print([row["request_id"] for row in run.query("requests").rows()])
"""


def test_a_second_process_reads_the_run_while_the_first_writes_it(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    clock = SimulatedClock()
    store = RecordStore(folder, clock)
    journal = Journal.resume(folder.journal_path, read_journal(folder.journal_path), clock)
    store.refresh()
    journal.begin(planned("q2", "a"), 1)
    command = [sys.executable, "-c", OTHER_PROCESS, str(folder.path)]
    assert subprocess.check_output(command, text=True).strip() == "['q0', 'q1']"
    journal.end(reply("q2", 0))
    clock.advance(10**12)
    with open_run(folder) as open_before:  # and a reader does not stand in the writer's way
        store.refresh()
        assert len(list(open_before.query("requests").rows())) == 2
    assert subprocess.check_output(command, text=True).strip() == "['q0', 'q1', 'q2']"
    journal.close()


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/passwd'",
        "ATTACH 'other.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA memory_limit = '100GB'",
        "EXPORT DATABASE 'out'",
        "DELETE FROM stored.main.requests",
        "CREATE VIEW stored.main.z AS SELECT 1",
        "SELECT 1; DROP TABLE stored.main.requests",
        "SELECT * FROM nowhere",
        "SELECT 1 +",
        "SELECT CAST('x' AS INTEGER)",
    ],
)
def test_a_query_can_neither_write_nor_leave_the_file(
    judged: RunFolder, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = judged.database_path.read_bytes()
    with open_run(judged) as run, pytest.raises(ConfigError, match=r"failed|one statement"):
        list(run.query(sql).rows())
    assert judged.database_path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize(
    "poison",
    [
        "CREATE VIEW innocent AS SELECT 1",
        "ALTER TABLE findings RENAME TO f; CREATE VIEW findings AS FROM f",
        "CREATE MACRO shown(x) AS 'nothing to see'",
    ],
)
def test_a_file_with_views_or_macros_of_its_own_is_refused(judged: RunFolder, poison: str) -> None:
    connection = duckdb.connect(str(judged.database_path))
    connection.execute(poison)
    connection.close()
    with pytest.raises(RunFolderError, match="of its own"), open_run(judged):
        pass


@pytest.mark.parametrize(
    "poison",
    [
        "DROP TABLE findings",
        "UPDATE requests SET outcome = 'splendid'",
        "UPDATE run SET verdict = 'great'",
        "UPDATE run SET config = '[1]'",
        "UPDATE findings SET kind = 'x'",
        "DELETE FROM run",
        "ALTER TABLE requests ALTER position TYPE VARCHAR; UPDATE requests SET \"role\" = 'x'",
    ],
)
def test_a_file_with_values_that_do_not_fit_is_a_damaged_run(
    judged: RunFolder, poison: str
) -> None:
    connection = duckdb.connect(str(judged.database_path))
    connection.execute(poison)
    connection.close()
    with pytest.raises(RunFolderError, match="can't be read"), open_run(judged) as run:
        list(run.records()) if run.run() else None


def test_every_view_and_question_runs_and_says_what_it_answers(judged: RunFolder) -> None:
    with open_run(judged) as run:
        for query in named_queries().values():
            assert len(query.summary) > 10
            assert list(run.query(query.name).rows()) is not None
        assert set(run.columns()) == {
            query.name for query in named_queries().values() if query.kind == "view"
        }


def test_exposures_name_both_requests_and_the_time_between(judged: RunFolder) -> None:
    with open_run(judged) as run:
        (row,) = run.query("exposures").rows()
        events = [row["event"] for row in run.query("timeline").rows()]
        (pair,) = run.query("pairs").rows()
    assert (row["source_tenant"], row["sink_tenant"], row["sink_request_id"]) == ("a", "b", "q1")
    assert row["seconds_between"] == 2.5
    assert events == ["sent", "answered", "corruption", "sent", "answered", "exposure"]
    assert (pair["source_tenant"], pair["sink_tenant"], pair["findings"]) == ("a", "b", 1)


def test_text_is_shortened_in_views_unless_revealed(judged: RunFolder) -> None:
    with open_run(judged) as run:
        shortened = [
            str(row) for name in ("requests", "exposures") for row in run.query(name).rows()
        ]
    with open_run(judged, reveal=True) as run:
        whole = [str(row) for name in ("requests", "exposures") for row in run.query(name).rows()]
    assert not any("foreign words" in row or "secret prompt" in row for row in shortened)
    assert all("foreign words" in row for row in whole)


def test_a_single_unknown_word_suggests_the_nearest_name(judged: RunFolder) -> None:
    with open_run(judged) as run, pytest.raises(UnknownNameError) as caught:
        run.query("exposure")
    assert caught.value.nearest == "exposures"


def test_nanosecond_times_and_dates_out_of_range_do_not_break_a_query(judged: RunFolder) -> None:
    with open_run(judged) as run:
        (row,) = run.query("SELECT make_timestamp_ns(1790000000000000001) AS at").rows()
        assert row["at"].year == 2026
        with pytest.raises(ConfigError, match="failed"):
            list(run.query("SELECT TIMESTAMP '200000-01-01' AS at").rows())
