"""Files that a command writes where the user says, and the note that text was revealed."""

import contextlib
import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvaudit.clock import WallClock, iso_utc
from kvaudit.errors import ConfigError


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Lend a name beside `path`; what was written there takes its place at the end, private.

    Raises:
        ConfigError: It can't be written there.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        os.close(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield half
        half.replace(path)
    except OSError as error:
        raise ConfigError(
            f"can't write `{path}`: {error.strerror or error}", hint="name another with `--output`"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


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
