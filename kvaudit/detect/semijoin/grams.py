"""The hashes of the answers in RAM: who owns each, and what the contexts made of it.

16 bytes a slot at a load of at most `LOAD_MAX`, and a filter of 16 bits a hash that stays in
the cache while contexts are scanned.
"""

import numpy as np
from numpy.typing import NDArray

from kvaudit.detect.semijoin import scan_kernels as kernels
from kvaudit.detect.semijoin.arrays import PIECE, new_scratch, new_slots
from kvaudit.detect.semijoin.folding import FoldTables, fold_tables

LOAD_MAX = 0.6
SLOT_BYTES = 17
_SLOTS_MIN = 1 << 16
_WORDS_MIN = 1 << 10
_FILTER_BITS = 16


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
        self.slots = new_slots(_SLOTS_MIN)
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
            if room < 4 * PIECE:
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
            grown = new_slots(size * 2)
            kernels.rebuild(self.slots, grown)
        else:
            self.parts *= 2
            grown = new_slots(size)
            self.count = kernels.keep_range(self.slots, grown, self.part, self.parts)
        self.slots = grown
