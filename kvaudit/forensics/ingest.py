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
from kvaudit.forensics.disk import disk_errors, storage_error
from kvaudit.forensics.journal import IngestJournal
from kvaudit.forensics.opening import Opened, open_log, rows_of
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.reader import RawRecord
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.source import LogFile
from kvaudit.forensics.table import Origin, frame_of

PART_ROWS_MAX = 20_000
PART_CHARS_MAX = 24 << 20
JOURNAL = "ingest.jsonl"
PARTS = "parts"
_ROW_CHARS = 512  # what a row weighs besides its texts


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

    def tell(self, opened: Opened | None = None) -> None:
        if self._report is None:
            return
        self._report(
            IngestProgress(
                bytes_done=self.bytes_before + (opened.progress.raw_bytes if opened else 0),
                bytes_total=self._total,
                rows=self.rows,
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
    try:
        for number, file in enumerate(files):
            state = journal.state(number)
            if state.summary is None:
                opened = open_log(file, options, clock.unix_ns() // 1000, parts_folder)
                _FileReader(journal, number, parts_folder, meter).read(opened, options)
            meter.bytes_before += file.size_bytes or 0
            meter.rows += 0 if state.summary is None else state.rows
            meter.files_done += 1
            meter.tell()
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
    """Reads one file into its parts.

    A part ends only between two records: the wrapper round the records is asked for the next one
    after every row of the last has arrived, so that a resume can go on right there.
    """

    def __init__(self, journal: IngestJournal, number: int, folder: Path, meter: _Meter) -> None:
        self._journal, self._number, self._folder, self._meter = journal, number, folder, meter
        self._rows: list[LogRow] = []
        self._chars = 0
        self._last_row = 0

    def read(self, opened: Opened, options: IngestOptions) -> None:
        """Read the file to its end and close it in the journal."""
        if opened.frames is not None:
            self._take_frames(opened, opened.frames)
        elif opened.format is not None:
            if self._journal.state(self._number).parts and opened.format.is_stateful:
                self._journal.restart(self._number)
            self._origin = Origin(opened.format.name, opened.file.name, opened.format.layer.value)
            for row in rows_of(opened, self._counted(opened), options):
                self._rows.append(row)
                self._chars += _weight(row)
                if opened.format.is_stateful and self._is_full():
                    self._flush(opened)
            self._flush(opened)
        self._close(opened)

    def _take_frames(self, opened: Opened, frames: Iterator[pl.DataFrame]) -> None:
        """Take over a file that is a canonical table already."""
        if self._journal.state(self._number).parts:
            self._journal.restart(self._number)
        for frame in frames:
            self._last_row += len(frame)
            self._write(opened, frame)

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
            if not is_stateful and self._is_full():
                self._flush(opened)
            self._last_row = record.row
            yield record
        if skip_to:
            opened.context.damages.clear()
            opened.context.damages.update(damages)

    def _is_full(self) -> bool:
        return len(self._rows) >= PART_ROWS_MAX or self._chars >= PART_CHARS_MAX

    def _flush(self, opened: Opened) -> None:
        if not self._rows:
            return
        self._write(opened, frame_of(self._rows, self._origin))
        self._rows, self._chars = [], 0

    def _write(self, opened: Opened, frame: pl.DataFrame) -> None:
        parts = self._journal.state(self._number).parts
        name = f"{self._number:06}-{len(parts):06}.parquet"
        write_part(frame, self._folder / name)
        damages = opened.context.damages
        self._journal.add_part(self._number, name, len(frame), self._last_row, damages)
        self._meter.rows += len(frame)
        self._meter.tell(opened)

    def _close(self, opened: Opened) -> None:
        context = opened.context
        if opened.progress.stopped is not None:
            context.damage(opened.progress.stopped)
        self._journal.finish(
            self._number,
            {
                "name": opened.file.name,
                "format": opened.format.name if opened.format is not None else None,
                "refusal": opened.refusal,
                "rows": self._journal.state(self._number).rows,
                "raw_bytes": opened.progress.raw_bytes,
                "decoded_bytes": opened.progress.decoded_bytes,
                "damages": dict(context.damages),
                "notes": list(context.notes),
                "server_start_us": context.server_start_us,
            },
        )


def _weight(row: LogRow) -> int:
    sides = (row.input, row.output)
    texts = sum(len(p.text) for side in sides for m in side.messages for p in m.parts)
    return _ROW_CHARS + texts + len(row.context or "")


def write_part(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame beside its name and rename it into place.

    Raises:
        StorageError: The disk refused.
    """
    temporary = path.with_suffix(".tmp")
    with disk_errors(path):
        frame.write_parquet(temporary, compression="zstd", compression_level=1)
        temporary.replace(path)


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
