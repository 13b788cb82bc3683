"""The journal: the truth of a run while it is live.

One JSON object a line, of these kinds:

* `header`: schema, version, command, config, seed, how to repeat the run, what the target said.
* `begin`: a planned request, just before its first byte leaves.
* `end`: what came back, after its last byte.
* `twin`: a request minted like the others and sent to no one.
* `replay`: the answer to an ended request, scored again under its own prompt.
* `note`: a stop, a resume; a name, a text and the time.
* `closing`: just before the run is judged, what the judge is told besides the records.

Each line is handed to the operating system at once and fsynced at least once a second while lines
are written, so killing the process at any point loses at most the request in flight. A damaged line
costs that line and is counted. A request that was begun and not ended is `unknown`.
"""

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvaudit.clock import Clock
from kvaudit.errors import NewerRunError, RunFolderError
from kvaudit.findings import Json
from kvaudit.records import RequestRecord
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.codec import CodecError, from_json, to_json
from kvaudit.store.folder import PRIVATE_FILE_MODE, storage_error
from kvaudit.target import PlannedRequest, Replay, Reply, record_of, with_replay

JOURNAL_SCHEMA = 1
FSYNC_EVERY_NS = 1_000_000_000
LINE_BYTES_MAX = 256 * 1024 * 1024
DAMAGED_TOLD_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHeader:
    """The first line: everything that is known of a run before its first request.

    Attributes:
        run_id: Time and name.
        command: The kvaudit command that made it.
        version: Version of kvaudit.
        started_unix_ns: Wall clock.
        config: Effective configuration without secrets, JSON values only.
        seed: All randomness comes from it; None where there is none.
        repeat: Command line that repeats the run.
        facts: What the target said of itself; None when it could not be asked.
        secret: Keys the tags of redacted text; made for this run alone, and in none of its reports.
        schema: Version of the journal's form.
    """

    run_id: str
    command: str
    version: str
    started_unix_ns: int
    config: Mapping[str, Json] = field(default_factory=dict)
    seed: int | None = None
    repeat: str = ""
    facts: ServerFacts | None = None
    secret: str = ""
    schema: int = JOURNAL_SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalNote:
    """Something that happened to the run as a whole.

    Attributes:
        name: `stopped`, `resumed`, ...
        text: In words; "" if the name says it all.
        at_unix_ns: Wall clock.
    """

    name: str
    text: str
    at_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What the judge is told besides the records, so that anybody can judge the run again.

    Attributes:
        strata: The strata that the plan set out to examine.
        config: Effective configuration; a resume may have raised its limits.
        stopped: Why the run ended before its plan; None if it did not.
        ended_unix_ns: Wall clock.
        facts: What the target said of itself; None when it could not be asked.
    """

    strata: tuple[str, ...]
    config: Mapping[str, Json]
    ended_unix_ns: int
    stopped: str | None = None
    facts: ServerFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """What a journal holds, as far as it can be read.

    Attributes:
        header: None when its line is damaged.
        records: One for each begun request, in the order in which they began.
        twins: Never-sent requests.
        unknown_ids: Requests that were begun and not ended.
        notes: In order.
        damaged_lines: Lines that could not be used.
        damaged_at: Numbers of the first of them, from 1.
        closing: The last one; None while the run was never judged.
    """

    header: JournalHeader | None
    records: tuple[RequestRecord, ...]
    twins: tuple[PlannedRequest, ...]
    unknown_ids: frozenset[str]
    notes: tuple[JournalNote, ...]
    damaged_lines: int
    damaged_at: tuple[int, ...] = ()
    closing: Closing | None = None


class Journal:
    """Writes one run's journal; one process at a time, any of its threads.

    Invariant: what `begin`, `end`, `twin` and `note` were given has left this process when they
    return; at most `FSYNC_EVERY_NS` of it is not on the disk yet while lines are being written.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._twin_ids: set[str] = set()
        self._synced_ns = clock.monotonic_ns()
        try:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE_FILE_MODE
            )
        except OSError as error:
            raise storage_error(path, error) from None
        self._is_open = True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            self._is_open = False
            raise _is_live(path) from None

    @classmethod
    def start(cls, path: Path, header: JournalHeader, clock: Clock) -> "Journal":
        """Begin a new journal with its header line."""
        journal = cls(path, clock)
        assert os.fstat(journal._descriptor).st_size == 0, "a journal is never overwritten"
        journal._write_line("header", to_json(header) | {"schema": header.schema})
        journal.sync()
        return journal

    @classmethod
    def resume(cls, path: Path, contents: JournalContents, clock: Clock) -> "Journal":
        """Go on with a journal that was read before; a cut last line is closed first."""
        journal = cls(path, clock)
        journal._twin_ids = {twin.request_id for twin in contents.twins}
        size = os.fstat(journal._descriptor).st_size
        if size and os.pread(journal._descriptor, 1, size - 1) != b"\n":
            journal._write(b"\n")
        journal.note("resumed")
        return journal

    def begin(self, planned: PlannedRequest, wave: int) -> None:
        """Record a request just before its first byte leaves."""
        self._write_line("begin", {"wave": wave, "request": to_json(planned)})

    def end(self, reply: Reply) -> None:
        """Record what came back, after its last byte."""
        self._write_line("end", {"reply": to_json(reply)})

    def twin(self, planned: PlannedRequest) -> None:
        """Record a request that is sent to no one; one that is known already is passed over."""
        if planned.request_id not in self._twin_ids:
            self._twin_ids.add(planned.request_id)
            self._write_line("twin", {"request": to_json(planned)})

    def replay(self, replay: Replay) -> None:
        """Record what scoring an answer again gave, or why it gave nothing."""
        self._write_line("replay", {"replay": to_json(replay)})

    def note(self, name: str, text: str = "") -> None:
        """Record something that happened to the run as a whole."""
        note = JournalNote(name=name, text=text, at_unix_ns=self._clock.unix_ns())
        self._write_line("note", to_json(note))

    def closing(self, closing: Closing) -> None:
        """Record what the judge is about to be told besides the records."""
        self._write_line("closing", to_json(closing))

    def sync(self) -> None:
        """Put everything on the disk; done once a second, between waves and before a verdict."""
        with self._lock:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise storage_error(self._path, error) from None
            self._synced_ns = self._clock.monotonic_ns()

    def close(self) -> None:
        """Sync and let go of the file; closing twice does nothing."""
        with self._lock:
            if self._is_open:
                try:
                    self.sync()
                finally:
                    self._is_open = False
                    os.close(self._descriptor)

    def _write_line(self, kind: str, body: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind} | body, allow_nan=False, separators=(",", ":"))
        with self._lock:
            self._write(line.encode("ascii") + b"\n")
            if self._clock.monotonic_ns() - self._synced_ns >= FSYNC_EVERY_NS:
                self.sync()

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):  # a disk that fills up takes a part, then refuses
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            raise storage_error(self._path, error) from None


def read_journal(path: Path) -> JournalContents:
    """Read a journal as far as it can be read.

    Raises:
        RunFolderError: It can't be opened.
        NewerRunError: It was written by a newer version.
    """
    reading = _Reading()
    try:
        with path.open("rb") as file:
            for line in _lines(file):
                reading.take(line)
    except OSError as error:
        raise RunFolderError(f"can't read `{path}`: {error.strerror}") from None
    return reading.contents()


def read_header(path: Path) -> JournalHeader:
    """Read the first line of a journal and nothing else.

    Raises:
        RunFolderError: It can't be opened, or its first line is cut or damaged.
        NewerRunError: It was written by a newer version.
    """
    reading = _Reading()
    try:
        with path.open("rb") as file:
            reading.take(next(_lines(file), None))
    except OSError as error:
        raise RunFolderError(f"can't read `{path}`: {error.strerror}") from None
    header = reading.contents().header
    if header is None:
        raise RunFolderError(
            f"the first line of `{path}` is damaged, so it is not known which run this is",
            hint="put back a copy of the journal; without it, no record of this run can be trusted",
        )
    return header


def count_broken_lines(path: Path, *, is_live: bool) -> int:
    """Count the lines that are no JSON object, without building what they say.

    Args:
        path: A journal.
        is_live: Somebody may be writing the last line just now, so that a cut one does not count.

    Raises:
        RunFolderError: It can't be read.
    """
    broken = 0
    try:
        with path.open("rb") as file:
            for line in _lines(file):
                if line is None or (line.strip() and not _is_object(line)):
                    broken += line is None or line.endswith(b"\n") or not is_live
    except OSError as error:
        raise RunFolderError(f"can't read `{path}`: {error.strerror}") from None
    return broken


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _lines(file: Any) -> Iterator[bytes | None]:
    """Yield each line, and None for one that is longer than any that we write."""
    while line := file.readline(LINE_BYTES_MAX):
        if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES_MAX)
        yield None


class _Reading:
    """What was read of a journal so far."""

    def __init__(self) -> None:
        self._header: JournalHeader | None = None
        self._begun: dict[str, tuple[PlannedRequest, int]] = {}
        self._replies: dict[str, Reply] = {}
        self._twins: dict[str, PlannedRequest] = {}
        self._replays: dict[str, Replay] = {}
        self._notes: list[JournalNote] = []
        self._damaged = 0
        self._damaged_at: list[int] = []
        self._number = 0
        self._closing: Closing | None = None

    def take(self, line: bytes | None) -> None:
        """Take in one line; one that can't be used is counted."""
        self._number += 1
        if line is not None and not line.strip():
            return
        try:
            data = json.loads(line.decode("utf-8")) if line is not None else None
            if not isinstance(data, dict):
                raise CodecError("no object")
            self._take_data(data)
        except (ValueError, KeyError, RecursionError):
            self._damaged += 1
            if len(self._damaged_at) < DAMAGED_TOLD_MAX:
                self._damaged_at.append(self._number)

    def _take_data(self, data: dict[str, Any]) -> None:
        match data["kind"]:
            case "header":
                _refuse_newer(data.get("schema"))
                if self._header is not None:
                    raise CodecError("a second header")
                self._header = from_json(JournalHeader, data)
            case "begin":
                planned = from_json(PlannedRequest, data["request"])
                if planned.request_id in self._replies or type(data["wave"]) is not int:
                    raise CodecError("begun after its end")
                self._begun[planned.request_id] = (planned, data["wave"])
            case "end":
                reply = from_json(Reply, data["reply"])
                if reply.request_id not in self._begun or reply.request_id in self._replies:
                    raise CodecError("an end without its begin")
                self._replies[reply.request_id] = reply
            case "twin":
                twin = from_json(PlannedRequest, data["request"])
                self._twins[twin.request_id] = twin
            case "replay":
                replay = from_json(Replay, data["replay"])
                if replay.request_id not in self._replies:
                    raise CodecError("a replay without its end")
                self._replays[replay.request_id] = replay
            case "note":
                self._notes.append(from_json(JournalNote, data))
            case "closing":
                self._closing = from_json(Closing, data)
            case _:
                raise CodecError("an unknown kind of line")

    def contents(self) -> JournalContents:
        """Return everything that was read."""
        return JournalContents(
            header=self._header,
            records=tuple(
                with_replay(
                    record_of(planned, self._replies.get(request_id), wave=wave),
                    self._replays.get(request_id),
                )
                for request_id, (planned, wave) in self._begun.items()
            ),
            twins=tuple(self._twins.values()),
            unknown_ids=frozenset(self._begun) - frozenset(self._replies),
            notes=tuple(self._notes),
            damaged_lines=self._damaged,
            damaged_at=tuple(self._damaged_at),
            closing=self._closing,
        )


def _refuse_newer(schema: Any) -> None:
    if type(schema) is not int or schema < 1:
        raise CodecError("the header tells no schema")
    if schema > JOURNAL_SCHEMA:
        raise NewerRunError(
            f"the run was written by a newer kvaudit (journal schema {schema},"
            f" this version reads {JOURNAL_SCHEMA})",
            hint="upgrade kvaudit",
        )


def refuse_live(path: Path) -> None:
    """Raise RunFolderError while another process writes the journal, before anything is read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # reading it will tell
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _is_live(path) from None
    except OSError:
        return  # a file system without locks; taking the writer's lock will tell
    finally:
        os.close(descriptor)


def _is_live(path: Path) -> RunFolderError:
    return RunFolderError(
        f"another kvaudit is writing `{path.parent}`",
        hint="wait until it has ended, or name another folder with `--out`",
    )
