import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit.canary import Canary
from kvaudit.clock import SimulatedClock
from kvaudit.errors import (
    NewerRunError,
    RunFolderError,
    StorageError,
)
from kvaudit.findings import (
    AuditRun,
    Bound,
    Evidence,
    Finding,
    Kind,
    NotExaminable,
    OracleReport,
    Severity,
    Side,
    Source,
    Span,
    Verdict,
)
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.store import database, reading
from kvaudit.store.codec import CodecError, from_json, to_json
from kvaudit.store.database import Migration, RecordStore, build_database, migrations
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalContents, JournalHeader, JournalNote, read_journal
from kvaudit.store.reading import open_run
from kvaudit.store.records_file import export_records, read_records
from kvaudit.target import PlannedRequest, Reply, record_of

TEXTS = st.text(max_size=30)
MAYBE_TEXTS = st.none() | TEXTS
COUNTS = st.none() | st.integers(0, 10**9)
TIMES = st.none() | st.integers(0, 2 * 10**18)
REALS = st.none() | st.floats(allow_nan=False)
CANARIES = st.builds(
    Canary,
    label=TEXTS,
    tenant=TEXTS,
    words=st.lists(TEXTS, max_size=3).map(tuple),
    code=TEXTS,
    word_bits=st.floats(1, 20),
)
PLANNED = st.builds(
    PlannedRequest,
    request_id=TEXTS,
    tenant=TEXTS,
    messages=st.lists(st.builds(Message, role=TEXTS, content=TEXTS), max_size=3).map(tuple),
    scenario=TEXTS,
    stratum=TEXTS,
    role=st.sampled_from(Role),
    organisation=MAYBE_TEXTS,
    block=st.integers(0, 1000),
    attachments=st.lists(TEXTS, max_size=2).map(tuple),
    canaries=st.lists(CANARIES, max_size=2).map(tuple),
    expected=MAYBE_TEXTS,
    prompt_tokens_sent=COUNTS,
    temperature=st.floats(0, 2),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    cache_salt=MAYBE_TEXTS,
    stream=st.booleans(),
    cancel_after_tokens=COUNTS,
    is_chat=st.booleans(),
)
REPLIES = st.builds(
    Reply,
    request_id=TEXTS,
    outcome=st.sampled_from(Outcome),
    status=COUNTS,
    error_type=MAYBE_TEXTS,
    output_text=MAYBE_TEXTS,
    output_token_ids=st.none() | st.lists(st.integers(0, 200_000), max_size=4).map(tuple),
    output_logprobs=st.none() | st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    prompt_tokens=COUNTS,
    sent_unix_ns=TIMES,
    ttft_ms=REALS,
    ended_unix_ns=TIMES,
    headers=st.lists(st.tuples(TEXTS, TEXTS), max_size=2).map(tuple),
)
PAIRS = st.lists(st.tuples(PLANNED, st.none() | REPLIES), max_size=6).map(
    lambda pairs: [
        (
            replace(planned, request_id=f"q{at}"),
            reply and replace(reply, request_id=f"q{at}"),
        )
        for at, (planned, reply) in enumerate(pairs)
    ]
)


def new_run(path: Path, pairs: Any = (), twins: Any = ()) -> RunFolder:
    folder = RunFolder.create(path)
    header = JournalHeader(
        run_id="r1",
        command="audit",
        version="0.1.0",
        started_unix_ns=5,
        config={"tenants": 4},
        facts=ServerFacts(kind="kvaudit-reference", roles=(RoleFacts(role="prefill"),)),
    )
    journal = Journal.start(folder.journal_path, header, SimulatedClock())
    for planned, reply in pairs:
        journal.begin(planned, 3)
        if reply is not None:
            journal.end(reply)
    for twin in twins:
        journal.twin(twin)
    journal.close()
    return folder


def planned(request_id: str, **changes: Any) -> PlannedRequest:
    values: dict[str, Any] = {
        "request_id": request_id,
        "tenant": "a",
        "messages": (Message(role="user", content="a secret prompt of tenant a"),),
        "scenario": "s",
        "stratum": "in-limit",
        "role": Role.TRIGGER,
    }
    return PlannedRequest(**(values | changes))


def reply(request_id: str, **changes: Any) -> Reply:
    values: dict[str, Any] = {
        "request_id": request_id,
        "outcome": Outcome.ANSWERED,
        "status": 200,
        "output_text": "an answer with foreign words in it",
        "sent_unix_ns": 1_790_000_000_000_000_000,
        "ended_unix_ns": 1_790_000_001_000_000_000,
    }
    return Reply(**(values | changes))


def judged_run() -> AuditRun:
    evidence = Evidence(
        rule_id="KVA101",
        sink_request_id="q1",
        sink_tenant="b",
        source=Source(request_id="q0", tenant="a", side=Side.PROMPT, span=Span(start=1, end=9)),
        sink_span=Span(start=2, end=10),
        excerpt="foreign words in it",
        score=188.5,
        chance=1e-30,
        details={"fold": "none", "words": [1, 2.5, None], "more": {"b": True}},
    )
    weaker = Evidence(rule_id="KVA401", sink_request_id="q0", sink_tenant="a")
    return AuditRun(
        run_id="r1",
        command="audit",
        version="0.1.0",
        verdict=Verdict.CONTAMINATED,
        reasons=("canary of a in q1",),
        repeat="kvaudit audit --seed 7",
        seed=7,
        started_unix_ns=5,
        ended_unix_ns=6,
        target={"kind": "kvaudit-reference"},
        config={"tenants": 4, "target_rate": None},
        findings=(
            Finding(evidence=evidence, kind=Kind.EXPOSURE, severity=Severity.CRITICAL),
            Finding(evidence=weaker, kind=Kind.CORRUPTION, severity=Severity.ERROR, q_value=0.01),
        ),
        candidates=(weaker,),
        bounds=(
            Bound(
                stratum="x", requests=7, detections=0, sensitivity=0.9, confidence=0.95, upper=0.4
            ),
            Bound(
                stratum="y", requests=0, detections=0, sensitivity=None, confidence=0.95, upper=None
            ),
        ),
        oracles=(OracleReport(rule_id="KVA408", available=False, reason="no log-probabilities"),),
        not_examinable=(NotExaminable(reason="no output", count=2),),
        counts={"requests": 2},
    )


# --- the folder


def test_a_run_folder_is_private_and_ignored_by_git(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "deep" / "run", [(planned("q0"), reply("q0"))])
    RecordStore(folder, SimulatedClock()).finish(judged_run())
    folder.write("report.json", b"{}")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.spill_path.stat().st_mode & 0o777 == 0o700
    files = [entry for entry in folder.path.iterdir() if entry.is_file()]
    assert {entry.name for entry in files} == {
        ".gitignore", "journal.jsonl", "run.duckdb", "records.parquet", "report.json"
    }  # fmt: skip
    assert {entry.stat().st_mode & 0o777 for entry in files} == {0o600}
    assert (folder.path / ".gitignore").read_text() == "*\n"


def test_an_empty_folder_is_taken_over_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    assert new_run(tmp_path / "run").path.stat().st_mode & 0o777 == 0o700


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    new_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match="holds a run already") as caught:
        RunFolder.create(tmp_path / "run")
    assert "--resume" in (caught.value.hint or "")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match="not empty"):
        RunFolder.create(tmp_path)
    with pytest.raises(RunFolderError, match="holds no kvaudit run"):
        RunFolder.open(tmp_path)


def test_a_path_that_is_a_file_or_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match="file is in its way"):
            RunFolder.create(path)
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(RunFolderError, match="there is no folder"):
        RunFolder.open(tmp_path / "nowhere")


def test_a_folder_that_may_not_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match="Permission denied"):
        RunFolder.create(tmp_path / "run")


def test_a_failed_write_leaves_the_older_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path / "run")
    folder.write("report.json", b"old")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        folder.write("report.json", b"new")
    assert (folder.path / "report.json").read_bytes() == b"old"
    assert not list(folder.path.glob(".*.part"))


def test_sweeping_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    (folder.path / ".run.duckdb.99.part").write_text("half")
    (folder.path / ".run.duckdb.99.part.wal").write_text("half")
    (folder.spill_path / "duckdb_temp").mkdir()
    (folder.spill_path / "file.tmp").write_text("spilled")
    folder.sweep()
    assert not list(folder.path.glob(".*part*"))
    assert not list(folder.spill_path.iterdir())
    assert folder.journal_path.exists()


# --- records there and back


@given(pairs=PAIRS, twins=st.lists(PLANNED, max_size=2))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_records_come_back_from_journal_database_and_parquet(pairs: Any, twins: Any) -> None:
    expected = [record_of(planned, reply, wave=3) for planned, reply in pairs]
    with tempfile.TemporaryDirectory() as root:
        folder = new_run(Path(root) / "run", pairs, twins)
        contents = read_journal(folder.journal_path)
        assert list(contents.records) == expected
        assert set(contents.twins) <= set(twins)
        build_database(folder, contents)
        with open_run(folder) as run:
            assert list(run.records()) == expected
        export_records(folder, contents.records)
        assert list(read_records(folder.records_path)) == expected


def test_what_utf8_and_64_bits_can_not_hold_is_replaced_and_kept_in_the_journal(
    tmp_path: Path,
) -> None:
    odd = reply("q0", output_text="a\ud800b\U0001f600\x00", prompt_tokens=10**30)
    nan = reply("q1", output_logprobs=(math.nan, -math.inf))
    folder = new_run(tmp_path / "run", [(planned("q0"), odd), (planned("q1"), nan)])
    contents = read_journal(folder.journal_path)
    assert contents.records[0].output_text == "a\ud800b\U0001f600\x00"
    assert contents.records[0].prompt_tokens == 10**30
    build_database(folder, contents)
    with open_run(folder) as run:
        first, second = run.records()
    assert first.output_text == "a\ufffdb\U0001f600\x00"
    assert first.prompt_tokens == 2**63 - 1
    assert second.output_logprobs is not None
    assert math.isnan(second.output_logprobs[0])
    assert second.output_logprobs[1] == -math.inf


def test_every_field_of_a_record_has_a_column() -> None:
    from kvaudit.store.records_file import _schema

    connection = duckdb.connect(":memory:")
    database.migrate(connection, migrations())
    names = {field.name for field in fields(RequestRecord)} | {"position"}
    assert set(connection.table("requests").columns) == names
    assert set(_schema().names) == names


def test_a_judged_run_comes_back_equal(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    RecordStore(folder, SimulatedClock()).finish(judged_run())
    with open_run(folder) as run:
        assert run.run() == judged_run()


def test_a_run_without_a_verdict_has_no_judged_run(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    build_database(folder, read_journal(folder.journal_path))
    with open_run(folder) as run:
        assert run.run() is None
        (row,) = run.query("run").rows()
    assert (row["run_id"], row["verdict"]) == ("r1", None)


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (Message, {"role": "user", "content": 5}),
        (Message, {"role": "user"}),
        (Message, ["user", "hello"]),
        (Reply, {"request_id": "q", "outcome": "splendid"}),
        (Reply, {"request_id": "q", "outcome": "answered", "status": True}),
        (Reply, {"request_id": "q", "outcome": "answered", "status": 200.0}),
        (Reply, {"request_id": "q", "outcome": "answered", "ttft_ms": "fast"}),
        (Reply, {"request_id": "q", "outcome": "answered", "ttft_ms": 10**400}),
        (Reply, {"request_id": "q", "outcome": "answered", "headers": [["only one"]]}),
        (Reply, {"request_id": None, "outcome": "answered"}),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused(cls: type, data: Any) -> None:
    with pytest.raises(CodecError):
        from_json(cls, data)


def test_keys_of_a_later_version_are_left_out() -> None:
    assert from_json(Message, {"role": "user", "content": "x", "mood": "good"}) == Message(
        role="user", content="x"
    )
    assert to_json(Message(role="user", content="x")) == {"role": "user", "content": "x"}


# --- the database


def test_the_database_opens_in_clients_since_1_2(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    build_database(folder, read_journal(folder.journal_path))
    with open_run(folder) as run:
        (row,) = run.query(
            "SELECT tags['storage_version'] AS tag FROM duckdb_databases()"
            " WHERE database_name = 'stored'"
        ).rows()
    assert row["tag"].startswith("v1.2.0")


def test_migrations_are_numbered_without_a_gap_and_recorded(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    build_database(folder, read_journal(folder.journal_path))
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))
    with open_run(folder) as run:
        rows = list(run.query("SELECT * FROM stored.main.migrations ORDER BY number").rows())
    assert rows == [{"number": step.number, "name": step.name} for step in migrations()]


def test_a_database_of_an_older_schema_is_read_through_an_upgraded_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path / "run", [(planned("q0"), reply("q0"))])
    build_database(folder, read_journal(folder.journal_path))
    before = folder.database_path.read_bytes()
    later = Migration(
        number=len(migrations()) + 1,
        name="later.sql",
        sql="ALTER TABLE requests ADD COLUMN mood INT",
    )
    both = (*migrations(), later)
    monkeypatch.setattr(reading, "migrations", lambda: both)
    with open_run(folder) as run:
        (row,) = run.query("SELECT mood, request_id FROM stored.main.requests").rows()
    assert row == {"mood": None, "request_id": "q0"}
    assert folder.database_path.read_bytes() == before


def test_a_database_of_a_newer_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path / "run")
    newer = (*migrations(), Migration(number=99, name="newer.sql", sql="SELECT 1"))
    monkeypatch.setattr(database, "migrations", lambda: newer)
    build_database(folder, read_journal(folder.journal_path))
    with pytest.raises(NewerRunError, match="newer kvaudit"), open_run(folder):
        pass


def test_a_run_killed_before_its_first_database_can_be_read(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", [(planned("q0"), None)])
    assert not folder.database_path.exists()
    with open_run(folder) as run:
        (row,) = run.query("requests").rows()
    assert row["outcome"] == "unknown"
    assert not folder.database_path.exists(), "who reads a run writes nothing into it"


def test_a_damaged_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    for content in (b"not a database" * 1000, b""):
        folder.database_path.write_bytes(content)
        with pytest.raises(RunFolderError, match="can't be read"), open_run(folder):
            pass


def test_a_full_disk_while_building_keeps_the_older_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path / "run", [(planned("q0"), reply("q0"))])
    build_database(folder, read_journal(folder.journal_path))
    before = folder.database_path.read_bytes()

    def refuse(*_: Any) -> None:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(database, "_fill", refuse)
    with pytest.raises(StorageError, match="the disk is full"):
        build_database(folder, read_journal(folder.journal_path))
    assert folder.database_path.read_bytes() == before
    assert not list(folder.path.glob(".*part*"))


def test_the_store_rebuilds_for_a_tenth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock, builds = new_run(tmp_path / "run"), SimulatedClock(), []

    def build(*_: Any) -> None:
        builds.append(clock.now_ns)
        clock.advance(1_000)

    monkeypatch.setattr(database, "build_database", build)
    store = RecordStore(folder, clock)
    for _ in range(100):
        store.refresh()
        clock.advance(500)
    assert 4 <= len(builds) <= 6


def test_an_empty_journal_makes_an_empty_database(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    contents = JournalContents(
        header=None, records=(), twins=(), unknown_ids=frozenset(),
        notes=(JournalNote(name="stopped", text="x", at_unix_ns=1),), damaged_lines=4,
    )  # fmt: skip
    build_database(folder, contents)
    with open_run(folder) as run:
        (row,) = run.query("run").rows()
    assert (row["run_id"], row["damaged_lines"]) == (None, 4)


def test_the_page_of_the_run_folder_tells_every_table_and_column() -> None:
    from kvaudit.store.schema_page import MARKER, schema_page

    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "run-folder.md"
    _, marker, rest = page.read_text(encoding="utf-8").partition(MARKER)
    assert marker + rest == schema_page()
    assert "None" not in schema_page(), "a table or a column has no comment"
