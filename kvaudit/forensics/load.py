"""Logs to the canonical table, all steps: read, join, sort, write. The one door of the ingest."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from kvaudit.clock import Clock
from kvaudit.errors import RunFolderError
from kvaudit.forensics.clocks import Clocks, Skew, skew_of
from kvaudit.forensics.disk import storage_error
from kvaudit.forensics.finish import write_table
from kvaudit.forensics.ingest import (
    JOURNAL,
    PARTS,
    FileSummary,
    Report,
    no_rows_error,
    read_into_parts,
)  # fmt: skip
from kvaudit.forensics.joining import join_parts
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.source import LogFile

TABLE = "requests.parquet"
TABLE_TMP = "requests.parquet.tmp"
SUMMARY = "ingest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A finished ingest.

    Attributes:
        table: The canonical table.
        files: What each file gave.
        rows: Rows in the table.
        outside_window: Rows left out by `--window`.
        requests_joined: Requests seen at more than one layer, or twice.
        rows_folded: Rows that are another view of a request.
        layers_differ: Requests whose layers show different answers.
        clocks: Corrections, skews and what was assumed.
    """

    table: Path
    files: tuple[FileSummary, ...]
    rows: int
    outside_window: int
    requests_joined: int
    rows_folded: int
    layers_differ: int
    clocks: Clocks

    @property
    def skew_us(self) -> int:
        """Tolerance of 'earlier', in microseconds."""
        return skew_of(self.clocks.skews)

    @property
    def damages(self) -> Counter[str]:
        """Records lost, by reason, over all files."""
        total: Counter[str] = Counter()
        for file in self.files:
            total.update(file.damages)
        return total


def ingest(
    files: Sequence[LogFile],
    options: IngestOptions,
    folder: Path,
    clock: Clock,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> Ingested:
    """Turn log files into `folder/requests.parquet`.

    Raises:
        KvauditError: Bad options, nothing to read, or a disk that refuses; no half table is left.
    """
    options.check()
    if resume and (folder / TABLE).exists():
        return _finished(folder)
    summaries, parts = read_into_parts(files, options, folder, clock, resume=resume, report=report)
    if not parts:
        _clean(folder)
        raise no_rows_error(summaries)
    starts = {
        file.name: file.server_start_us for file in summaries if file.server_start_us is not None
    }
    joined = join_parts(parts, folder, options, starts)
    written = write_table(parts, joined, options, folder / PARTS, folder / TABLE_TMP)
    made = Ingested(
        table=folder / TABLE,
        files=tuple(summaries),
        rows=written.rows,
        outside_window=written.outside_window,
        requests_joined=joined.groups,
        rows_folded=joined.folded,
        layers_differ=joined.layers_differ,
        clocks=joined.clocks,
    )
    _save(made, folder)
    _clean(folder)
    return made


def _save(made: Ingested, folder: Path) -> None:
    """Put the summary, then the table, under their names: a table that is there is whole."""
    try:
        (folder / SUMMARY).write_text(json.dumps(_as_json(made), indent=1), encoding="utf-8")
        (folder / TABLE_TMP).replace(folder / TABLE)
    except OSError as error:
        raise storage_error(folder, error) from None


def _as_json(made: Ingested) -> dict[str, Any]:
    values = asdict(made)
    values.pop("table")
    values["clocks"]["ahead_us"] = [
        [*clock, ahead] for clock, ahead in made.clocks.ahead_us.items()
    ]
    return values


def _finished(folder: Path) -> Ingested:
    """Return a finished ingest from its folder."""
    try:
        values = json.loads((folder / SUMMARY).read_text("utf-8"))
        clocks = values.pop("clocks")
        files = values.pop("files")
        _clean(folder)
        return Ingested(
            table=folder / TABLE,
            files=tuple(FileSummary(**{**file, "notes": tuple(file["notes"])}) for file in files),
            clocks=Clocks(
                {(name, clock): ahead for name, clock, ahead in clocks["ahead_us"]},
                tuple(
                    Skew(tuple(s["first"]), tuple(s["second"]), s["median_us"], s["requests"])
                    for s in clocks["skews"]
                ),
                tuple(clocks["notes"]),
            ),
            **values,
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"`{folder / SUMMARY}` is damaged", hint="scan the logs again into another folder"
        ) from None


def _clean(folder: Path) -> None:
    """Remove the scratch files; the table, if there is one, stays."""
    rmtree(folder / PARTS, ignore_errors=True)
    rmtree(folder / "duckdb-tmp", ignore_errors=True)
    for name in ("joins.duckdb", "joins.duckdb.wal", JOURNAL):
        (folder / name).unlink(missing_ok=True)
