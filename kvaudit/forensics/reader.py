"""The reader contract: what a format is, what it is given, what it gives back.

A reader is a generator over records. It never opens a file, never decompresses and never decodes
UTF-8: the framework does, with limits, and hands it one record after the other. A reader must not
raise on bad data; it says `context.damage(reason)` and goes on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvaudit.forensics.row import Layer, LogRow


class Shape(StrEnum):
    """How a file falls into records."""

    OBJECTS = "objects"  # JSON lines, a JSON array, an envelope, pretty-printed documents
    LINES = "lines"  # text, one line each, line end stripped


@dataclass(slots=True)
class RawRecord:
    """One record as the framework cut it.

    Attributes:
        row: 1-based number in the file.
        offset: Byte offset in the decompressed stream.
        data: The JSON object, for `Shape.OBJECTS`; empty for lines.
        line: The text, for `Shape.LINES`; empty for objects.
    """

    row: int
    offset: int
    data: dict[str, Any] = field(default_factory=dict)
    line: str = ""


@dataclass(slots=True)
class ReadContext:
    """What a reader may know besides its records.

    Attributes:
        source_file: Path relative to the input root, for ids and messages only.
        modified_us: The file's modification time, microseconds since 1970; None for stdin.
        year: Year for logs that lack one; None = guess from `modified_us`.
        server_start_us: Start of a server whose log counts from it, as far as a reader can tell.
        damages: Records lost, by reason.
        notes: What the user should know, each once.
    """

    source_file: str = "-"
    modified_us: int | None = None
    year: int | None = None
    server_start_us: int | None = None
    damages: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    def damage(self, reason: str, count: int = 1) -> None:
        """Count records that could not be read; the reason is short and holds no log text."""
        self.damages[reason] += count

    def note(self, text: str) -> None:
        """Say something once."""
        self.notes[text] = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The first records of a file, for sniffing.

    Attributes:
        objects: JSON objects, envelopes already opened; empty if the file holds none.
        lines: Text lines; empty for a file of one JSON document.
    """

    objects: tuple[Mapping[str, Any], ...] = ()
    lines: tuple[str, ...] = ()

    def share(self, test: Callable[[Mapping[str, Any]], bool]) -> float:
        """Return the share of objects that pass the test; 0.0 without objects."""
        if not self.objects:
            return 0.0
        return sum(1 for item in self.objects if test(item)) / len(self.objects)


Read = Callable[[Iterable[RawRecord], ReadContext], Iterator[LogRow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One log format: a line in `readers.FORMATS`.

    Attributes:
        name: What `--format` takes.
        title: For tables and docs.
        shape: How its files fall into records.
        layer: Where such a log is written.
        sniff: Score from 0.0 (no) to 1.0 (certain); the highest score wins, below .3 nobody does.
        read: The reader.
        keys: Top-level keys of a typical record, to name the nearest formats of an unknown file.
        is_stateful: Rows depend on more than one record, so that a resume starts the file anew.
    """

    name: str
    title: str
    shape: Shape
    layer: Layer
    sniff: Callable[[Sample], float]
    read: Read
    keys: tuple[str, ...] = ()
    is_stateful: bool = False
