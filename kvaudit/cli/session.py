"""One live run on disk: journal, database and records, begun or gone on with."""

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvaudit import __version__
from kvaudit.cli.progress import Progress
from kvaudit.clock import Clock
from kvaudit.config import AuditConfig, audit_arguments, audit_config
from kvaudit.errors import ConfigError, RunFolderError, TargetError
from kvaudit.findings import AuditRun
from kvaudit.records import RequestRecord
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.database import RecordStore
from kvaudit.store.folder import MANIFEST_NAME, RunFolder
from kvaudit.store.journal import (
    Closing,
    Journal,
    JournalContents,
    JournalHeader,
    read_journal,
    refuse_live,
)  # fmt: skip
from kvaudit.store.purge import PURGED_NOTE
from kvaudit.target import PlannedRequest, Replay, Reply, Wave

RUNS_FOLDER = Path("kvaudit-runs")
RUNS_IN_ONE_SECOND_MAX = 1_000
# What may differ when a run is resumed: how far it goes, not what it asks.
LIMITS = ("max_tokens", "max_time_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A run as an earlier process left it.

    Attributes:
        folder: Where it lies.
        header: Its first line.
        contents: What it recorded.
    """

    folder: RunFolder
    header: JournalHeader
    contents: JournalContents


class Session:
    """Journal, database and records of one live run; also the recorder that the runner calls.

    Attributes:
        folder: Where the run lies.
        header: Its first line.
        records: Every request that has ended or is lost, of this process and of earlier ones.
    """

    def __init__(
        self,
        folder: RunFolder,
        header: JournalHeader,
        clock: Clock,
        progress: Progress,
        *,
        earlier: EarlierRun | None = None,
        retries_unknown: bool = False,
    ) -> None:
        self.folder = folder
        self.header = header
        self.records: list[RequestRecord] = []
        self._progress = progress
        self._store = RecordStore(folder, clock)
        if earlier is None:
            self._journal = Journal.start(folder.journal_path, header, clock)
            return
        self._journal = Journal.resume(folder.journal_path, earlier.contents, clock)
        folder.sweep()
        (folder.path / MANIFEST_NAME).unlink(missing_ok=True)  # it tells of an earlier verdict
        resent = earlier.contents.unknown_ids if retries_unknown else frozenset()
        self.records = [
            record for record in earlier.contents.records if record.request_id not in resent
        ]
        progress.ended(len(self.records))

    def take(self, wave: Wave, send: Callable[[Wave, "Session"], Sequence[RequestRecord]]) -> None:
        """Send one wave, keep its records, and bring the database up to date.

        Raises:
            TargetError: The target took none of the wave, so that it would be planned for ever.
        """
        self._progress.wave(wave)
        records = send(wave, self)
        if not records:
            raise TargetError(f"the target took no request of wave {wave.index}")
        self.records += records
        self._journal.sync()
        self._store.refresh()

    def begin(self, planned: PlannedRequest, wave: int) -> None:
        """Record a request just before its first byte leaves."""
        self._journal.begin(planned, wave)

    def end(self, reply: Reply) -> None:
        """Record what came back."""
        self._journal.end(reply)
        self._progress.ended()

    def replay(self, replay: Replay) -> None:
        """Record what scoring an answer again gave."""
        self._journal.replay(replay)

    def twin(self, planned: PlannedRequest) -> None:
        """Record a request that is sent to no one."""
        self._journal.twin(planned)

    def stop(self, reason: str) -> None:
        """Record why the run ends before its plan."""
        self._journal.note("stopped", reason)

    def end_early(self, reason: str) -> None:
        """Record why the run needs no more of its plan."""
        self._journal.note("ended early", reason)

    def finish(self, closing: Closing, judge: Callable[[JournalContents], AuditRun]) -> None:
        """Put everything on the disk, judge what was recorded, and store the verdict."""
        self._journal.closing(closing)
        self._journal.sync()
        self._store.finish(judge(read_journal(self.folder.journal_path)))

    def close(self) -> None:
        """Let go of the journal and the screen."""
        self._progress.close()
        self._journal.close()


def with_nonce(config: AuditConfig) -> AuditConfig:
    """Give a new run at a server texts of its own: it may remember those of an earlier run.

    The reference engine starts anew with each run and remembers nothing.
    """
    if config.target == "reference" or config.nonce is not None:
        return config
    return replace(config, nonce=secrets.token_hex(8))


def new_header(config: AuditConfig, facts: ServerFacts | None, clock: Clock) -> JournalHeader:
    """Return the first line of a new run."""
    started = clock.unix_ns()
    moment = datetime.fromtimestamp(started / 1e9, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    return JournalHeader(
        run_id=f"{moment}-{_name(config)}",
        command="audit",
        version=__version__,
        started_unix_ns=started,
        config=asdict(config),
        seed=config.seed,
        repeat=shlex.join(["kvaudit", *audit_arguments(config)]),
        facts=facts,
        secret=secrets.token_hex(16),
    )


def new_folder(out: Path | None, header: JournalHeader) -> RunFolder:
    """Make the folder of a new run: `--out` itself, or one of its own under `kvaudit-runs`."""
    if out is not None:
        return RunFolder.create(out)
    for number in range(1, RUNS_IN_ONE_SECOND_MAX):
        path = RUNS_FOLDER / (header.run_id if number == 1 else f"{header.run_id}-{number}")
        if not path.exists():
            return RunFolder.create(path)
    raise RunFolderError(f"`{RUNS_FOLDER}` holds too many runs of this second")


def earlier_run(out: Path | None) -> EarlierRun:
    """Open a run to go on with it.

    Raises:
        ConfigError: There is no `--out`.
        RunFolderError: Another process writes it, or this version can't go on with it.
    """
    if out is None:
        raise ConfigError("`--resume` needs the run to go on with", hint="name it with `--out DIR`")
    folder = RunFolder.open(out)
    refuse_live(folder.journal_path)
    contents = read_journal(folder.journal_path)
    header = contents.header
    if header is None:
        raise RunFolderError(
            f"the first line of `{folder.journal_path}` is damaged, so the plan is not known",
            hint="start a new run; `kvaudit query` still reads this one",
        )
    refuse_purged(contents)
    if header.command != "audit":
        raise RunFolderError(
            f"`{out}` holds a run of `kvaudit {header.command}`", hint="name a run of `audit`"
        )
    if header.version != __version__:
        raise RunFolderError(
            f"the run was begun by kvaudit {header.version}, whose plan may be another one",
            hint=f"go on with kvaudit {header.version}, or start a new run",
        )
    return EarlierRun(folder=folder, header=header, contents=contents)


def refuse_purged(contents: JournalContents) -> None:
    """Raise RunFolderError for a run whose text is gone: the rest of it could not be judged."""
    if any(note.name == PURGED_NOTE for note in contents.notes):
        raise RunFolderError(
            "the text of this run was purged, so it can't be gone on with",
            hint="start a new run; `kvaudit report` still shows this one",
        )


def resumed_config(header: JournalHeader, flags: Mapping[str, Any]) -> AuditConfig:
    """Return the settings of an earlier run; flags may change its limits and nothing else."""
    begun = audit_config(header.config)
    asked = audit_config({**header.config, **flags})
    for name in AuditConfig.__dataclass_fields__:
        before, now = getattr(begun, name), getattr(asked, name)
        if before != now and name not in LIMITS:
            raise ConfigError(
                f"the run was begun with `{name}` = `{before}`, not `{now}`",
                hint="leave the flag out, or start a new run",
            )
    return asked


def refuse_other_target(header: JournalHeader, facts: ServerFacts) -> None:
    """Refuse to go on at a target that is not what it was."""
    if header.facts is not None and header.facts != facts:
        raise RunFolderError(
            "the target is not what it was when the run began",
            hint="start a new run; the records so far are kept",
        )


def _name(config: AuditConfig) -> str:
    is_reference = config.target == "reference"
    name = Path(config.model).name if is_reference else urlsplit(config.target).hostname or "url"
    safe = "".join(char if char.isalnum() or char in "-." else "-" for char in name)[:40]
    return "-".join(part for part in ("reference" * is_reference, safe, config.fault) if part)
