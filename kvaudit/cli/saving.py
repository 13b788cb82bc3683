"""Files that a command writes where the user says, and the note that text was revealed."""

import contextlib
import getpass
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvaudit.clock import WallClock, iso_utc
from kvaudit.errors import ConfigError, StorageError

STDOUT = Path("-")
PRIVATE_FILE_MODE = 0o600
COPY_BYTES = 1 << 20
_HINT = "name another with `--output`"


def destination(output: Path | None) -> Path | None:
    """Return the file that `--output` names; None = stdout, which `-` is too.

    Raises:
        ConfigError: It names nothing, a folder, or a place within a run folder.
    """
    if output is None or output == STDOUT:
        return None
    if not output.name or output.is_dir():
        shown = f"the folder `{output}`" if output != Path() else "no file"
        raise ConfigError(
            f"`--output` names {shown}", hint="name a file, or `-` for stdout, with `--output`"
        )
    _refuse_run_folder(output)
    return output


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Lend a name; what was written there becomes the content of `path` at the end.

    A regular file is replaced whole and private; through a symbolic link it is the file that the
    link names, and the link stays. A pipe or a device is written to and stays what it is.

    Raises:
        ConfigError: It can't be written there.
        StorageError: The disk is full or refuses the write.
    """
    _refuse_run_folder(path)
    with _refusal_told(path):
        if _is_written_through(path):
            with tempfile.TemporaryDirectory(prefix="kvaudit-") as scratch:
                half = Path(scratch) / "output"
                yield half
                _pour(half, path)
            return
    real = Path(os.path.realpath(path))
    half = real.with_name(f".{real.name}.{os.getpid()}.part")
    try:
        with _refusal_told(path, error_type=ConfigError):
            os.close(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE))
        with _refusal_told(path):
            yield half
            half.replace(real)
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


@contextmanager
def _refusal_told(
    path: Path, error_type: type[ConfigError | StorageError] = StorageError
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise error_type(f"can't write `{path}`: {error.strerror or error}", hint=_HINT) from None


def _is_written_through(path: Path) -> bool:
    """Whether `path` is no file of a disk: a rename would put one in place of a pipe or device."""
    try:
        mode = path.stat().st_mode
    except OSError:  # not there yet, or out of reach, which opening it will tell
        return False
    folder = os.path.realpath(path.parent)
    # `/dev/stdout` may be a regular file, of which only the descriptor is ours to write to.
    return not stat.S_ISREG(mode) or folder in ("/dev", "/dev/fd") or folder.startswith("/proc/")


def _pour(half: Path, path: Path) -> None:
    is_file = stat.S_ISREG(path.stat().st_mode)
    with half.open("rb") as source:
        with _refusal_told(path, error_type=ConfigError):
            # Without O_CREAT: what went away meanwhile is not replaced by a file.
            descriptor = os.open(path, os.O_WRONLY | (os.O_APPEND if is_file else 0))
        with os.fdopen(descriptor, "wb", buffering=0) as sink:
            while block := source.read(COPY_BYTES):
                rest = memoryview(block)
                while rest:
                    rest = rest[sink.write(rest) :]


def _refuse_run_folder(path: Path) -> None:
    """Raise ConfigError for a place within a run folder: what lies there is the run's evidence."""
    from kvaudit.store.folder import DATABASE_NAME, JOURNAL_NAME

    for folder in Path(os.path.realpath(path)).parents:
        if any((folder / name).is_file() for name in (JOURNAL_NAME, DATABASE_NAME)):
            raise ConfigError(
                f"`{path}` lies in the run folder `{folder}`, which holds evidence",
                hint="name a file outside of it with `--output`",
            )


def note_reveal(folder: Any, what: str, reason: str | None) -> None:
    """Note in the run who was shown its text, when and why; without a note nothing is shown."""
    line = {
        "at": iso_utc(WallClock().unix_ns()), "what": what, "user_id": os.getuid(),
        "user": _user_name(), "why": reason,
    }  # fmt: skip
    folder.log_reveal(json.dumps(line))


def refuse_lone_reason(reason: str | None, *, reveal: bool) -> None:
    """Raise ConfigError for a reason of nothing."""
    if reason is not None and not reveal:
        raise ConfigError("`--reason` is the reason of `--reveal`", hint="give both, or neither")


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
