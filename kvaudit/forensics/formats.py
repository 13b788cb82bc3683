"""Which format a file has: told by content, never by name."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvaudit.errors import ConfigError, UnknownNameError
from kvaudit.forensics.framing import bare_line, lines, object_records, text_records
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.source import Progress, blocks

SNIFF_BYTES = 2 << 20
_OBJECTS_MAX = 200
_LINES_MAX = 5_000
SCORE_MIN = 0.3
_NEAREST_MAX = 3


def sample_of(head: bytes) -> Sample:
    """Return the first objects and lines of decompressed bytes."""
    quiet = ReadContext()
    cut = head.rfind(b"\n") + 1 if len(head) >= SNIFF_BYTES else len(head)
    objects = tuple(
        record.data
        for record in islice(object_records([head[: cut or len(head)]], quiet), _OBJECTS_MAX)
    )
    texts = tuple(
        bare_line(line.data.decode("utf-8", "replace"))
        for line in islice(lines([head[:cut]]), _LINES_MAX)
        if line.data is not None
    )
    return Sample(objects, texts)


def head_of(source: Iterable[bytes], size: int = SNIFF_BYTES) -> bytes:
    """Return the first bytes of a stream."""
    made = bytearray()
    for block in source:
        made += block
        if len(made) >= size:
            break
    return bytes(made[:size])


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a file seems to be.

    Attributes:
        format: The best format; None when no score reaches the minimum.
        score: Its score.
        nearest: For an unknown file, the formats that share most keys.
        keys: Its first record's keys.
    """

    format: Format | None
    score: float
    nearest: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def sniff(sample: Sample) -> Sniffed:
    """Return the format with the highest score."""
    scores = [(found.sniff(sample), found) for found in FORMATS.values()]
    score, best = max(scores, key=lambda item: item[0])
    if score >= SCORE_MIN:
        return Sniffed(best, score)
    keys = tuple(str(key) for key in (sample.objects[0] if sample.objects else {}))
    shared = sorted(
        ((len(set(keys) & set(f.keys)), f.name) for f in FORMATS.values()), reverse=True
    )
    nearest = tuple(name for count, name in shared[:_NEAREST_MAX] if count)
    return Sniffed(None, score, nearest, keys)


def format_named(name: str) -> Format:
    """Return a format by name; raises UnknownNameError with the nearest."""
    if name not in FORMATS:
        raise UnknownNameError("log format", name, FORMATS)
    return FORMATS[name]


def records_of(shape: Shape, source: Iterable[bytes], context: ReadContext) -> Iterator[RawRecord]:
    """Cut a stream into records of the format's shape."""
    if shape is Shape.OBJECTS:
        return object_records(source, context)
    return text_records(source, context)


def read_file(path: Path, format_name: str = "auto") -> tuple[list[LogRow], ReadContext]:
    """Read one small file whole: for tests and for trying out a new reader.

    Raises:
        ConfigError: Nobody knows the format.
    """
    context = ReadContext(path.name, int(path.stat().st_mtime * 1e6))
    if format_name == "auto":
        found = sniff(sample_of(head_of(blocks(path, Progress()))))
        if found.format is None:
            raise ConfigError(f"`{path}` has no format that is known")
        chosen = found.format
    else:
        chosen = format_named(format_name)
    records = records_of(chosen.shape, blocks(path, Progress()), context)
    return list(chosen.read(records, context)), context
