"""Rows on their way to disk: gathered into parts, each written whole and then named in the journal.

A part holds rows of one file that is still being read, or the rows of several small files that
were read to their ends. A folder of many small files therefore becomes few parts.
"""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from kvaudit.forensics.disk import disk_errors
from kvaudit.forensics.journal import Closing, IngestJournal
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.table import Origin, frame_of_values, values_of

PART_ROWS_MAX = 20_000
PART_CHARS_MAX = 24 << 20
CLOSINGS_MAX = 2_000
_ROW_CHARS = 512  # what a row weighs besides its texts
_ORDINALS_MAX = 1 << 16


class Batch:
    """Rows as tuples of the canonical columns' values, until there are enough for a part."""

    def __init__(self) -> None:
        self._values: list[tuple[Any, ...]] = []
        self._chars = 0

    def __len__(self) -> int:
        """Rows held."""
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the rows make a part."""
        return len(self._values) >= PART_ROWS_MAX or self._chars >= PART_CHARS_MAX

    def add(self, row: LogRow, origin: Origin, ordinal: int) -> None:
        """Take a row; it is not held itself, nor is the raw record behind it."""
        self._values.append(values_of(row, origin, ordinal))
        self._chars += _weight(row)

    def take(self, other: "Batch") -> None:
        """Take all rows of another batch, which is empty after that."""
        self._values += other._values
        self._chars += other._chars
        other._values, other._chars = [], 0

    def emptied(self) -> pl.DataFrame:
        """Return the rows as a frame and forget them."""
        frame = frame_of_values(self._values)
        self._values, self._chars = [], 0
        return frame


def _weight(row: LogRow) -> int:
    sides = (row.input, row.output)
    texts = sum(len(p.text) for side in sides for m in side.messages for p in m.parts)
    return _ROW_CHARS + texts + len(row.context or "")


class Ordinals:
    """The number of each row among those of its record, for its id.

    Rows of one record come close together; what lies 65,536 records back is forgotten.
    """

    def __init__(self) -> None:
        self._next: OrderedDict[int, int] = OrderedDict()

    def of(self, source_row: int) -> int:
        """Return 0 for the record's first row, 1 for its second."""
        ordinal = self._next.get(source_row, 0)
        self._next[source_row] = ordinal + 1
        if len(self._next) > _ORDINALS_MAX:
            self._next.popitem(last=False)
        return ordinal


class Parts:
    """Writes the parts of all files, and gathers the small files among them."""

    def __init__(self, journal: IngestJournal, folder: Path) -> None:
        self._journal, self._folder = journal, folder
        self._held = Batch()
        self._closings: list[Closing] = []

    def write(
        self, number: int, frame: pl.DataFrame, last_row: int, damages: Mapping[str, int]
    ) -> None:
        """Write rows of one file that goes on after them.

        Raises:
            StorageError: The disk refused.
        """
        name = f"{number:06}-{len(self._journal.state(number).parts):06}.parquet"
        write_part(frame, self._folder / name)
        self._journal.add_part(number, name, len(frame), last_row, damages)

    def close(self, number: int, batch: Batch, last_row: int, summary: Mapping[str, Any]) -> None:
        """Take the last rows of a file that was read to its end, and its closing line."""
        if self._journal.state(number).parts:
            if len(batch):
                self.write(number, batch.emptied(), last_row, summary["damages"])
            self._journal.finish(number, summary)
            return
        self._closings.append(Closing(number, len(batch), summary))
        self._held.take(batch)
        if self._held.is_full or len(self._closings) >= CLOSINGS_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what small files gave, and close them in the journal."""
        if not self._closings:
            return
        name = None
        if len(self._held):
            name = f"{self._closings[0].number:06}-whole.parquet"
            write_part(self._held.emptied(), self._folder / name)
        self._journal.finish_together(name, self._closings)
        self._closings = []


def write_part(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame beside its name and rename it into place.

    Raises:
        StorageError: The disk refused.
    """
    temporary = path.with_suffix(".tmp")
    with disk_errors(path):
        frame.write_parquet(temporary, compression="zstd", compression_level=1)
        temporary.replace(path)
