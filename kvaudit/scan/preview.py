"""What a scan would read, told from the first records of each file."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kvaudit.clock import Clock, iso_utc
from kvaudit.forensics.content import answer_text
from kvaudit.forensics.opening import Opened, open_log, rows_of
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.source import LogFile, find_files
from kvaudit.forensics.table import Origin, frame_of
from kvaudit.scan.config import ScanConfig

SAMPLED_RECORDS = 2_000
_LATER_STEPS = 1.6  # joins, sorting and rules, in proportion to the reading


@dataclass(slots=True)
class _Looked:
    """What the first records of one file show."""

    file: LogFile
    format: str | None
    refusal: str | None
    rows: list[LogRow] = field(default_factory=list)
    raw_bytes: int = 0
    is_whole: bool = False
    damages: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Preview:
    """The preview of all files.

    Attributes:
        notes: What the user should mend before the scan.
    """

    looked: list[_Looked]
    seconds: float
    notes: list[str] = field(default_factory=list)

    def items(self) -> list[dict[str, Any]]:
        """Return one JSON object a file."""
        return [_item(held) for held in self.looked]

    def summary(self) -> dict[str, Any]:
        """Return the totals and the estimate."""
        known = [held.file.size_bytes for held in self.looked]
        total = sum(size or 0 for size in known)
        sampled = sum(held.raw_bytes for held in self.looked if held.format)
        estimate = None
        if sampled and None not in known:
            estimate = round(self.seconds * total / sampled * _LATER_STEPS, 1)
        tenants = {row.tenant_id for held in self.looked for row in held.rows if row.tenant_id}
        return {
            "files": len(self.looked),
            "unreadable_files": sum(held.format is None for held in self.looked),
            "bytes": total,
            "sampled_records": sum(len(held.rows) for held in self.looked),
            "sampled_tenants": len(tenants),
            "estimated_s": estimate,
        }


def preview_logs(config: ScanConfig, clock: Clock) -> Preview:
    """Look at the first records of every file; nothing is written that stays."""
    started = clock.monotonic_ns()
    with tempfile.TemporaryDirectory(prefix="kvaudit-") as folder:
        looked = [_look(file, config, clock, Path(folder)) for file in find_files([*config.logs])]
    preview = Preview(looked, (clock.monotonic_ns() - started) / 1e9)
    preview.notes = list(_notes(preview))
    return preview


def _look(file: LogFile, config: ScanConfig, clock: Clock, folder: Path) -> _Looked:
    opened = open_log(file, config.ingest, clock.unix_ns() // 1000, folder)
    looked = _Looked(file, opened.format.name if opened.format else None, opened.refusal)
    if opened.format is not None and opened.frames is None:
        counted = _Counted()
        records = counted.first(opened)
        looked.rows = list(rows_of(opened, records, config.ingest))
        looked.is_whole = counted.is_whole
        if looked.rows:
            frame_of(looked.rows, Origin(opened.format.name, file.name, "gateway"))
    looked.raw_bytes = opened.progress.raw_bytes
    looked.damages = opened.context.damages
    return looked


class _Counted:
    """The first records, and whether they were all."""

    is_whole = False

    def first(self, opened: Opened) -> Iterator[Any]:
        yield from islice(opened.records, SAMPLED_RECORDS)
        self.is_whole = next(opened.records, None) is None


def _item(held: _Looked) -> dict[str, Any]:
    starts = [row.start_us for row in held.rows if row.start_us is not None]
    with_answer = sum(bool(answer_text(row.output).text) for row in held.rows)
    return {
        "name": held.file.name,
        "format": held.format,
        "refusal": held.refusal,
        "bytes": held.file.size_bytes,
        "records": len(held.rows),
        "is_whole": held.is_whole,
        "with_answer": with_answer,
        "tenants": len({row.tenant_id for row in held.rows if row.tenant_id}),
        "first": iso_utc(min(starts) * 1000) if starts else None,
        "last": iso_utc(max(starts) * 1000) if starts else None,
        "damages": dict(held.damages),
    }


def _notes(preview: Preview) -> Iterator[str]:
    rows = [row for held in preview.looked for row in held.rows]
    if rows and not any(row.tenant_id for row in rows):
        yield "no record names a tenant: say `--tenant-field PATH`, or add a log that does"
    bases = {row.time_basis.value for row in rows}
    if "naive" in bases:
        yield "some times name no zone: a join partner tells it, or `--assume-tz`"
    if "relative" in bases:
        yield "some times count from the server's start: say `--server-start`"
    if rows and not any(answer_text(row.output).text for row in rows):
        yield "no answer's text is in these logs: nothing of them can show foreign text"
