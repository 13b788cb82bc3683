"""The hashes of the answers in RAM: who owns each, and what the contexts made of it.

16 bytes a slot at a load of at most `LOAD_MAX`, and a filter of 16 bits a hash that stays in
the cache while contexts are scanned.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvaudit.detect.semijoin import kernels
from kvaudit.detect.semijoin.folding import FoldTables, fold_tables

LOAD_MAX = 0.6
SLOT_BYTES = 17
_SLOTS_MIN = 1 << 16
_WORDS_MIN = 1 << 10
_FILTER_BITS = 16


class Slots(NamedTuple):
    """Open addressing: key, organisation of the owner, flags; same length, a power of two."""

    keys: NDArray[np.uint64]
    owners: NDArray[np.int32]
    flags: NDArray[np.uint8]


class Scratch(NamedTuple):
    """Arrays of one piece: canonical bytes, their raw offsets, sampled hashes and places."""

    buffer: NDArray[np.uint8]
    raw: NDArray[np.uint32]
    hashes: NDArray[np.uint64]
    places: NDArray[np.int64]


def new_scratch() -> Scratch:
    """Return empty arrays of a piece."""
    size = kernels.PIECE
    return Scratch(
        np.zeros(size, np.uint8), np.zeros(size, np.uint32),
        np.zeros(size, np.uint64), np.zeros(size, np.int64),
    )  # fmt: skip


class AnswerGrams:
    """The table of one range of hashes.

    Invariant: `count` keys are set, at most `LOAD_MAX` of the slots.

    Args:
        part: Which range.
        parts: Of how many; doubled when the table outgrows its memory.
        bytes_max: Bound on the table while it grows.
    """

    def __init__(self, *, part: int, parts: int, bytes_max: int) -> None:
        self.part = part
        self.parts = parts
        self.count = 0
        self.slots = _empty(_SLOTS_MIN)
        self._slots_max = max(_SLOTS_MIN, 1 << (bytes_max // SLOT_BYTES).bit_length() - 1)
        self._tables: FoldTables = fold_tables()
        self._scratch = new_scratch()

    def add(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], owners: NDArray[np.int32]
    ) -> None:
        """Enter the answers of a batch."""
        row = 0
        while row < offsets.size - 1:
            room = int(self.slots.keys.size * LOAD_MAX) - self.count
            if room < 4 * kernels.PIECE:
                self._grow()
                continue
            row, added = kernels.add_answers(
                data, offsets, row, owners, self._tables, self._scratch, self.part, self.parts,
                self.slots, room,
            )  # fmt: skip
            self.count += added

    def mark_public(self, hashes: NDArray[np.uint64]) -> None:
        """Flag what public text holds."""
        if hashes.size:
            kernels.mark_public(self.slots.keys, self.slots.flags, hashes)

    def filter_words(self) -> NDArray[np.uint64]:
        """Return the bitmap filter over all hashes."""
        bits = max(self.count * _FILTER_BITS, _WORDS_MIN * 64)
        words = np.zeros(1 << ((bits // 64) - 1).bit_length(), np.uint64)
        kernels.fill_filter(self.slots.keys, words)
        return words

    def check_integrity(self) -> None:
        """Assert that the count is that of the keys."""
        assert np.count_nonzero(self.slots.keys) == self.count, "a hash is lost"
        assert self.count <= self.slots.keys.size * LOAD_MAX, "the table is too full"

    def _grow(self) -> None:
        size = self.slots.keys.size
        if size < self._slots_max or self.part:
            grown = _empty(size * 2)
            kernels.rebuild(self.slots, grown)
        else:
            self.parts *= 2
            grown = _empty(size)
            self.count = kernels.keep_range(self.slots, grown, self.part, self.parts)
        self.slots = grown


def _empty(size: int) -> Slots:
    return Slots(np.zeros(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.uint8))
