"""Reading a run: somebody else's file until proven otherwise.

The database is opened read-only, in a process that then gives up file access, extensions and its
own settings; views come from our `.sql` files, never from the file, which may hold tables and
nothing else. Results leave through Arrow, since COPY is refused.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvaudit.errors import ConfigError, NewerRunError, RunFolderError, UnknownNameError
from kvaudit.findings import AuditRun
from kvaudit.records import RequestRecord
from kvaudit.store.codec import CodecError
from kvaudit.store.database import build_database, migrate, migrations, statement
from kvaudit.store.folder import DATABASE_NAME, JOURNAL_NAME, RunFolder
from kvaudit.store.journal import (
    JournalHeader,
    count_broken_lines,
    read_header,
    read_journal,
)
from kvaudit.store.rows import record_of_row, run_of_rows
from kvaudit.store.scanned import ids_in_findings, offer_scanned, scanned_record_of_row

ROWS_IN_A_BATCH = 1_000
MEMORY_LIMIT = "2GB"
SPILL_LIMIT = "8GB"
_MACRO_NAMES = ("redact", "reveal")
_FIRST_VIEW = "requests"  # others rest on it
_PART_TABLES = ("findings", "candidates", "bounds", "oracles")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedQuery:
    """A view or a question that ships with kvaudit.

    Attributes:
        name: As given to `kvaudit query`.
        kind: `view` or `question`.
        summary: Its first line.
        sql: Its statement.
    """

    name: str
    kind: str
    summary: str
    sql: str


class QueryResult:
    """The rows of one query, which come batch by batch, once.

    Attributes:
        schema: A pyarrow Schema.
    """

    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._reader = reader

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def batches(self) -> Iterator[Any]:
        """Yield pyarrow RecordBatches."""
        try:
            yield from self._reader
        except (duckdb.Error, OSError) as error:
            raise _query_failed(error) from None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row by column name."""
        for batch in self.batches():
            try:
                columns = [_values(column) for column in batch.columns]
            except (ValueError, OverflowError) as error:  # a date that Python can't hold
                raise _query_failed(error) from None
            for values in zip(*columns, strict=True):
                yield dict(zip(self.columns, values, strict=True))


class RunReader:
    """An open run; use `open_run`."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, folder: RunFolder, header: JournalHeader | None
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._header = header

    def query(self, name_or_sql: str) -> "QueryResult":
        """Run a named view, a named question or any SELECT over the views.

        Raises:
            UnknownNameError: A single word that is no name.
            ConfigError: The SQL fails, or is anything but one SELECT.
        """
        sql = _sql_of(name_or_sql)
        try:
            self._refuse_all_but_one_select(sql)
            relation = self._connection.sql(sql)
            return QueryResult(relation.to_arrow_reader(ROWS_IN_A_BATCH))
        except duckdb.Error as error:
            raise _query_failed(error) from None

    def _refuse_all_but_one_select(self, sql: str) -> None:
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ConfigError(
                "a query is one statement that reads, and nothing else",
                hint="write one SELECT, or one WITH ... SELECT",
            )

    def columns(self) -> dict[str, list[str]]:
        """Return the columns of each view."""
        rows = self._connection.sql(statement("columns")).fetchall()
        return {name: list(columns) for name, columns in rows}

    def records(self) -> Iterator[RequestRecord]:
        """Yield every record, in the order in which the requests began."""
        reader = self._connection.sql(statement("records"))
        try:
            for batch in reader.to_arrow_reader(ROWS_IN_A_BATCH):
                for row in batch.to_pylist():
                    yield record_of_row(row)
        except (duckdb.Error, CodecError) as error:
            raise _damaged(error, self._header) from None

    def records_of(self, run: AuditRun) -> dict[str, RequestRecord]:
        """Return by id the records that a report of the run is made from.

        They are all of a live run, and those of a scan that its findings name: a log may be larger
        than memory.
        """
        if run.command != "scan":
            return {held.request_id: held for held in self.records()}
        return self.scanned_records(ids_in_findings(run))

    def scanned_records(self, ids: Collection[str]) -> dict[str, RequestRecord]:
        """Return records of a scanned log by request id; of a shared id, the first."""
        made: dict[str, RequestRecord] = {}
        try:
            relation = self._connection.sql(statement("scanned_records"), params=[sorted(ids)])
            for row in relation.to_arrow_table().to_pylist():
                made.setdefault(row["request_id"], scanned_record_of_row(row))
        except (duckdb.Error, CodecError) as error:
            raise _damaged(error, self._header) from None
        return made

    def scanned_ids(self) -> list[str]:
        """Return every request id of a scanned log; none for a live run."""
        return [row[0] for row in self._connection.sql(statement("scanned_ids")).fetchall()]

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each stored table."""
        rows = self._connection.sql(statement("stored_tables")).fetchall()
        return {name: list(columns) for name, columns in rows}

    def table_rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield every row of one stored table, one of `tables`."""
        try:
            relation = self._connection.table(f'stored.main."{table}"')
            for batch in relation.to_arrow_reader(ROWS_IN_A_BATCH):
                yield from batch.to_pylist()
        except duckdb.Error as error:
            raise _damaged(error, self._header) from None

    def run(self) -> AuditRun | None:
        """Return the judged run; None while it has no verdict."""
        try:
            parts = {name: self._rows(name) for name in _PART_TABLES}
            (row,) = self._rows("run")
            return run_of_rows(row, parts)
        except (duckdb.Error, CodecError, KeyError, ValueError) as error:
            raise _damaged(error, self._header) from None

    def judged(self) -> AuditRun:
        """Return the judged run.

        Raises:
            RunFolderError: It has no verdict yet.
        """
        run = self.run()
        if run is not None:
            return run
        (row,) = self._rows("run")
        hint = (
            scan_again(str(row["repeat"] or ""))
            if row["command"] == "scan"
            else f"finish it with `kvaudit audit --resume --out {self._folder.path}`"
        )
        raise RunFolderError(
            f"the run in `{self._folder.path}` has no verdict yet:"
            f" {_requests(self.request_count())} so far",
            hint=hint,
        )

    def has_verdict(self) -> bool:
        """Whether the run was judged."""
        try:
            (row,) = self._rows("run")
            return row["verdict"] is not None
        except (duckdb.Error, KeyError, ValueError) as error:
            raise _damaged(error, self._header) from None

    def request_count(self) -> int:
        """Return how many requests of a live run the database holds."""
        return int(self._connection.sql(statement("request_count")).fetchall()[0][0])

    def notes(self) -> list[str]:
        """Return what whoever reads this run must know first: lost lines, no verdict yet."""
        is_judged = self.has_verdict()
        made = []
        if damaged := self._damaged_lines(is_live=not is_judged):
            lines = "1 line" if damaged == 1 else f"{damaged:,} lines"
            made.append(
                f"{lines} of the journal can't be read, so what stood there is not in this answer"
            )
        if not is_judged:
            made.append(f"this run has no verdict yet: {_requests(self.request_count())} so far")
        return made

    def _damaged_lines(self, *, is_live: bool) -> int:
        """Count what was damaged when the database was built, or was damaged since."""
        (row,) = self._rows("run")
        stored = int(row["damaged_lines"] or 0)
        if self._header is None:
            return stored
        now = count_broken_lines(self._folder.journal_path, is_live=is_live)
        return now if is_live else max(stored, now)

    def secret(self) -> str:
        """Return the secret that keys the tags of redacted text; "" if the run has none."""
        try:
            (row,) = self._rows("run")
            return str(row["secret"] or "")
        except (duckdb.Error, KeyError, ValueError) as error:
            raise _damaged(error, self._header) from None

    def _rows(self, table: str) -> list[dict[str, Any]]:
        relation = self._connection.table(f"stored.main.{table}")
        rows: list[dict[str, Any]] = relation.to_arrow_table().to_pylist()
        return rows


@contextmanager
def open_run(folder: RunFolder, *, reveal: bool = False) -> Iterator[RunReader]:
    """Open a run for reading.

    A run that was killed before its first wave ended has no database yet: one is built from its
    journal, outside its folder. A database of an older schema is brought up to date in a copy.

    Args:
        folder: The run.
        reveal: Show text whole in the views; else its beginning and its length.

    Raises:
        RunFolderError: The file or the journal's first line is damaged, the file holds more than
            tables, or a scan has no database.
        NewerRunError: A newer kvaudit wrote it.
    """
    with tempfile.TemporaryDirectory(prefix="kvaudit-") as scratch:
        header = read_header(folder.journal_path) if folder.journal_path.exists() else None
        connection = _connect(folder, header, Path(scratch), reveal=reveal)
        try:
            yield RunReader(connection, folder, header)
        finally:
            connection.close()


@cache
def named_queries() -> dict[str, NamedQuery]:
    """Return every view and question by name."""
    queries = {}
    for kind in ("view", "question"):
        folder = resources.files("kvaudit.store").joinpath(f"{kind}s")
        for entry in sorted(folder.iterdir(), key=lambda held: held.name):
            name, _, suffix = entry.name.partition(".")
            if suffix != "sql" or name in _MACRO_NAMES:
                continue
            text = entry.read_text(encoding="utf-8")
            summary = text.splitlines()[0].removeprefix("-- ")
            queries[name] = NamedQuery(name=name, kind=kind, summary=summary, sql=text)
    return queries


def _values(column: Any) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _sql_of(name_or_sql: str) -> str:
    known = named_queries().get(name_or_sql)
    if known is not None:
        return f"FROM {known.name}" if known.kind == "view" else known.sql
    if len(name_or_sql.split()) == 1:
        raise UnknownNameError("view or question", name_or_sql, named_queries())
    return name_or_sql


def scan_again(repeat: str) -> str:
    """Say how to get a scan back: its journal holds its settings, and no request."""
    return "scan the logs again into another folder" + (f": `{repeat}`" if repeat else "")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _connect(
    folder: RunFolder, header: JournalHeader | None, scratch: Path, *, reveal: bool
) -> duckdb.DuckDBPyConnection:
    database_path = folder.database_path
    if not database_path.exists():
        if header is not None and header.command == "scan":
            raise RunFolderError(
                f"the scan in `{folder.path}` has no `{DATABASE_NAME}`: it has not ended, or the"
                " file was removed",
                hint=scan_again(header.repeat),
            )
        database_path = _built_from_journal(folder, scratch)
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(scratch / "spill"),
            "max_temp_directory_size": SPILL_LIMIT,
        },
    )
    try:
        _attach(connection, database_path)
        _bring_up_to_date(connection, database_path, scratch)
        connection.execute("SET enable_external_access = false")
        offer_scanned(connection, folder)
        _make_views(connection, reveal=reveal)
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        connection.close()
        raise _damaged(error, header) from None
    except RunFolderError:
        connection.close()
        raise
    return connection


def _built_from_journal(folder: RunFolder, scratch: Path) -> Path:
    """Build the database elsewhere: who reads a run writes nothing into its folder."""
    built = RunFolder(path=scratch / "built")
    built.spill_path.mkdir(parents=True)
    build_database(built, read_journal(folder.journal_path))
    return built.database_path


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    connection.execute("ATTACH ? AS stored (READ_ONLY)", [str(path)])
    odd = connection.sql(statement("own_objects")).fetchall()
    if odd:
        raise RunFolderError(
            f"`{path}` holds views or macros of its own, which no run of kvaudit does",
            hint="do not trust this file; ask for its `journal.jsonl`",
        )


def _bring_up_to_date(connection: duckdb.DuckDBPyConnection, path: Path, scratch: Path) -> None:
    rows = connection.sql(statement("applied")).fetchall()
    applied, latest = int(rows[0][0]), migrations()[-1].number
    if applied > latest:
        raise NewerRunError(
            f"`{path}` was written by a newer kvaudit (schema {applied},"
            f" this version reads {latest})",
            hint="upgrade kvaudit",
        )
    if applied < latest:
        copy = scratch / DATABASE_NAME
        shutil.copyfile(path, copy)
        connection.execute("DETACH stored")
        connection.execute("ATTACH ? AS stored", [str(copy)])
        connection.execute("USE stored")
        migrate(connection, migrations(), applied=applied)
        connection.execute("USE memory")


def _make_views(connection: duckdb.DuckDBPyConnection, *, reveal: bool) -> None:
    macro = _MACRO_NAMES[reveal]
    folder = resources.files("kvaudit.store").joinpath("views")
    connection.execute(folder.joinpath(f"{macro}.sql").read_text(encoding="utf-8"))
    views = [query for query in named_queries().values() if query.kind == "view"]
    for query in sorted(views, key=lambda query: query.name != _FIRST_VIEW):
        connection.execute(query.sql)


def _query_failed(error: Exception) -> ConfigError:
    return ConfigError(
        f"the query failed: {str(error).strip().splitlines()[0]}",
        hint="`kvaudit query RUN --list` shows views, columns and questions",
    )


def _damaged(error: Exception, header: JournalHeader | None) -> RunFolderError:
    if header is None:
        hint = "there is no journal to build it again from; take the run from a copy"
    elif header.command == "scan":
        hint = scan_again(header.repeat)
    else:
        hint = f"move `{DATABASE_NAME}` away; it is built again from `{JOURNAL_NAME}`"
    return RunFolderError(f"the run can't be read: {str(error).strip().splitlines()[0]}", hint=hint)
