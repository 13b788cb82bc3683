"""Real text for traffic: documentation and source code that any Debian machine can install.

`build` reads what lies in a folder of unpacked packages and on this machine into one file of
chunks; `Texts` maps it. Nothing is downloaded here but by `fetch`, with apt and by package name.
"""

import gzip
import hashlib
import html
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from gettext import GNUTranslations
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Technical prose, argument, dictionary, manuals; six more scripts; code.
PACKAGES = (
    "anarchism", "apache2-doc", "debian-handbook", "dict-gcide", "fortunes", "fortunes-ru",
    "git-doc", "linux-doc-6.1", "manpages-dev", "openjdk-17-doc", "perl-doc", "postgresql-doc-15",
    "python3.11-doc", "rust-doc", "sqlite3-doc",
    "libreoffice-help-el", "libreoffice-help-en-us", "libreoffice-help-hi", "libreoffice-help-ja",
    "libreoffice-help-ru", "libreoffice-help-zh-cn", "manpages-ja", "manpages-ru", "manpages-zh",
    "linux-source-6.1",
)  # fmt: skip
SCRIPTS = ("latin", "cyrillic", "greek", "cjk", "devanagari", "arabic")
# Characters that make up one token, about: what common tokenizers need in each script.
CHARACTERS_PER_TOKEN = {
    "latin": 5.0, "cyrillic": 4.0, "greek": 3.0, "cjk": 1.5, "devanagari": 3.0, "arabic": 3.0,
}  # fmt: skip
PROSE, CODE = 0, 1
CHUNK_BYTES = 2_000
_CLASSES = {
    "cyrillic": re.compile("[\u0400-\u04ff]"), "greek": re.compile("[\u0370-\u03ff]"),
    "cjk": re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"),
    "devanagari": re.compile("[\u0900-\u097f]"), "arabic": re.compile("[\u0600-\u06ff]"),
}  # fmt: skip
_ASCII_LETTERS = re.compile("[A-Za-z\u00c0-\u024f]")
_LOCALES = ("ru", "uk", "bg", "el", "zh_CN", "zh_TW", "ja", "ko", "hi", "mr", "ar", "fa")
_PROSE_ENDINGS = {".html", ".htm", ".txt", ".md", ".rst", ".pod", ".xhp", ".gz", ".1", ".mo", ""}
_CODE_ENDINGS = {".py", ".c", ".h", ".rs", ".pm", ".S", ".dts", ".dtsi", ".js"}
_FILE_BYTES_MAX = 6 << 20
_SMALL_ROOT_CHARACTERS = 25_000_000


class Document(NamedTuple):
    """One text as it lies on the machine, mark-up taken off."""

    kind: int
    text: str


def fetch(folder: Path) -> None:
    """Download the packages with apt and unpack them: no rights needed, nothing installed."""
    debs, unpacked = folder / "debs", folder / "unpacked"
    debs.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        target = unpacked / package
        if target.exists():
            continue
        if not list(debs.glob(f"{package}_*.deb")):
            print(f"fetching {package}", file=sys.stderr, flush=True)
            subprocess.run(["apt-get", "download", "-qq", package], cwd=debs, check=True,
                           stderr=subprocess.DEVNULL)  # fmt: skip
        found = next(iter(debs.glob(f"{package}_*.deb")))
        staged = target.with_name(f".{package}")
        subprocess.run(["dpkg-deb", "-x", str(found), str(staged)], check=True)
        staged.rename(target)


def documents(folder: Path, *, small: bool) -> Iterator[Document]:
    """Yield the texts: of this machine alone for `small`, else of the unpacked packages too."""
    unpacked = folder / "unpacked"
    roots = sorted(unpacked.iterdir()) if unpacked.is_dir() and not small else []
    if small:
        roots = [Path("/usr/share/doc"), Path(sysconfig.get_path("stdlib")),
                 Path(np.__file__).parents[1], Path("/usr/share/locale"), Path("/usr/share/man"),
                 Path("/usr/share/perl")]  # fmt: skip
    for root in roots:
        left = _SMALL_ROOT_CHARACTERS if small else 1 << 40
        for path in _files(root) if small else sorted(_files(root)):
            if left < 0:
                break
            if path.name.startswith("linux-source") and path.suffix == ".xz":
                yield from _archived(path)
            elif (found := _document(path)) is not None:
                left -= len(found.text)
                yield found


def _files(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "test_data"))
        yield from (Path(place) / name for name in sorted(names))


def _archived(path: Path) -> Iterator[Document]:
    with tarfile.open(path) as archive:
        for member in archive:
            if Path(member.name).suffix in _CODE_ENDINGS and member.size < _FILE_BYTES_MAX:
                file = archive.extractfile(member)
                if file is not None:
                    yield Document(CODE, file.read().decode("utf-8", "replace"))


def _document(path: Path) -> Document | None:
    ending = path.suffix if path.suffix in _CODE_ENDINGS | _PROSE_ENDINGS else None
    if ending is None and not path.suffix[1:].isdigit():
        return None
    if ending == ".mo" and path.parts[-3] not in _LOCALES:
        return None
    try:
        if path.is_symlink() or not 500 < path.stat().st_size < _FILE_BYTES_MAX * 4:
            return None
        data = path.read_bytes()
        if ending == ".mo":
            return Document(PROSE, _catalogue(data))
        if ending == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, ValueError):
        return None
    if b"\0" in data[:4096]:
        return None
    text = data.decode("utf-8", "replace")
    if ending in _CODE_ENDINGS:
        return Document(CODE, text)
    if "<html" in text[:2000].lower():
        text = _plain(text)
    elif text.startswith((".", "'\\\"")) or "\n.SH" in text[:4000]:
        text = _manual(text)
    return Document(PROSE, text)


def _catalogue(data: bytes) -> str:
    """Return the translations of a gettext catalogue, one a line."""
    catalogue = GNUTranslations(io.BytesIO(data))._catalog
    return "\n".join(text.replace("\n", " ") for text in catalogue.values() if len(text) > 40)


_DROPPED = re.compile(r"(?is)<(script|style|head|nav|svg)\b.*?</\1>|<!--.*?-->")
_BLOCKS = re.compile(r"(?i)</?(?:p|div|li|h[1-6]|tr|pre|br|dt|dd|table|section|title)\b[^>]*>")
_TAGS = re.compile(r"<[^>]+>")
_SPACES = re.compile(r"[ \t\r\f\v]*\n\s*")


def _plain(text: str) -> str:
    text = _TAGS.sub("", _BLOCKS.sub("\n", _DROPPED.sub(" ", text)))
    return _SPACES.sub("\n", html.unescape(text))


_ROFF = re.compile(r"\\f[A-Z(]|\\&|\\\||\\-")


def _manual(text: str) -> str:
    lines = (line for line in text.split("\n") if not line.startswith((".\\", "'", ".so")))
    plain = (re.sub(r"^\.[A-Za-z]{1,2}\s?", "", line) for line in lines)
    return _ROFF.sub(lambda found: "-" if found[0] == "\\-" else "", "\n".join(plain))


def script_of(text: str) -> str:
    """Return the script that most letters are of; `latin` where no other has 40 in 100."""
    if text.isascii():
        return "latin"
    latin = len(_ASCII_LETTERS.findall(text))
    counts = {name: len(found.findall(text)) for name, found in _CLASSES.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > 0.66 * latin else "latin"


def build(folder: Path, *, small: bool) -> Path:
    """Write the chunks to `texts.bin` and their table to `texts.npz`; returns the table's path."""
    name = "texts-small" if small else "texts"
    table = folder / f"{name}.npz"
    if table.exists():
        return table
    folder.mkdir(parents=True, exist_ok=True)
    starts, ends, owners, kinds, scripts = [], [], [], [], []
    seen_lines: set[bytes] = set()
    seen_files: set[bytes] = set()
    position = owner = 0
    with (folder / f"{name}.bin").open("wb") as out:
        for document in documents(folder, small=small):
            digest = hashlib.blake2b(document.text.encode("utf-8", "replace"), digest_size=12)
            if digest.digest() in seen_files:
                continue
            seen_files.add(digest.digest())
            text = document.text if document.kind == CODE else _new_lines(document.text, seen_lines)
            for data in _chunks(text):
                out.write(data)
                starts.append(position)
                position += len(data)
                ends.append(position)
                owners.append(owner)
                kinds.append(document.kind)
                is_code = document.kind == CODE
                script = "latin" if is_code else script_of(data.decode("utf-8", "replace"))
                scripts.append(SCRIPTS.index(script))
            owner += 1
    np.savez(table.with_suffix(".tmp.npz"), start=starts, end=ends, document=owners,
             kind=np.array(kinds, np.uint8), script=np.array(scripts, np.uint8))  # fmt: skip
    table.with_suffix(".tmp.npz").rename(table)
    return table


def _new_lines(text: str, seen: set[bytes]) -> str:
    """Drop the longer lines that another document had: menus, licences, footers."""
    kept = []
    for line in text.split("\n"):
        bare = line.strip()
        if len(bare) > 30:
            key = hashlib.blake2b(bare.encode("utf-8", "replace"), digest_size=8).digest()
            if key in seen:
                continue
            seen.add(key)
        if bare and any(letter.isalpha() for letter in bare[:200]):
            kept.append(bare)
    return "\n".join(kept)


def _chunks(text: str) -> Iterator[bytes]:
    """Cut at line ends into about `CHUNK_BYTES`; a short end is left out."""
    data = text.replace("\0", "").encode("utf-8", "replace")
    start = 0
    while len(data) - start > 300:
        end = data.find(b"\n", start + CHUNK_BYTES) + 1 or len(data)
        if end - start > 3 * CHUNK_BYTES:  # a very long line: at a blank, or between characters
            end = data.rfind(b" ", start + 1, start + 2 * CHUNK_BYTES) + 1
            end = end or start + 2 * CHUNK_BYTES
            while data[end] & 0xC0 == 0x80:
                end -= 1
        yield data[start:end]
        start = end


class Texts:
    """The chunks of all documents: rows of a table, bytes of one mapped file."""

    def __init__(self, table: Path) -> None:
        held = np.load(table)
        self.start, self.end = held["start"], held["end"]
        self.document, self.kind, self.script = held["document"], held["kind"], held["script"]
        self.data = np.memmap(table.with_suffix(".bin"), np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self.start)

    def text(self, first: int, last: int | None = None) -> str:
        """Return the text of chunk `first`, or of chunks `first` to before `last`."""
        end = self.end[first if last is None else last - 1]
        return self.data[self.start[first] : end].tobytes().decode("utf-8", "replace")

    def digest(self) -> str:
        """Return what tells two builds apart: the texts differ from machine to machine."""
        found = hashlib.blake2b(self.end.tobytes(), digest_size=4)
        found.update(self.data[:: max(1, len(self.data) // 100_000)].tobytes())
        return found.hexdigest()
