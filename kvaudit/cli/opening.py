"""Opening a run for a command that reads it, with what its reader must know first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvaudit.cli.terminal import escape, say


@contextmanager
def opened(folder: Any, *, reveal: bool = False) -> Iterator[Any]:
    """Open a run and say on stderr what is lost of it, and whether it has a verdict.

    It is said under `--quiet` too: nothing may read as whole that is not.

    Args:
        folder: A RunFolder.
        reveal: Show text whole in the views.
    """
    from kvaudit.store.reading import open_run

    with open_run(folder, reveal=reveal) as reader:
        for note in reader.notes():
            say(f"warning: {escape(note)}")
        yield reader
