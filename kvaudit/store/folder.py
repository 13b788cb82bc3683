"""The folder of one run: private, self-contained, never overwritten.

A run folder is 0700, its files 0600. It holds `.gitignore` (`*`), `journal.jsonl`, `run.duckdb`,
`records.parquet`, the reports, and `tmp/` for everything that DuckDB spills.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvaudit.errors import RunFolderError, StorageError

JOURNAL_NAME = "journal.jsonl"
DATABASE_NAME = "run.duckdb"
RECORDS_NAME = "records.parquet"
REVEALS_NAME = "reveals.jsonl"
MANIFEST_NAME = "manifest.json"
SCANNED_NAME = "requests.parquet"
INGEST_NAME = "ingest.json"
SPILL_NAME = "tmp"
PRIVATE_FOLDER_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run on disk.

    Attributes:
        path: The folder itself, what `--out` names.
    """

    path: Path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make a new run folder; an empty folder that is there already is taken over.

        Raises:
            RunFolderError: It holds a run or anything else, or can't be made.
        """
        refuse_used_folder(path)
        try:
            path.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
            path.chmod(PRIVATE_FOLDER_MODE)
            folder = cls(path=path)
            folder.spill_path.mkdir(mode=PRIVATE_FOLDER_MODE)
        except OSError as error:
            raise _cannot_write(path, error) from None
        folder.write(".gitignore", b"*\n")
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an existing run.

        Raises:
            RunFolderError: There is no such folder, it holds no run, or it can't be read.
        """
        try:
            names = {entry.name for entry in path.iterdir()}
        except FileNotFoundError:
            raise RunFolderError(
                f"there is no folder `{path}`", hint="give the folder that `--out` named"
            ) from None
        except NotADirectoryError:
            raise RunFolderError(
                f"`{path}` is a file, not a run folder", hint="give the folder that holds it"
            ) from None
        except OSError as error:
            raise RunFolderError(f"can't read `{path}`: {error.strerror}") from None
        if not names & {JOURNAL_NAME, DATABASE_NAME}:
            raise RunFolderError(
                f"`{path}` holds no kvaudit run",
                hint=f"a run folder has a `{JOURNAL_NAME}` or a `{DATABASE_NAME}`",
            )
        return cls(path=path)

    @property
    def journal_path(self) -> Path:
        """Where the journal lies: the run's truth while it is live."""
        return self.path / JOURNAL_NAME

    @property
    def database_path(self) -> Path:
        """Where the database lies, built from the journal."""
        return self.path / DATABASE_NAME

    @property
    def records_path(self) -> Path:
        """Where the Parquet export lies."""
        return self.path / RECORDS_NAME

    @property
    def spill_path(self) -> Path:
        """Folder for what DuckDB can't hold in memory."""
        return self.path / SPILL_NAME

    def write(self, name: str, content: bytes) -> Path:
        """Write one file whole, private, in place of an older one; never half of it.

        Raises:
            StorageError: The disk is full or refuses the write.
        """
        with self.replacing(name) as half, writing_to(self.path / name):
            descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        return self.path / name

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Lend a fresh name beside `name`; what was written there takes its place at the end.

        Raises:
            StorageError: The file can't take its place.
        """
        half = self.path / f".{name}.{os.getpid()}.part"
        try:
            yield half
            with writing_to(self.path / name):
                half.chmod(PRIVATE_FILE_MODE)
                half.replace(self.path / name)
        finally:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)

    def log_reveal(self, line: str) -> None:
        """Note that text was shown unredacted; without a note nothing is shown.

        Raises:
            StorageError: The note can't be written.
        """
        path = self.path / REVEALS_NAME
        with writing_to(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE_MODE)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    def sweep(self) -> None:
        """Remove what a killed process left half written or spilled."""
        for half in self.path.glob(".*.part*"):
            half.unlink(missing_ok=True)
        for spilled in self.spill_path.glob("*"):
            if spilled.is_dir() and not spilled.is_symlink():
                shutil.rmtree(spilled, ignore_errors=True)
            else:
                spilled.unlink(missing_ok=True)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError that names the file and the cure."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from None


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say what the disk refused, and what to do."""
    if error.errno in _DISK_FULL:
        hint = "free some space, then go on with `--resume`; what was recorded is kept"
    else:
        hint = "make the folder writable, then go on with `--resume`; what was recorded is kept"
    return StorageError(f"can't write `{path}`: {error.strerror or error}", hint=hint)


def refuse_used_folder(path: Path) -> None:
    """Raise RunFolderError unless `path` is free or an empty folder."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_write(path, error) from None
    if names & {JOURNAL_NAME, DATABASE_NAME}:
        raise RunFolderError(
            f"`{path}` holds a run already",
            hint="go on with it by `--resume`, or name another folder with `--out`",
        )
    if names:
        raise RunFolderError(
            f"`{path}` is not empty", hint="name a new or an empty folder with `--out`"
        )


def _cannot_write(path: Path, error: OSError) -> RunFolderError:
    if isinstance(error, NotADirectoryError | FileExistsError):
        return RunFolderError(
            f"`{path}` can't be a folder: a file is in its way", hint="name another with `--out`"
        )
    return RunFolderError(
        f"can't make the run folder `{path}`: {error.strerror}",
        hint="name a folder that you may write to with `--out`",
    )
