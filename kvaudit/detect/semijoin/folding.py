"""Canonical text: letters and digits, folded; everything else is dropped.

A character becomes its compatibility decomposition (NFKD), case folded, without what is neither
letter nor digit: white space, punctuation, markdown and combining marks. Dropping the marks makes
the fold look at one character at a time, so that it is a table: texts that are equal under NFKC
and case folding are equal here, and so are a few more (`é` and `e`). Hangul syllables stay whole.
The barrier U+0000 stays as a zero byte.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TABLE_SIZE = 0x30000
IDEOGRAPHS_STOP = 0xE0000  # between the two stand rare ideographs, which fold to themselves
DROPPED, KEPT, FIRST_FOLD = 0, 1, 2
FOLD_BYTES_MAX = 32  # longer folds (a few Arabic ligatures) are cut; see the scratch in kernels
_HANGUL = range(0xAC00, 0xD7A4)
_SURROGATES = range(0xD800, 0xE000)


class FoldTables(NamedTuple):
    """The fold as arrays.

    Attributes:
        ascii: Folded byte of each ASCII byte, (128,) uint8; 0 is dropped, but for the barrier.
        keeps: 1 where the ASCII byte stays, (128,) uint8.
        codes: DROPPED, KEPT or index into `starts`, by code point, (TABLE_SIZE,) uint16.
        starts: Where each fold begins in `pool`, one more than folds, int32.
        pool: Folds as UTF-8, one after another, uint8.
    """

    ascii: NDArray[np.uint8]
    keeps: NDArray[np.uint8]
    codes: NDArray[np.uint16]
    starts: NDArray[np.int32]
    pool: NDArray[np.uint8]


def fold_character(char: str) -> str:
    """Return what canonical text keeps of one character."""
    if char == "\x00" or ord(char) in _HANGUL:
        return char
    if ord(char) >= TABLE_SIZE:
        return char if ord(char) < IDEOGRAPHS_STOP else ""
    folded = unicodedata.normalize("NFKD", char).casefold()
    folded = unicodedata.normalize("NFKD", folded).casefold()
    return "".join(part for part in folded if part.isalnum())


@cache
def fold_tables() -> FoldTables:
    """Return the tables, made once from Python's own Unicode data."""
    codes = np.zeros(TABLE_SIZE, np.uint16)
    folds: dict[bytes, int] = {}
    starts = [0] * (FIRST_FOLD + 1)
    pool = bytearray()
    for point in range(128, TABLE_SIZE):
        if point in _SURROGATES:
            continue
        char = chr(point)
        folded = fold_character(char)
        if not folded:
            continue
        if folded == char:
            codes[point] = KEPT
            continue
        whole = folded.encode()[:FOLD_BYTES_MAX]
        if whole not in folds:
            folds[whole] = len(starts) - 1
            pool += whole
            starts.append(len(pool))
        codes[point] = folds[whole]
    plain = [fold_character(chr(point)) for point in range(128)]
    return FoldTables(
        ascii=np.array([ord(char) if char else 0 for char in plain], np.uint8),
        keeps=np.array([len(char) for char in plain], np.uint8),
        codes=codes,
        starts=np.array(starts, np.int32),
        pool=np.frombuffer(bytes(pool), np.uint8),
    )
