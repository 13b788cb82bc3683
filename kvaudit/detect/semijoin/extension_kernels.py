"""The compiled inner loops of the extension.

A text is canonical bytes in a buffer, a zero byte behind it; a place is an index into the buffer.
A seed is a gram that sink and source share. A run is a maximal stretch without a difference, a
chain is runs in the order of both texts with small gaps between them.
"""

import numpy as np

from kvaudit.detect.semijoin.kernels import (
    Bytes,
    Ints,
    Number,
    Ranks,
    compiled,
    gram_length,
    holds_barrier,
)  # fmt: skip

GAP_MAX = 48  # canonical bytes between two runs of one chain, in either text
HOP_MAX = 16  # canonical bytes of an edit that is stepped over to a run without a seed
HOP_RUN = 10  # a run found so has at least so many bytes
LOOK_BACK = 16  # runs
RUNS_SEEN = 64  # runs in which a seed is looked for before it is extended
TRIMMED_RUN = 8  # what a run must have left when it overlaps the one before
# What is told of a chain; the last two are how many of its bytes are ASCII, and ideographs.
START, STOP, SOURCE_START, SOURCE_STOP, EXACT, CHAINED, EDITS, ASCII, CJK = range(9)
FIELDS = 9


@compiled
def place_of(raw: Ranks, first: Number, last: Number, offset: Number) -> Number:
    """Return the first place in raw[first:last] whose raw offset is not below `offset`."""
    while first < last:
        middle = (first + last) >> 1
        if raw[middle] < offset:
            first = middle + 1
        else:
            last = middle
    return first


@compiled
def align(
    sink: Bytes, source: Bytes, s: Number, t: Number, sink_raw: Ranks, source_raw: Ranks
) -> tuple[Number, Number]:
    """Return by how much to move a seed: one character may fold to several.

    (-1, -1) if the bytes are not the same after all.
    """
    for ds in range(8):
        if sink_raw[s + ds] != sink_raw[s]:
            break
        for dt in range(8):
            if source_raw[t + dt] != source_raw[t]:
                break
            length = gram_length(sink[s + ds])
            same = length > 0
            for k in range(length):
                if sink[s + ds + k] != source[t + dt + k] or sink[s + ds + k] == 0:
                    same = False
                    break
            if same:
                return ds, dt
    return -1, -1


@compiled
def extend_right(sink: Bytes, source: Bytes, s: Number, t: Number) -> Number:
    """Return how many bytes are the same from (s, t) on."""
    length = 0
    while sink[s + length] == source[t + length] and sink[s + length] != 0:
        length += 1
    return length


@compiled
def extend_left(sink: Bytes, source: Bytes, s: Number, t: Number) -> Number:
    """Return how many bytes are the same before (s, t); a zero byte stands before the first."""
    length = 0
    while sink[s - 1 - length] == source[t - 1 - length] and sink[s - 1 - length] != 0:
        length += 1
    return length


@compiled
def hop(sink: Bytes, source: Bytes, s: Number, t: Number, step: Number) -> tuple[Number, Number]:
    """Return the gaps (in sink, in source) to the nearest run beyond an edit, or (-1, -1).

    `step` is 1 for an edit that begins at (s, t), -1 for one that ends before it.
    """
    shift = 0 if step > 0 else -1
    room = source_room = 0
    while room < HOP_MAX and sink[s + step * room + shift] != 0:
        room += 1
    while source_room < HOP_MAX and source[t + step * source_room + shift] != 0:
        source_room += 1
    for total in range(1, room + source_room + 1):
        for gap in range(max(0, total - source_room), min(total, room) + 1):
            begin, other = s + step * gap + shift, t + step * (total - gap) + shift
            same = 0
            while same < HOP_RUN and sink[begin] == source[other] and sink[begin] != 0:
                same += 1
                begin += step
                other += step
            if same == HOP_RUN:
                return gap, total - gap
    return -1, -1


@compiled
def find_runs(
    sink: Bytes,
    source: Bytes,
    sink_raw: Ranks,
    source_raw: Ranks,
    seeds: Ints,
    pairs: Ints,
    runs: Ints,
    run_ends: Ints,
    run_of_seed: Ints,
) -> None:
    """Extend seeds to runs, pair after pair.

    `seeds`, (N, 2) int64, are places in sink and source, in the order of pairs and places in the
    sink; `pairs`, (P,), are the ends of each pair's seeds. Fills `runs`, (R, 3) int64, places in
    sink and source and length; `run_ends`, (P,); and the run of each seed, -1 if it has none.
    At most R runs are taken.
    """
    count = first = np.int64(0)  # never a literal, which would be compiled for itself
    for pair in range(pairs.size):
        before = count
        for i in range(first, pairs[pair]):
            s, t = seeds[i, 0], seeds[i, 1]
            run_of_seed[i] = -1
            for back in range(count - 1, max(before, count - RUNS_SEEN) - 1, -1):
                inside = s - runs[back, 0]
                if 0 <= inside < runs[back, 2] and t - runs[back, 1] == inside:
                    run_of_seed[i] = back
                    break
            if run_of_seed[i] >= 0 or count + 2 > runs.shape[0]:
                continue
            ds, dt = align(sink, source, s, t, sink_raw, source_raw)
            if ds < 0:
                continue
            run_of_seed[i] = count
            count = _add_runs(sink, source, s + ds, t + dt, runs, count)
        first = pairs[pair]
        run_ends[pair] = count


@compiled
def _add_runs(
    sink: Bytes, source: Bytes, s: Number, t: Number, runs: Ints, count: Number
) -> Number:
    """Add the run round (s, t), one before it and those behind it that an edit parts from it."""
    left, right = extend_left(sink, source, s, t), extend_right(sink, source, s, t)
    runs[count, 0], runs[count, 1], runs[count, 2] = s - left, t - left, left + right
    count += 1
    gap, other = hop(sink, source, s - left, t - left, -1)
    if gap >= 0:
        end, source_end = s - left - gap, t - left - other
        length = extend_left(sink, source, end, source_end)
        runs[count, 0], runs[count, 1], runs[count, 2] = end - length, source_end - length, length
        count += 1
    s, t = s + right, t + right
    while count < runs.shape[0]:
        gap, other = hop(sink, source, s, t, 1)
        if gap < 0:
            break
        s, t = s + gap, t + other
        length = extend_right(sink, source, s, t)
        runs[count, 0], runs[count, 1], runs[count, 2] = s, t, length
        count += 1
        s, t = s + length, t + length
    return count


@compiled
def sort_by(keys: Ints, order: Ints) -> None:
    """Sort indices by (key, index), by Shell's method: numba's own sorts take long to compile."""
    step = 1
    while step < order.size:
        step = 3 * step + 1
    while step > 1:
        step //= 3
        for i in range(step, order.size):
            held, j = order[i], i
            while j >= step and (
                keys[order[j - step]] > keys[held]
                or (keys[order[j - step]] == keys[held] and order[j - step] > held)
            ):
                order[j] = order[j - step]
                j -= step
            order[j] = held


@compiled
def chain_runs(
    sink: Bytes, source: Bytes, runs: Ints, run_ends: Ints, chain_of_run: Ints, order: Ints
) -> Number:
    """Put every run in one chain, best chains first.

    Fills the chain of each run, and `order`: the runs in the order of pairs and, within a pair, of
    the sink. Returns how many chains there are.
    """
    best, previous = np.zeros(order.size, np.int64), np.zeros(order.size, np.int64)
    ranking = np.arange(order.size)
    first = chains = np.int64(0)
    for stop in run_ends:
        sort_by(runs[:, 0], order[first:stop])
        for i in range(first, stop):
            _link(sink, source, runs, order, first, i, best, previous)
        negative = -best
        sort_by(negative, ranking[first:stop])
        for end in ranking[first:stop]:
            at, is_new = end, chain_of_run[order[end]] < 0
            while at >= 0 and chain_of_run[order[at]] < 0:
                chain_of_run[order[at]] = chains
                at = previous[at]
            chains += np.int64(is_new)
        first = stop
    return chains


@compiled
def _link(
    sink: Bytes,
    source: Bytes,
    runs: Ints,
    order: Ints,
    first: Number,
    i: Number,
    best: Ints,
    previous: Ints,
) -> None:
    """Find the best chain that ends with the run `order[i]`."""
    run = runs[order[i]]
    best[i] = run[2]
    previous[i] = -1
    for j in range(i - 1, max(first, i - LOOK_BACK) - 1, -1):
        before = runs[order[j]]
        gap = run[0] - before[0] - before[2]
        source_gap = run[1] - before[1] - before[2]
        if gap > GAP_MAX or source_gap > GAP_MAX or run[1] <= before[1]:
            continue
        if holds_barrier(sink, run[0] - gap, run[0]) or holds_barrier(
            source, run[1] - source_gap, run[1]
        ):
            continue
        gain = run[2] + min(0, gap, source_gap)
        if gain >= TRIMMED_RUN and best[j] + gain > best[i]:
            best[i] = best[j] + gain
            previous[i] = j


@compiled
def describe_chains(
    sink: Bytes, runs: Ints, order: Ints, chain_of_run: Ints, low: Ints, high: Ints, out: Ints
) -> None:
    """Describe each chain between two places of the sink, in `out`, (chains, FIELDS) int64.

    A chain that `low` and `high` leave nothing of has no bytes.
    """
    for i in order:
        chain = chain_of_run[i]
        told = out[chain]
        begin, other = runs[i, 0], runs[i, 1]
        end = min(begin + runs[i, 2], high[chain])
        shift = max(0, low[chain] - begin)
        if told[CHAINED] > 0:
            shift = max(shift, told[STOP] - begin, told[SOURCE_STOP] - other)
        begin, other = begin + shift, other + shift
        if end <= begin:
            continue
        if told[CHAINED] > 0:
            told[EDITS] += 1
        else:
            told[START], told[SOURCE_START] = begin, other
        told[STOP], told[SOURCE_STOP] = end, other + end - begin
        told[EXACT] = max(told[EXACT], end - begin)
        told[CHAINED] += end - begin
        for place in range(begin, end):
            length = gram_length(sink[place])
            told[ASCII] += np.int64(length == 16)
            told[CJK] += 3 * np.int64(length == 12)


@compiled
def places_of(raw: Ranks, ends: Ints, texts: Ints, offsets: Ints, out: Ints) -> None:
    """Fill the places of raw offsets (within their texts, as absolute raw offsets)."""
    for i in range(texts.size):
        first = ends[texts[i] - 1] + 1 if texts[i] > 0 else 1
        out[i] = place_of(raw, first, ends[texts[i]], offsets[i])


@compiled
def count_characters(data: Bytes, begins: Ints, stops: Ints, out: Ints) -> None:
    """Fill how many characters stand in each data[begin:stop]; ascending within one text."""
    last_begin, last_stop, last_count = -1, 0, 0
    for i in range(begins.size):
        at: Number = begins[i]
        count: Number = 0
        if begins[i] == last_begin and stops[i] >= last_stop:
            at, count = last_stop, last_count
        for j in range(at, stops[i]):
            count += np.int64((data[j] & 0xC0) != 0x80)
        out[i] = count
        last_begin, last_stop, last_count = begins[i], stops[i], count
