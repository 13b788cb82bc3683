"""Logs in: files to parts, parts to the sorted canonical table, with bounded memory.

Every part is written beside its name and renamed; the journal names it after that. The final
table depends on the rows alone and never on where a part ended, so a killed and resumed ingest
gives the same bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kvaudit.clock import Clock
from kvaudit.errors import ConfigError, RunFolderError
from kvaudit.forensics.disk import storage_error
from kvaudit.forensics.journal import IngestJournal
from kvaudit.forensics.opening import Opened, open_log, rows_of
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.parts import Batch, Ordinals, Parts
from kvaudit.forensics.reader import Format, RawRecord
from kvaudit.forensics.source import LogFile
from kvaudit.forensics.table import Origin

JOURNAL = "ingest.jsonl"
PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """How far an ingest is; `bytes_total` is None while standard input is among the files."""

    bytes_done: int
    bytes_total: int | None
    rows: int
    files_done: int
    files_total: int
    elapsed_s: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes from disk a second so far."""
        return self.bytes_done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds to go at the rate so far; None if nobody knows."""
        if self.bytes_total is None or self.bytes_per_s <= 0:
            return None
        return max(0.0, (self.bytes_total - self.bytes_done) / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """What one file gave.

    Attributes:
        name: Its name.
        format: The format read; None when it could not be.
        refusal: Why not.
        rows: Rows.
        raw_bytes, decoded_bytes: From disk, and after decompression.
        damages: Records lost, by reason.
        notes: What the user should know.
        server_start_us: Start of the server, for a log that counts from it and tells it.
    """

    name: str
    format: str | None
    refusal: str | None
    rows: int
    raw_bytes: int
    decoded_bytes: int
    damages: Mapping[str, int]
    notes: tuple[str, ...]
    server_start_us: int | None = None


Report = Callable[[IngestProgress], None]


class _Meter:
    """Progress over all files, told to the caller now and then."""

    def __init__(self, files: Sequence[LogFile], clock: Clock, report: Report | None) -> None:
        sizes = [file.size_bytes for file in files]
        self._total = None if None in sizes else sum(size or 0 for size in sizes)
        self._files, self._clock, self._report = files, clock, report
        self._start_ns = clock.monotonic_ns()
        self.bytes_before = 0
        self.rows = 0
        self.files_done = 0

    def tell(self, opened: Opened | None = None, rows: int = 0) -> None:
        """Report, with the rows that a file still being read has given so far."""
        if self._report is None:
            return
        self._report(
            IngestProgress(
                bytes_done=self.bytes_before + (opened.progress.raw_bytes if opened else 0),
                bytes_total=self._total,
                rows=self.rows + rows,
                files_done=self.files_done,
                files_total=len(self._files),
                elapsed_s=(self._clock.monotonic_ns() - self._start_ns) / 1e9,
            )
        )


def read_into_parts(
    files: Sequence[LogFile],
    options: IngestOptions,
    folder: Path,
    clock: Clock,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> tuple[list[FileSummary], list[Path]]:
    """Read all files into parts under `folder/parts`; returns what each gave, and the parts.

    Args:
        files: What to read, in order.
        options: The user's rules, checked.
        folder: An existing folder; its journal says what is done.
        clock: For progress and for the year of undated logs from standard input.
        resume: Go on with the journal that is there.
        report: Called a few times a second with the progress.

    Raises:
        KvauditError: The folder can't be written, or holds another ingest.
    """
    parts_folder = folder / PARTS
    journal = _open_journal(files, options, folder, resume=resume)
    meter = _Meter(files, clock, report)
    parts = Parts(journal, parts_folder)
    try:
        for number, file in enumerate(files):
            rows = journal.state(number).rows
            if journal.state(number).summary is None:
                opened = open_log(file, options, clock.unix_ns() // 1000, parts_folder)
                rows = _FileReader(journal, number, parts, meter).read(opened, options)
            meter.bytes_before += file.size_bytes or 0
            meter.rows += rows
            meter.files_done += 1
            meter.tell()
        parts.flush()
        summaries = [_summary(journal.state(number).summary) for number in range(len(files))]
        names = [name for number in range(len(files)) for name in journal.state(number).parts]
    finally:
        journal.close()
    return summaries, [parts_folder / name for name in names]


def _open_journal(
    files: Sequence[LogFile], options: IngestOptions, folder: Path, *, resume: bool
) -> IngestJournal:
    path = folder / JOURNAL
    head = {
        "options": options.as_json(),
        "files": [[file.name, file.size_bytes] for file in files],
    }
    try:
        (folder / PARTS).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise storage_error(folder / PARTS, error) from None
    has_begun = IngestJournal.has_begun(path)
    if resume and (has_begun or not path.exists()):
        journal = IngestJournal.resume(path, head)
    elif has_begun:
        raise RunFolderError(
            f"`{folder}` holds an ingest already", hint="add `--resume`, or choose another `--out`"
        )
    else:
        journal = IngestJournal.begin(path, head)
    known = {name for state in journal.states.values() for name in state.parts}
    for stray in (folder / PARTS).iterdir():
        if stray.name not in known:
            stray.unlink()
    return journal


def _summary(entry: Mapping[str, Any] | None) -> FileSummary:
    assert entry is not None, "every file is finished"
    return FileSummary(**{**entry, "notes": tuple(entry["notes"])})


class _FileReader:
    """Reads one file into parts.

    A part ends only between two records: the wrapper round the records is asked for the next one
    after every row of the last has arrived, so that a resume can go on right there.
    """

    def __init__(self, journal: IngestJournal, number: int, parts: Parts, meter: _Meter) -> None:
        self._journal, self._number, self._parts, self._meter = journal, number, parts, meter
        self._batch = Batch()
        self._last_row = 0

    def read(self, opened: Opened, options: IngestOptions) -> int:
        """Read the file to its end; returns its rows, those of an interrupted ingest included."""
        if opened.frames is not None:
            self._take_frames(opened, opened.frames)
        elif opened.format is not None:
            if self._journal.state(self._number).parts and opened.format.is_stateful:
                self._journal.restart(self._number)
            self._take_rows(opened, opened.format, options)
        rows = self._journal.state(self._number).rows + len(self._batch)
        if opened.progress.stopped is not None:
            opened.context.damage(opened.progress.stopped)
        self._parts.close(self._number, self._batch, self._last_row, _closing_of(opened, rows))
        return rows

    def _take_frames(self, opened: Opened, frames: Iterator[pl.DataFrame]) -> None:
        """Take over a file that is a canonical table already."""
        if self._journal.state(self._number).parts:
            self._journal.restart(self._number)
        for frame in frames:
            self._last_row += len(frame)
            self._write(opened, frame)

    def _take_rows(self, opened: Opened, read: Format, options: IngestOptions) -> None:
        origin = Origin(read.name, opened.file.name, read.layer.value)
        ordinals = Ordinals()
        for row in rows_of(opened, self._counted(opened), options):
            self._batch.add(row, origin, ordinals.of(row.source_row))
            if read.is_stateful and self._batch.is_full:
                self._write(opened, self._batch.emptied())

    def _counted(self, opened: Opened) -> Iterator[RawRecord]:
        state = self._journal.state(self._number)
        skip_to, damages = state.last_row, dict(state.damages)
        is_stateful = opened.format is not None and opened.format.is_stateful
        for record in opened.records:
            if record.row <= skip_to:
                continue
            if skip_to:
                # What was damaged up to here is in the journal; it was only counted again now.
                opened.context.damages.clear()
                opened.context.damages.update(damages)
                skip_to = 0
            if not is_stateful and self._batch.is_full:
                self._write(opened, self._batch.emptied())
            self._last_row = record.row
            yield record
        if skip_to:
            opened.context.damages.clear()
            opened.context.damages.update(damages)

    def _write(self, opened: Opened, frame: pl.DataFrame) -> None:
        self._parts.write(self._number, frame, self._last_row, opened.context.damages)
        self._meter.tell(opened, self._journal.state(self._number).rows)


def _closing_of(opened: Opened, rows: int) -> dict[str, Any]:
    context = opened.context
    return {
        "name": opened.file.name,
        "format": opened.format.name if opened.format is not None else None,
        "refusal": opened.refusal,
        "rows": rows,
        "raw_bytes": opened.progress.raw_bytes,
        "decoded_bytes": opened.progress.decoded_bytes,
        "damages": dict(context.damages),
        "notes": list(context.notes),
        "server_start_us": context.server_start_us,
    }


def no_rows_error(summaries: Sequence[FileSummary]) -> ConfigError:
    """Return the error for logs that gave no record at all, with the reasons."""
    reasons = [f"`{s.name}`: {s.refusal or _lost(s)}" for s in summaries[:5]]
    more = f" (and {len(summaries) - 5} files more)" if len(summaries) > 5 else ""
    return ConfigError(
        "no record could be read" + more,
        hint="; ".join(reasons) + "; name the format with `--format`, or columns with `--map`",
    )


def _lost(summary: FileSummary) -> str:
    if not summary.damages:
        return "no request in it"
    return ", ".join(f"{count} x {reason}" for reason, count in summary.damages.items())
