"""The ingest's journal: what is safely on disk, so that a killed ingest goes on where it was."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvaudit.errors import NewerRunError, RunFolderError, StorageError
from kvaudit.forensics.disk import storage_error

VERSION = 2  # 2: small files are finished together


@dataclass(slots=True)
class FileState:
    """How far one file is.

    Attributes:
        parts: Names of its parts on disk.
        rows: Rows in them.
        last_row: Number of the last record whose rows are all in a part.
        damages: Damage up to that record.
        summary: The file's closing line; None while it is not finished.
    """

    parts: list[str] = field(default_factory=list)
    rows: int = 0
    last_row: int = 0
    damages: dict[str, int] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """A file read to its end: its number, its rows, its closing line."""

    number: int
    rows: int
    summary: Mapping[str, Any]


class IngestJournal:
    """An append-only file of JSON lines, flushed and synced at each part.

    Invariant: a part that the journal names was renamed into place before its line was written.
    """

    def __init__(self, path: Path, states: dict[int, FileState]) -> None:
        self._path = path
        self.states = states
        try:
            self._handle = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"can't write `{path}`: {error.strerror}") from None

    @classmethod
    def begin(cls, path: Path, head: Mapping[str, Any]) -> Self:
        """Start a new journal with its head line; a torn head is overwritten."""
        path.unlink(missing_ok=True)
        made = cls(path, {})
        made.write({"type": "begin", "version": VERSION, **head})
        return made

    @staticmethod
    def has_begun(path: Path) -> bool:
        """Whether a journal is there; one whose head was torn by the kill has recorded nothing."""
        try:
            with path.open(encoding="utf-8", errors="replace") as handle:
                return handle.readline().endswith("\n")
        except OSError:
            return False

    @classmethod
    def resume(cls, path: Path, head: Mapping[str, Any]) -> Self:
        """Open the journal of a killed ingest.

        Raises:
            RunFolderError: There is none, or it is of other files or options.
        """
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            raise RunFolderError(
                f"`{path.parent}` holds no ingest to resume", hint="leave out `--resume`"
            ) from None
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        _check_head(entries, head, path)
        states: dict[int, FileState] = {}
        for entry in entries:
            _apply(entry, states)
        whole = "".join(json.dumps(entry) + "\n" for entry in entries)
        _replace(path, whole)
        return cls(path, states)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one line and force it to disk."""
        try:
            self._handle.write(json.dumps(entry) + "\n")
            self._handle.flush()
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise storage_error(self._path, error) from None

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def state(self, number: int) -> FileState:
        """Return the state of one file."""
        return self.states.setdefault(number, FileState())

    def add_part(self, number: int, name: str, rows: int, last_row: int,
                 damages: Mapping[str, int]) -> None:  # fmt: skip
        """Note a part that is on disk."""
        entry = {"type": "part", "file": number, "part": name, "rows": rows, "row": last_row,
                 "damages": dict(damages)}  # fmt: skip
        self.write(entry)
        _apply(entry, self.states)

    def restart(self, number: int) -> None:
        """Note that a file is read anew from its beginning."""
        entry = {"type": "restart", "file": number}
        self.write(entry)
        _apply(entry, self.states)

    def finish(self, number: int, summary: Mapping[str, Any]) -> None:
        """Note that a file is finished."""
        entry = {"type": "file", "file": number, "summary": dict(summary)}
        self.write(entry)
        _apply(entry, self.states)

    def finish_together(self, part: str | None, closings: Sequence[Closing]) -> None:
        """Note that files are finished whose rows are all in one part; None = they have none."""
        found = [[closing.number, closing.rows, dict(closing.summary)] for closing in closings]
        entry = {"type": "files", "part": part, "files": found}
        self.write(entry)
        _apply(entry, self.states)


def _entry(line: str) -> dict[str, Any] | None:
    if not line.endswith("\n"):
        return None  # torn by the kill
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _check_head(entries: list[dict[str, Any]], head: Mapping[str, Any], path: Path) -> None:
    if not entries or entries[0].get("type") != "begin":
        raise RunFolderError(f"`{path}` is damaged", hint="start anew, without `--resume`")
    if entries[0].get("version", 0) > VERSION:
        raise NewerRunError(
            f"`{path}` was written by a newer version of kvaudit", hint="upgrade kvaudit"
        )
    for key, value in head.items():
        if entries[0].get(key) != json.loads(json.dumps(value)):
            raise RunFolderError(
                f"the {key} of the interrupted ingest were not these",
                hint="resume with the same files and options, or start anew in another folder",
            )


def _apply(entry: Mapping[str, Any], states: dict[int, FileState]) -> None:
    kind = entry.get("type")
    if kind == "files":
        for number, rows, summary in entry["files"]:
            states[number] = FileState(rows=rows, summary=summary)
        if entry["part"] is not None:
            states[entry["files"][0][0]].parts.append(entry["part"])
        return
    if kind not in ("part", "restart", "file"):
        return
    state = states.setdefault(entry["file"], FileState())
    if kind == "part":
        state.parts.append(entry["part"])
        state.rows += entry["rows"]
        state.last_row = entry["row"]
        state.damages = dict(entry["damages"])
    elif kind == "restart":
        states[entry["file"]] = FileState()
    else:
        state.summary = entry["summary"]


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise storage_error(path, error) from None
