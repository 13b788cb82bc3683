"""`run.duckdb`: built whole from the journal, put in place by one rename.

Nobody holds the file open for writing across waves, so that any process may read it while the run
goes on. It is written in storage version 1.2.0, which older DuckDB clients open too.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa

from kvaudit.clock import Clock
from kvaudit.errors import StorageError
from kvaudit.findings import AuditRun
from kvaudit.store.folder import DATABASE_NAME, RunFolder, writing_to
from kvaudit.store.journal import JournalContents, read_journal
from kvaudit.store.records_file import export_records
from kvaudit.store.rows import Row
from kvaudit.store.tables import table_rows

ROWS_IN_A_BATCH = 1_000
REBUILD_SHARE = 0.1  # at most this share of a run's time goes into rebuilding the database


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema; never edited once released.

    Attributes:
        number: Counts from 1.
        name: Name of its file.
        sql: Its statements.
    """

    number: int
    name: str
    sql: str


class RecordStore:
    """Keeps the database of one live run in step with its journal."""

    def __init__(self, folder: RunFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._not_before_ns = clock.monotonic_ns()

    def refresh(self) -> None:
        """Rebuild the database from the journal, unless that was done a moment ago.

        A build takes as long as the run is large, so the next one waits `1 / REBUILD_SHARE` times
        as long as this one took.
        """
        started_ns = self._clock.monotonic_ns()
        if started_ns < self._not_before_ns:
            return
        build_database(self._folder, read_journal(self._folder.journal_path))
        ended_ns = self._clock.monotonic_ns()
        self._not_before_ns = ended_ns + int((ended_ns - started_ns) / REBUILD_SHARE)

    def finish(self, run: AuditRun) -> None:
        """Build the database of the judged run and export `records.parquet`."""
        contents = read_journal(self._folder.journal_path)
        build_database(self._folder, contents, run)
        export_records(self._folder, contents.records)


def build_database(
    folder: RunFolder, contents: JournalContents, run: AuditRun | None = None
) -> None:
    """Build `run.duckdb` anew and put it in place of the older one.

    Raises:
        StorageError: The disk is full or refuses the write.
    """
    with folder.replacing(DATABASE_NAME) as half, storage_errors(folder.database_path):
        half.unlink(missing_ok=True)
        connection = duckdb.connect(":memory:", config={"temp_directory": str(folder.spill_path)})
        try:
            connection.execute("ATTACH ? AS stored (STORAGE_VERSION 'v1.2.0')", [str(half)])
            connection.execute("USE stored")
            migrate(connection, migrations())
            _fill(connection, contents, run)
            connection.execute("USE memory")
            connection.execute("DETACH stored")  # writes the last checkpoint
        finally:
            connection.close()
            half.with_name(f"{half.name}.wal").unlink(missing_ok=True)


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration of this version, in order."""
    folder = resources.files("kvaudit.store").joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(
            number=int(name.split("_")[0]),
            name=name,
            sql=folder.joinpath(name).read_text(encoding="utf-8"),
        )
        for name in names
    )


def migrate(
    connection: duckdb.DuckDBPyConnection, steps: Sequence[Migration], *, applied: int = 0
) -> None:
    """Apply the migrations after number `applied` to the current database and record them."""
    for step in steps:
        if step.number > applied:
            connection.execute("BEGIN")
            connection.execute(step.sql)
            connection.execute(statement("record_migration"), [step.number, step.name])
            connection.execute("COMMIT")


@cache
def statement(name: str) -> str:
    """Return one of our own statements."""
    folder = resources.files("kvaudit.store").joinpath("statements")
    return folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refused, in whoever's words, into a StorageError."""
    try:
        with writing_to(path):
            yield
    except (duckdb.IOException, duckdb.FatalException, duckdb.OutOfMemoryException) as error:
        raise StorageError(
            f"can't write `{path}`: {_refusal(str(error))}",
            hint="free some space or raise the limit; what was recorded is kept",
        ) from None


# What DuckDB's own words hold when a disk, a quota or `ulimit -f` stops a write; after one, it
# calls the whole database invalid.
_FULL_WORDS = ("no space left", "file too large", "quota", "could not write", "invalidated")


def _refusal(text: str) -> str:
    if any(words in text.lower() for words in _FULL_WORDS):
        return "the disk is full or the file size limit is reached"
    return text.splitlines()[0]


def _fill(
    connection: duckdb.DuckDBPyConnection, contents: JournalContents, run: AuditRun | None
) -> None:
    for table, rows in table_rows(contents, run).items():
        _insert(connection, table, rows)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Row]) -> None:
    schema = connection.table(table).limit(0).to_arrow_table().schema
    remaining = iter(rows)
    while batch := list(islice(remaining, ROWS_IN_A_BATCH)):
        arrow = pa.Table.from_pylist(batch, schema=schema)
        connection.from_arrow(arrow).insert_into(table)
