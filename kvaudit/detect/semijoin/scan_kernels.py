"""The compiled inner loops of the scan: the answers' table, resent blocks, and the passes.

The table is open addressing by the gram's hash; `kernels.py` says what a gram is.
"""

import numpy as np

from kvaudit.detect.semijoin.arrays import CACHE_SIZE, PIECE, Cache, Scratch, Slots
from kvaudit.detect.semijoin.folding import FoldTables
from kvaudit.detect.semijoin.kernels import (
    Bytes,
    Codes,
    Flags,
    Hashes,
    Ints,
    Number,
    Ranks,
    compiled,
    hash_of,
    load64,
    next_grams,
)

BLOCK = 2048  # raw bytes of a context that are recognised as resent together
BACK_OFF = 512  # raw bytes looked at again before the first new block
NO_RANK = 0xFFFFFFFF
FOREIGN, MANY, PUBLIC = 1, 2, 4  # a hash was met in a foreign context; several own it; is public

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_K3 = np.uint64(0xD6E8FEB86659FD93)
_U32, _U47 = np.uint64(32), np.uint64(47)
_EMPTY = np.uint64(0)


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
            mixed = (mixed ^ load64(data, j)) * _K1
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
def _went_out(cache: Cache, seen: Number, x: Number, owner: Number, rank: Number) -> bool:
    """Whether the organisation's last text with this gram came earlier; note it if not."""
    hashes, owners, ranks = cache
    if hashes[seen] == x and owners[seen] == owner and ranks[seen] <= rank:
        return True
    hashes[seen] = x
    owners[seen] = owner
    ranks[seen] = rank
    return False


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
                if _went_out(cache, slot & (CACHE_SIZE - 1), x, owner, rank):
                    continue
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
