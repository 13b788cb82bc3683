"""Which text stands in one place only: has a gram of 24 letters, sampled 1 in 4, been seen twice?

Canonical: ASCII letters lowered, digits and bytes from 0x80 kept, all else dropped. Written anew
here and not taken from the scan, so that a fault there can't hide in the truth.
"""

import numpy as np
from numba import njit
from texts import SCRIPTS

# Bytes of a gram by script: 24 letters, 12 of the scripts whose signs are words or syllables.
_GRAM = {"latin": 24, "cjk": 36, "devanagari": 60}
_GRAM_ELSE = 48
_FACTOR, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_FOLDED = np.zeros(256, np.uint8)
for _code in range(256):
    _letter = chr(_code)
    if _code >= 0x80 or _letter.isalnum():
        _FOLDED[_code] = ord(_letter.lower()) if _code < 0x80 else _code


@njit
def _walk(data, starts, ends, gram, folded, seen, again, bits, adds):
    """Mark grams: new ones in `seen` where `adds`, those seen before in `again`; count both."""
    ring = np.zeros(gram, np.uint64)
    leaving = np.uint64(1)
    for _ in range(gram):
        leaving *= _FACTOR
    grams = repeated = 0
    for index in range(len(starts)):
        ring[:] = 0
        hashed = np.uint64(0)
        length = slot = 0
        for position in range(starts[index], ends[index]):
            byte = np.uint64(folded[data[position]])
            if byte == 0:
                continue
            hashed = hashed * _FACTOR + byte - ring[slot] * leaving
            ring[slot] = byte
            length += 1
            slot = slot + 1 if slot + 1 < gram else 0
            if length < gram:
                continue
            mixed = (hashed ^ (hashed >> np.uint64(29))) * _MIX
            if (mixed >> np.uint64(20)) & np.uint64(3) != 0:
                continue
            word = mixed >> np.uint64(70 - bits)
            mask = np.uint64(0)  # three bits of one word: 38 million grams in a gigabit err at .1 %
            for shift in (22, 28, 34):
                mask |= np.uint64(1) << ((mixed >> np.uint64(shift)) & np.uint64(63))
            grams += 1
            if adds == 2:
                repeated += (again[word] & mask) == mask
            elif seen[word] & mask == mask:
                again[word] |= mask
            elif adds == 1:
                seen[word] |= mask
    return grams, repeated


class Unique:
    """Knows of some chunks which of their grams stand elsewhere too, anywhere in the texts."""

    def __init__(self, texts, chosen: np.ndarray, compared: np.ndarray) -> None:
        """`chosen` says of each chunk whether it is known; `compared` are only held against it."""
        known = int((texts.end - texts.start)[chosen].sum())
        self._bits = min(30, max(20, known.bit_length() + 2))
        words = 1 << (self._bits - 6)
        self._seen, self._again = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
        data = np.asarray(texts.data)
        for part, adds in ((chosen, 1), (compared & ~chosen, 0)):
            for number, script in enumerate(SCRIPTS):
                held = part & (texts.script == number)
                _walk(data, texts.start[held], texts.end[held], _GRAM.get(script, _GRAM_ELSE),
                      _FOLDED, self._seen, self._again, self._bits, adds)  # fmt: skip

    def repeated(self, text: str, script: str) -> float:
        """Return the share of the text's grams that stand elsewhere too; 1 if it has no gram."""
        data = np.frombuffer(text.encode(), np.uint8)
        grams, repeated = _walk(
            data, np.zeros(1, np.int64), np.array([len(data)]), _GRAM.get(script, _GRAM_ELSE),
            _FOLDED, self._seen, self._again, self._bits, 2,
        )  # fmt: skip
        return repeated / grams if grams else 1.0
