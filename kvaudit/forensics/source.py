"""Bytes in: files, folders and standard input, decompressed with limits.

Compression is told by magic bytes, never by a name. A damaged or truncated archive gives what was
decoded before the damage; a bomb stops at its ratio.
"""

import bz2
import codecs
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from kvaudit.errors import ConfigError

BLOCK_BYTES = 1 << 20
RATIO_MAX = 200
_RATIO_FREE_BYTES = 64 << 20
FILES_MAX = 1_000_000

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BZIP2 = b"BZh"
_XZ = b"\xfd7zXZ\x00"


@dataclass(slots=True)
class Progress:
    """How far the reading of one file is.

    Attributes:
        raw_bytes: Bytes read from disk.
        decoded_bytes: Bytes after decompression.
        stopped: Why reading ended before the end of the file; None at a true end.
    """

    raw_bytes: int = 0
    decoded_bytes: int = 0
    stopped: str | None = None


def blocks(path: Path, progress: Progress) -> Iterator[bytes]:
    """Yield the decompressed bytes of one file, or of standard input for `-`.

    Raises:
        ConfigError: The file can't be opened.
    """
    if str(path) == "-":
        yield from _decoded(sys.stdin.buffer, progress)
        return
    try:
        handle = path.open("rb")
    except OSError as error:
        raise ConfigError(f"can't read `{path}`: {error.strerror}") from None
    with handle:
        yield from _decoded(handle, progress)


def _decoded(handle: BinaryIO, progress: Progress) -> Iterator[bytes]:
    raw = _raw_blocks(handle, progress)
    first = next(raw, b"")
    yield from _as_utf8(_limited(_by_magic(first, raw, progress), progress))


def _as_utf8(decoded: Iterator[bytes]) -> Iterator[bytes]:
    """Yield UTF-8 without a byte order mark; UTF-16 is what PowerShell's `>` writes."""
    first = next(decoded, b"")
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from decoded
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for block in chain([first], decoded):
        yield decoder.decode(block).encode("utf-8", "replace")


def _limited(decoded: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    """Yield the blocks, counted, until they have become too many for what was read from disk."""
    for block in decoded:
        progress.decoded_bytes += len(block)
        yield block
        ratio = progress.decoded_bytes / max(1, progress.raw_bytes)
        if progress.decoded_bytes > _RATIO_FREE_BYTES and ratio > RATIO_MAX:
            progress.stopped = f"expands more than {RATIO_MAX}:1, reading stopped"
            return


def _raw_blocks(handle: BinaryIO, progress: Progress) -> Iterator[bytes]:
    while True:
        try:
            block = handle.read(BLOCK_BYTES)
        except OSError as error:
            progress.stopped = f"read error: {error.strerror}"
            return
        if not block:
            return
        progress.raw_bytes += len(block)
        yield block


def _by_magic(first: bytes, raw: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    if first.startswith(_GZIP):
        yield from _members(first, raw, lambda: zlib.decompressobj(wbits=31), progress, "gzip")
    elif first.startswith(_BZIP2):
        yield from _members(first, raw, bz2.BZ2Decompressor, progress, "bzip2")
    elif first.startswith(_XZ):
        yield from _members(first, raw, lzma.LZMADecompressor, progress, "xz")
    elif first.startswith(_ZSTD):
        yield from _zstd(first, raw, progress)
    elif first:
        yield first
        yield from raw


def _members(
    first: bytes,
    raw: Iterator[bytes],
    make: Callable[[], object],
    progress: Progress,
    name: str,
) -> Iterator[bytes]:
    """Yield the bytes of one member after the other, in blocks of bounded size."""
    codec: object = make()
    data = first
    try:
        while True:
            if _eof(codec):
                data = _unused(codec) + data
                data = data.lstrip(b"\x00")  # gzip files on tape and in tar end in zero padding
                if not data:
                    data = next(raw, b"")
                    if not data:
                        return
                    continue
                codec = make()
            if not data and not _wants_no_input(codec):
                data = next(raw, b"")
                if not data:
                    progress.stopped = f"truncated {name}"
                    return
            block, data = _step(codec, data)
            if block:
                yield block
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        progress.stopped = f"damaged {name}"


def _eof(codec: object) -> bool:
    return bool(getattr(codec, "eof", False))


def _unused(codec: object) -> bytes:
    return bytes(getattr(codec, "unused_data", b""))


def _wants_no_input(codec: object) -> bool:
    return getattr(codec, "needs_input", True) is False


def _step(codec: object, data: bytes) -> tuple[bytes, bytes]:
    """Decompress at most one block; returns it and the input not yet taken."""
    block = codec.decompress(data, BLOCK_BYTES)  # type: ignore[attr-defined]
    tail = getattr(codec, "unconsumed_tail", b"")
    return block, bytes(tail)


def _zstd(first: bytes, raw: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(_Feed(first, raw), "zstd")
    while True:
        try:
            block = stream.read(BLOCK_BYTES)
        except OSError as error:
            progress.stopped = "truncated zstd" if "Truncated" in str(error) else "damaged zstd"
            return
        if not block:
            return
        yield bytes(block)


class _Feed:
    """A readable file over blocks, as Arrow wants it."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._held = first
        self._rest = rest
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        while not self._held or size < 0:
            block = next(self._rest, b"")
            if not block:
                break
            self._held += block
        cut = len(self._held) if size < 0 else size
        taken, self._held = self._held[:cut], self._held[cut:]
        return taken

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file to read.

    Attributes:
        path: Where it is; `-` is standard input.
        name: Its path relative to the argument that named it, for ids and messages.
        size_bytes: On disk; None for standard input.
    """

    path: Path
    name: str
    size_bytes: int | None = None


def find_files(arguments: list[str]) -> list[LogFile]:
    """Return the files behind files, folders and globs, each once, sorted by name.

    Raises:
        ConfigError: An argument names nothing, or a folder holds nothing.
    """
    found: dict[Path, LogFile] = {}
    for argument in arguments:
        for file in _of_argument(argument):
            found.setdefault(file.path, file)
            if len(found) > FILES_MAX:
                raise ConfigError(
                    f"more than {FILES_MAX} files", hint="scan one folder after the other"
                )
    return sorted(found.values(), key=lambda file: (file.name, str(file.path)))


def _of_argument(argument: str) -> list[LogFile]:
    if argument == "-":
        return [LogFile(Path("-"), "-")]
    path = Path(argument)
    if path.is_file():
        return [LogFile(path, path.name, path.stat().st_size)]
    if path.is_dir():
        files = _below(path, path)
    else:
        anchor, pattern = _split_glob(argument)
        files = [file for hit in anchor.glob(pattern) for file in _below(hit, anchor)]
    if not files:
        raise ConfigError(
            f"`{argument}` names no file", hint="give log files, folders, globs, or `-` for stdin"
        )
    return files


def _below(path: Path, root: Path) -> list[LogFile]:
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [
        LogFile(p, str(p.relative_to(root)), p.stat().st_size)
        for p in paths
        if not p.name.startswith(".")
    ]


def _split_glob(argument: str) -> tuple[Path, str]:
    parts = Path(argument).parts
    fixed = 0
    while fixed < len(parts) and not any(mark in parts[fixed] for mark in "*?["):
        fixed += 1
    return Path(*parts[:fixed]), str(Path(*parts[fixed:])) if parts[fixed:] else "."
