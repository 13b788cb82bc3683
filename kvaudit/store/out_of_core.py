"""DuckDB over Parquet files with a limit on memory: what does not fit goes to a folder."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from kvaudit.store.database import storage_errors


class OutOfCore:
    """One database in memory that spills.

    Args:
        scratch: Folder for what does not fit; emptied by DuckDB itself.
        memory_bytes: DuckDB's limit.
        threads: DuckDB's threads.
    """

    def __init__(self, scratch: Path, *, memory_bytes: int, threads: int) -> None:
        self._scratch = scratch
        self._connection = duckdb.connect(":memory:")
        run = self._connection.execute
        run("SET memory_limit = ?", [f"{memory_bytes}B"])
        run("SET threads = ?", [threads])
        run("SET temp_directory = ?", [str(scratch)])
        run("SET preserve_insertion_order = false")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the database."""
        self._connection.close()

    def view(self, name: str, files: str) -> None:
        """Show Parquet files, a path with `*`, under a name."""
        with storage_errors(self._scratch):
            self._connection.read_parquet(files).create_view(name)

    def run(self, sql: str, values: Mapping[str, object] | None = None) -> None:
        """Run one statement that returns nothing.

        Raises:
            StorageError: The disk is full, or the limit too small even to spill.
        """
        with storage_errors(self._scratch):
            self._connection.execute(sql, dict(values or {}))

    def write(self, sql: str, path: Path) -> None:
        """Write what a query returns as one Parquet file."""
        with storage_errors(path):
            self._connection.sql(sql).write_parquet(str(path), compression="zstd")
