"""The compiled inner loops; each has a slow twin in the tests.

Letters: `data` is UTF-8 of a whole batch, uint8; a place in it is a raw offset. `buffer` holds
canonical bytes of one piece of one text, `raw` the raw offset of the character that each of them
came from. A gram begins on a character's first byte; its length in bytes and the share of grams
that is sampled depend on that byte: ASCII 16 and 1/4, two-byte letters 20 and 1/2, other alphabets
24 and 1/2, ideographs, kana and Hangul 12 and 1/2. Sampling is by the hash itself (FracMinHash),
so that the same text is sampled the same everywhere.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kvaudit.detect.semijoin.arrays import Scratch
from kvaudit.detect.semijoin.folding import IDEOGRAPHS_STOP, FoldTables

F = TypeVar("F", bound=Callable[..., Any])
Number = Any  # an int outside, a machine word inside
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Ranks = NDArray[np.uint32]  # and raw offsets within a batch
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Flags = NDArray[np.bool_]

GRAM_MAX = 24
FOLD_ROOM = 40  # more than one character ever folds to

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_K3 = np.uint64(0xD6E8FEB86659FD93)
_U29, _U32 = np.uint64(29), np.uint64(32)
_QUARTER, _HALF = np.uint64(1 << 62), np.uint64(1 << 63)
_EMPTY = np.uint64(0)


def compiled(function: F) -> F:
    """Compile on first use; keep the machine code where numba finds a writable folder."""
    try:
        return _compiler(cache=True)(function)
    except RuntimeError:  # neither beside this file nor in the user's cache folder
        return _compiler(cache=False)(function)


def _compiler(*, cache: bool) -> Callable[[F], F]:
    compiler: Any = njit
    made: Callable[[F], F] = compiler(cache=cache, no_cfunc_wrapper=True)
    return made


def _word(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001 - numba's way to call it
    """Return the eight bytes from `index` on as one little-endian word, without alignment."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, values[0])
        place = builder.gep(view.data, [values[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.intp), code


load64: Any = intrinsic(_word)


@compiled
def hash_of(a: Number, b: Number) -> Number:
    """Mix two words; zero, which marks an empty slot, is never returned."""
    b *= _K2
    x = (a * _K1) ^ (b >> _U32) ^ (b << _U32)
    x ^= x >> _U29
    x *= _K3
    x ^= x >> _U32
    return x | np.uint64(x == _EMPTY)


def gram_length_of(first: Number) -> int:
    """Return the length in bytes of a gram with this first byte; 0 inside a character."""
    if first < 0x80:
        return 16
    if first < 0xC0:
        return 0
    if first < 0xE0:
        return 20
    return 24 if first < 0xE2 else 12


GRAM_LENGTHS = np.array([gram_length_of(first) for first in range(256)], np.int64)
gram_length = compiled(gram_length_of)


@compiled
def fold_piece(
    data: Bytes,
    at: Number,
    stop: Number,
    tables: FoldTables,
    buffer: Bytes,
    raw: Ranks,
    size: Number,
) -> tuple[Number, Number, Number]:
    """Append canonical bytes of data[at:stop] until the buffer is full.

    Returns the raw offset behind what was folded, the buffer's new size, and whether any of it
    was not ASCII.
    """
    plain, keeps, codes, starts, pool = tables
    full = buffer.size - FOLD_ROOM
    is_wide = False
    while at < stop and size < full:
        byte = data[at]
        if byte < 0x80:
            buffer[size] = plain[byte]
            raw[size] = at
            size += np.int64(keeps[byte])
            at += 1
            continue
        length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        if byte < 0xC0 or at + length > stop:
            at += 1  # never in valid UTF-8
            continue
        point = np.int64(byte) & (0x7F >> length)
        for more in range(1, length):
            point = (point << 6) | (np.int64(data[at + more]) & 0x3F)
        code = np.int64(codes[point]) if point < codes.size else np.int64(point < IDEOGRAPHS_STOP)
        if code == 1:
            is_wide = True
            for more in range(length):
                buffer[size] = data[at + more]
                raw[size] = at
                size += 1
        elif code > 1:
            for place in range(starts[code], starts[code + 1]):
                buffer[size] = pool[place]
                raw[size] = at
                is_wide |= pool[place] >= 0x80
                size += 1
        at += length
    return at, size, is_wide


@compiled
def fold_texts(
    data: Bytes,
    offsets: Ints,
    first: Number,
    tables: FoldTables,
    buffer: Bytes,
    raw: Ranks,
    ends: Ints,
) -> Number:
    """Fold texts one after another, a zero byte before and behind each, until the buffer is full.

    `ends` takes where each text ends in the buffer. Returns the text to go on with.
    """
    size = ends[first - 1] + 1 if first > 0 else 1
    for text in range(first, offsets.size - 1):
        at, stop = offsets[text], offsets[text + 1]
        if at < stop:
            at, size, _ = fold_piece(data, at, stop, tables, buffer, raw, size)
            if at < stop:
                return text
        buffer[size] = 0
        raw[size] = stop
        ends[text] = size
        size += 1
    return offsets.size - 1


@compiled
def sample_piece(
    buffer: Bytes,
    first: Number,
    last: Number,
    size: Number,
    is_wide: Number,
    hashes: Hashes,
    places: Ints,
) -> Number:
    """Sample the grams that begin in buffer[first:last] and end in buffer[:size].

    Returns how many; fills their hashes and their places in the buffer.
    """
    count: Number = 0
    if not is_wide:
        for j in range(first, min(last, size - 15)):
            x = hash_of(load64(buffer, j), load64(buffer, j + 8))
            hashes[count] = x
            places[count] = j
            count += np.int64(x < _QUARTER)
        return count
    for j in range(first, last):
        length = gram_length(buffer[j])
        if length == 0 or j + length > size:
            continue
        a = load64(buffer, j)
        b = load64(buffer, j + length - 8)
        if length > 16:
            b ^= load64(buffer, j + 8) * _K3
        x = hash_of(a, b)
        if x < (_QUARTER if length == 16 else _HALF):
            hashes[count] = x
            places[count] = j
            count += 1
    return count


@compiled
def holds_barrier(buffer: Bytes, begin: Number, stop: Number) -> bool:
    """Whether a zero byte stands in buffer[begin:stop]."""
    for j in range(begin, stop):  # noqa: SIM110 - numba takes no generator
        if buffer[j] == 0:
            return True
    return False


@compiled
def next_grams(
    data: Bytes, at: Number, stop: Number, tables: FoldTables, scratch: Scratch, state: Ints
) -> tuple[Number, Number]:
    """Fold and sample the next piece of a text.

    `state` carries the canonical bytes that are left over from the piece before, (2,) int64: how
    many, and whether they are all ASCII; zero it before each text.

    Returns the raw offset to go on from and the number of grams in the scratch.
    """
    buffer, raw, hashes, places = scratch
    at, size, is_wide = fold_piece(data, at, stop, tables, buffer, raw, state[0])
    is_wide |= state[1] != 0
    last = size if at >= stop else max(size - GRAM_MAX + 1, 0)
    count = sample_piece(buffer, 0, last, size, is_wide, hashes, places)
    for gram in range(count):  # the places are needed no more once they are raw offsets
        place = places[gram]
        is_split = holds_barrier(buffer, place, place + gram_length(buffer[place]))
        places[gram] = -1 if is_split else np.int64(raw[place])
    state[0] = size - last
    state[1] = np.int64(is_wide)
    for j in range(size - last):
        buffer[j] = buffer[last + j]
        raw[j] = raw[last + j]
    return at, count
