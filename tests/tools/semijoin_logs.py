"""Small logs for the semi-join's tests, and what it does, slowly and in plain Python."""

import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import polars as pl

from kvaudit.detect.semijoin.texts import SCHEMA, TextRow

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """A TextSource over rows in memory, `size` rows a batch."""

    rows: tuple[TextRow, ...]
    size: int = 3

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        for first in range(0, len(self.rows), self.size):
            part = [asdict(row) for row in self.rows[first : first + self.size]]
            yield pl.DataFrame(part, schema=SCHEMA).select(columns)

    def fetch(self, rows: Sequence[int], column: str) -> Mapping[int, str]:
        assert list(rows) == sorted(rows), "rows ascend"
        by_row = {row.row: row for row in self.rows}
        return {row: getattr(by_row[row], column) for row in rows}


def request(
    organisation: int, at: int, context: str, answer: str, *, seconds: int = 5, **more: int | None
) -> TextRow:
    """One request that began `at` seconds after the log did; its row is given by `log`."""
    row = TextRow(
        row=0, organisation=organisation, tenant=organisation, conversation=organisation,
        start_us=at * SECOND, end_us=(at + seconds) * SECOND, replica=None, context=context,
        answer=answer,
    )  # fmt: skip
    return replace(row, **more)  # type: ignore[arg-type]


def log(*requests: TextRow, size: int = 3) -> MemoryLog:
    """A log sorted as the canonical table is; rows have gaps, as they may."""
    ordered = sorted(
        requests,
        key=lambda found: (found.tenant, found.conversation or 0, found.start_us or 0),
    )
    return MemoryLog(
        tuple(replace(found, row=3 * at + 1) for at, found in enumerate(ordered)), size
    )


def prose(rng: random.Random, words: int) -> str:
    """Invented words: nothing in them stands anywhere else by chance."""
    return " ".join(
        "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9)))
        for _ in range(words)
    )


def slow_fold(text: str) -> list[tuple[int, int]]:
    """Canonical bytes of a text, each with the raw offset of its character; 0 is a barrier."""
    out, raw = [], 0
    for char in text:
        folded = "" if ord(char) >= 0xE0000 else char
        if char != "\0" and not "가" <= char <= "힣" and ord(char) < 0x30000:
            for _ in range(2):
                folded = unicodedata.normalize("NFKD", folded).casefold()
            folded = "".join(part for part in folded if part.isalnum())
        out += [(byte, raw) for byte in folded.encode()[:32]]
        raw += len(char.encode())
    return out


def slow_grams(text: str) -> dict[bytes, list[int]]:
    """Every gram of a text, sampled or not, and the raw offsets where it begins."""
    folded = slow_fold(text)
    whole = bytes(byte for byte, _ in folded)
    found: dict[bytes, list[int]] = {}
    for at, (first, raw) in enumerate(folded):
        length = slow_length(first)
        gram = whole[at : at + length]
        if length and len(gram) == length and 0 not in gram:
            found.setdefault(gram, []).append(raw)
    return found


def slow_length(first: int) -> int:
    """Bytes of a gram with this first byte; 0 where no character begins."""
    for below, length in ((0x80, 16), (0xC0, 0), (0xE0, 20), (0xE2, 24)):
        if first < below:
            return length
    return 12
