"""The pass over the narrow columns: groups, primaries, tenants from partners, clocks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from kvaudit.forensics.clocks import ClockPairs, Clocks
from kvaudit.forensics.disk import disk_errors
from kvaudit.forensics.grouping import Group, Seen, groups_of
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.sql_files import kept_answer, sql
from kvaudit.forensics.times import US

ROWS_OF_ID_MAX = 16
ID_CHARS_MIN = 6
_TWIN_US_MAX = 30 * US
_LABEL_ROUNDS_MAX = 8
_BATCH = 20_000
_MEMORY = "900MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What the joins found.

    Attributes:
        database: DuckDB file with the table `patch`: per part, what changes in which row.
        clocks: Corrections and skews.
        groups: Requests that were seen more than once.
        folded: Rows that are another view or a copy of a request.
        layers_differ: Groups whose layers show different answers.
    """

    database: Path
    clocks: Clocks
    groups: int
    folded: int
    layers_differ: int


PATCH_SCHEMA: dict[str, Any] = {
    "part": pl.String, "record_id": pl.String, "dedup_group": pl.String, "is_primary": pl.Boolean,
    "attempt": pl.Int16, "tenant_id": pl.String, "tenant_id_source": pl.String,
    "organisation": pl.String, "gen_ai_conversation_id": pl.String, "group_start_us": pl.Int64,
    "group_file": pl.String, "group_clock": pl.String, "group_basis": pl.String,
    "group_rows": pl.Int32,
}  # fmt: skip


def join_parts(
    parts: Sequence[Path],
    folder: Path,
    options: IngestOptions,
    starts: Mapping[str, int] | None = None,
) -> Joined:
    """Group the rows of all parts, and write what that changes to a scratch database.

    Args:
        parts: The parts.
        folder: Takes the scratch database.
        options: The user's rules.
        starts: Start of the server by file, for logs that count from it and tell it themselves.

    Raises:
        StorageError: The disk is full.
    """
    database = folder / "joins.duckdb"
    database.unlink(missing_ok=True)
    with disk_errors(database), duckdb.connect(str(database)) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET threads = 2")
        connection.execute("SET preserve_insertion_order = true")
        connection.execute("SET temp_directory = ?", [str(folder / "duckdb-tmp")])
        return _Joiner(connection, parts, options, starts or {}).run(database)


class _Joiner:
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        parts: Sequence[Path],
        options: IngestOptions,
        starts: Mapping[str, int],
    ) -> None:
        self._connection = connection
        self._options = options
        self._parts = [str(part) for part in parts]
        self._pairs = ClockPairs(starts)
        self._counts: Counter[str] = Counter()

    def run(self, database: Path) -> Joined:
        self._load()
        self._connection.register("patch_rows", pl.DataFrame(schema=PATCH_SCHEMA).to_arrow())
        self._connection.execute(sql("empty_patch"))
        batch: list[tuple[Any, ...]] = []
        for group in self._groups():
            self._pairs.add(group)
            batch.extend(self._patched(group))
            if len(batch) >= _BATCH:
                self._save(batch)
                batch = []
        self._save(batch)
        return Joined(
            database=database,
            clocks=self._pairs.solve(self._options),
            groups=self._counts["groups"],
            folded=self._counts["folded"],
            layers_differ=self._counts["layers_differ"],
        )

    def _load(self) -> None:
        """Make the narrow view, the links between rows and ids, and the clocks known."""
        run = self._connection.execute
        names = ", ".join(f"'{part.replace(chr(39), chr(39) * 2)}'" for part in self._parts)
        run(f"CREATE VIEW narrow AS {sql('narrow')}".replace("$parts", names))
        run(kept_answer("links", "shared_ids"), {
            "rows_max": ROWS_OF_ID_MAX, "id_chars_min": ID_CHARS_MIN, "twin_us_max": _TWIN_US_MAX,
        })  # fmt: skip
        run(kept_answer("labels", "first_labels"))
        for _ in range(_LABEL_ROUNDS_MAX):
            run(kept_answer("next_labels", "label_round"))
            changed = run(sql("labels_changed")).fetchone()
            run("DROP TABLE labels")
            run("ALTER TABLE next_labels RENAME TO labels")
            if changed is None or changed[0] == 0:
                break
        for source_file, clock_id, basis, first_us in run(sql("clocks")).fetchall():
            self._pairs.know((source_file, clock_id), basis, first_us)

    def _groups(self) -> Iterator[Group]:
        cursor = self._connection.cursor()
        cursor.execute(sql("grouped_rows"))
        names = [field.name for field in fields(Seen)]
        for _, rows in groupby(_rows(cursor), key=lambda row: row[0]):
            seen = [Seen(**dict(zip(names, row[1:], strict=True))) for row in rows]
            yield from groups_of(seen)

    def _patched(self, group: Group) -> Iterator[tuple[Any, ...]]:
        tenant, tenant_source, organisation = group.tenant
        primary = group.primary
        if len(group.rows) > 1:
            self._counts["groups"] += 1
            self._counts["folded"] += len(group.rows) - 1
            digests = {row.output_digest for row in group.rows if row.output_digest}
            self._counts["layers_differ"] += len(digests) > 1
        for row in group.rows:
            yield (
                row.part, row.record_id, primary.record_id, row is primary, group.attempt, tenant,
                tenant_source, organisation, group.conversation, primary.start_us,
                primary.source_file, primary.clock_id, primary.time_basis, len(group.rows),
            )  # fmt: skip

    def _save(self, batch: list[tuple[Any, ...]]) -> None:
        if not batch:
            return
        frame = pl.DataFrame(batch, schema=PATCH_SCHEMA, orient="row")
        self._connection.register("patch_rows", frame.to_arrow())
        self._connection.execute(sql("add_patch"))


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_BATCH):
        yield from rows
