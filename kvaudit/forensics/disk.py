"""What the disk refused, in whoever's words, as one StorageError."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from kvaudit.errors import StorageError

_HINT = "free space, then go on with `--resume`; what was written before stays"
_ERRNO = re.compile(r"(?:os error|errno) (\d{1,4})")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a refused write into a StorageError that names the path.

    Only what writes or spills goes inside: the errors of DuckDB, Polars and Arrow tell a full disk
    from nothing else by their class alone.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from None
    except (pl.exceptions.ComputeError, pa.ArrowException) as error:
        raise StorageError(f"can't write `{path}`: {_words(str(error))}", hint=_HINT) from None
    except duckdb.OutOfMemoryException as error:
        words = _words(str(error))
        raise StorageError(f"can't go on in `{path}`: {words}", hint=_HINT) from None
    except (duckdb.IOException, duckdb.FatalException, duckdb.TransactionException) as error:
        raise StorageError(f"can't write `{path}`: {_words(str(error))}", hint=_HINT) from None


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return the error for a write that the disk refused."""
    return StorageError(f"can't write `{path}`: {_words(error.strerror or str(error))}", hint=_HINT)


def _words(text: str) -> str:
    """Return the system's own words for the number in a library's message, else its first line."""
    found = _ERRNO.search(text)
    if found is not None:
        return os.strerror(int(found.group(1)))
    line = text.splitlines()[0] if text else ""
    if not line or "transport error" in line:  # a Parquet footer that did not fit
        return "the disk refused the write"
    return (line.rpartition(": ")[2] if "Could not write file" in line else line)[:200]
