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

from kvaudit.detect.semijoin.arrays import CACHE_SIZE, PIECE, Cache, Scratch, Slots
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
BLOCK = 2048  # raw bytes of a context that are recognised as resent together
BACK_OFF = 512  # raw bytes looked at again before the first new block
NO_RANK = 0xFFFFFFFF
FOREIGN, MANY, PUBLIC = 1, 2, 4  # a hash was met in a foreign context; several own it; is public

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_K3 = np.uint64(0xD6E8FEB86659FD93)
_U29, _U32, _U47 = np.uint64(29), np.uint64(32), np.uint64(47)
_QUARTER, _HALF = np.uint64(1 << 62), np.uint64(1 << 63)
_ONES, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
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


_load64: Any = intrinsic(_word)


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
            x = hash_of(_load64(buffer, j), _load64(buffer, j + 8))
            hashes[count] = x
            places[count] = j
            count += np.int64(x < _QUARTER)
        return count
    for j in range(first, last):
        length = gram_length(buffer[j])
        if length == 0 or j + length > size:
            continue
        a = _load64(buffer, j)
        b = _load64(buffer, j + length - 8)
        if length > 16:
            b ^= _load64(buffer, j + 8) * _K3
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


@compiled
def find_slot(keys: Hashes, x: Number) -> Number:
    """Return the slot of the hash, or the empty one where it would go; open addressing."""
    mask = np.uint64(keys.size - 1)
    slot = (x * _K1 >> _U32) & mask
    while keys[slot] != _EMPTY and keys[slot] != x:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled
def filter_bits(x: Number) -> Number:
    """Return the two bits that a hash sets in its word of the filter."""
    one = np.uint64(1)
    low, high = x & np.uint64(63), (x >> np.uint64(6)) & np.uint64(63)
    return (one << low) | (one << high)


@compiled
def rebuild(old: Slots, new: Slots) -> None:
    """Move the slots of one table into a larger, empty one."""
    keys, owners, flags = old
    new_keys, new_owners, new_flags = new
    for slot in range(keys.size):
        if keys[slot] != _EMPTY:
            to = find_slot(new_keys, keys[slot])
            new_keys[to] = keys[slot]
            new_owners[to] = owners[slot]
            new_flags[to] = flags[slot]


@compiled
def keep_range(old: Slots, new: Slots, part: Number, parts: Number) -> Number:
    """As `rebuild`, but for one range of hashes; returns how many stay."""
    keys, owners, flags = old
    new_keys, new_owners, new_flags = new
    count = 0
    for slot in range(keys.size):
        if keys[slot] != _EMPTY and part_of(keys[slot], parts) == part:
            to = find_slot(new_keys, keys[slot])
            new_keys[to] = keys[slot]
            new_owners[to] = owners[slot]
            new_flags[to] = flags[slot]
            count += 1
    return count


@compiled
def part_of(x: Number, parts: Number) -> Number:
    """Return the range that a hash belongs to; `parts` is a power of two."""
    return np.int64((x * _K2 >> _U47) & np.uint64(parts - 1))


@compiled
def add_answers(
    data: Bytes,
    offsets: Ints,
    first: Number,
    owners_of_rows: Codes,
    tables: FoldTables,
    scratch: Scratch,
    part: Number,
    parts: Number,
    table: Slots,
    room: Number,
) -> tuple[Number, Number]:
    """Enter the grams of the answers of a batch into the table until `room` new ones are in.

    Returns the row to go on with and the number of new hashes. A row that is begun again adds
    nothing twice.
    """
    keys, owners, flags = table
    state = np.zeros(2, np.int64)
    added = 0
    for row in range(first, offsets.size - 1):
        at, stop = offsets[row], offsets[row + 1]
        state[:] = 0
        while at < stop:
            if added + 2 * PIECE > room:
                return row, added
            at, count = next_grams(data, at, stop, tables, scratch, state)
            for gram in range(count):
                x = scratch[2][gram]
                if scratch[3][gram] < 0 or (parts > 1 and part_of(x, parts) != part):
                    continue
                slot = find_slot(keys, x)
                if keys[slot] == _EMPTY:
                    keys[slot] = x
                    owners[slot] = owners_of_rows[row]
                    added += 1
                elif owners[slot] != owners_of_rows[row]:
                    flags[slot] |= MANY
    return offsets.size - 1, added


@compiled
def fill_filter(keys: Hashes, words: Hashes) -> None:
    """Set the bits of every hash."""
    mask = np.uint64(words.size - 1)
    for slot in range(keys.size):
        x = keys[slot]
        if x != _EMPTY:
            words[(x >> np.uint64(12)) & mask] |= filter_bits(x)


@compiled
def mark_public(keys: Hashes, flags: Bytes, hashes: Hashes) -> None:
    """Flag the hashes that public text holds."""
    for x in hashes:
        slot = find_slot(keys, x)
        if keys[slot] == x:
            flags[slot] |= PUBLIC


@compiled
def first_new_block(
    data: Bytes,
    at: Number,
    stop: Number,
    organisation: Number,
    rank: Number,
    blocks: Hashes,
    firsts: Ranks,
) -> tuple[Number, Number]:
    """Enter the blocks of a context; return how many lead it that were read before, and new ones.

    A chain hash stands for a block and all before it, in the texts of one organisation. A block
    counts as read when a request of lower rank sent it; so its first origin stays exact though
    requests come in the order of their conversations.
    """
    chain = hash_of(np.uint64(organisation + 1), _K3)
    known: Number = 0
    added = 0
    is_known = True
    while at + BLOCK <= stop:
        mixed = chain
        for j in range(at, at + BLOCK, 8):
            mixed = (mixed ^ _load64(data, j)) * _K1
            mixed ^= mixed >> _U32
        chain = hash_of(mixed, chain)
        slot = find_slot(blocks, chain)
        if blocks[slot] == _EMPTY:
            blocks[slot] = chain
            firsts[slot] = rank
            added += 1
            is_known = False
        elif firsts[slot] >= rank:
            firsts[slot] = rank
            is_known = False
        known += np.int64(is_known)
        at += BLOCK
    return known, added


@compiled
def rebuild_blocks(old: Hashes, old_firsts: Ranks, new: Hashes, new_firsts: Ranks) -> None:
    """Move the blocks into a larger table."""
    for slot in range(old.size):
        if old[slot] != _EMPTY:
            to = find_slot(new, old[slot])
            new[to] = old[slot]
            new_firsts[to] = old_firsts[slot]


@compiled
def scan_contexts(
    data: Bytes,
    offsets: Ints,
    first: Number,
    owners_of_rows: Codes,
    ranks: Ranks,
    tables: FoldTables,
    scratch: Scratch,
    words: Hashes,
    table: Slots,
    own_ranks: Ranks,
    blocks: Hashes,
    block_firsts: Ranks,
    cache: Cache,
    out_hashes: Hashes,
    out_places: Hashes,
    counts: Ints,
) -> Number:
    """Look for the answers' grams in the contexts of a batch.

    A gram of one organisation's answers in its own context only lowers `own_ranks`; all others go
    out as (hash, rank << 32 | raw offset in the text), once for each run of one organisation's
    rows. `counts`, (3,) int64: matches out, blocks entered, bytes looked at.

    Returns the row to go on with: the one that did not fit any more.
    """
    keys, owners, flags = table
    cache_hashes, cache_owners, cache_ranks = cache
    state = np.zeros(2, np.int64)
    mask = np.uint64(words.size - 1)
    for row in range(first, offsets.size - 1):
        begin, stop = offsets[row], offsets[row + 1]
        owner, rank = owners_of_rows[row], ranks[row]
        known, added = first_new_block(data, begin, stop, owner, rank, blocks, block_firsts)
        counts[1] += added
        at = begin
        if known > 0:
            at = max(begin, begin + known * BLOCK - BACK_OFF)
            while at > begin and (data[at] & 0xC0) == 0x80:
                at -= 1
        counts[2] += stop - at
        before = counts[0]
        state[:] = 0
        while at < stop:
            if counts[0] + PIECE > out_hashes.size:
                counts[0] = before
                return row
            at, count = next_grams(data, at, stop, tables, scratch, state)
            for gram in range(count):
                x = scratch[2][gram]
                bits = filter_bits(x)
                if words[(x >> np.uint64(12)) & mask] & bits != bits:
                    continue
                slot = find_slot(keys, x)
                if keys[slot] != x or flags[slot] & PUBLIC or scratch[3][gram] < 0:
                    continue
                if owners[slot] == owner and not flags[slot] & MANY:
                    own_ranks[slot] = min(own_ranks[slot], rank)
                    continue
                flags[slot] |= FOREIGN
                seen = slot & (CACHE_SIZE - 1)
                if (
                    cache_hashes[seen] == x
                    and cache_owners[seen] == owner
                    and cache_ranks[seen] <= rank
                ):
                    continue
                cache_hashes[seen] = x
                cache_owners[seen] = owner
                cache_ranks[seen] = rank
                out_hashes[counts[0]] = x
                out_places[counts[0]] = (np.uint64(rank) << _U32) | np.uint64(
                    scratch[3][gram] - begin
                )
                counts[0] += 1
    return offsets.size - 1


@compiled
def scan_answers(
    data: Bytes,
    offsets: Ints,
    first: Number,
    ranks: Ranks,
    limits: Ranks,
    unknown_from: Number,
    tables: FoldTables,
    scratch: Scratch,
    table: Slots,
    own_ranks: Ranks,
    out_hashes: Hashes,
    out_places: Hashes,
    out_walls: Flags,
    counts: Ints,
) -> Number:
    """Give out the grams of the answers that a foreign text holds too.

    A gram that is public, or that the own context explains, is a wall: it goes out only where it
    stands next to one that is not. `limits` is, by row, the rank of the first text after its end;
    ranks from `unknown_from` on have no time.

    Returns the row to go on with.
    """
    keys, _, flags = table
    state = np.zeros(2, np.int64)
    for row in range(first, offsets.size - 1):
        begin = at = offsets[row]
        stop = offsets[row + 1]
        before = counts[0]
        state[:] = 0
        was_wall = True
        wall_hash, wall_place = _EMPTY, np.uint64(0)
        while at < stop:
            if counts[0] + 2 * PIECE > out_hashes.size:
                counts[0] = before
                return row
            at, count = next_grams(data, at, stop, tables, scratch, state)
            for gram in range(count):
                x = scratch[2][gram]
                slot = find_slot(keys, x)
                if keys[slot] != x or flags[slot] == 0 or scratch[3][gram] < 0:
                    continue
                place = (np.uint64(ranks[row]) << _U32) | np.uint64(scratch[3][gram] - begin)
                own = own_ranks[slot]
                is_wall = (flags[slot] & PUBLIC) != 0 or (
                    own != NO_RANK and (own < limits[row] or own >= unknown_from)
                )
                if is_wall != was_wall and wall_hash != _EMPTY and not is_wall:
                    out_hashes[counts[0]] = wall_hash
                    out_places[counts[0]] = wall_place
                    out_walls[counts[0]] = True
                    counts[0] += 1
                if not is_wall or not was_wall:
                    out_hashes[counts[0]] = x
                    out_places[counts[0]] = place
                    out_walls[counts[0]] = is_wall
                    counts[0] += 1
                wall_hash = x if is_wall and was_wall else _EMPTY
                wall_place = place
                was_wall = is_wall
    return offsets.size - 1
