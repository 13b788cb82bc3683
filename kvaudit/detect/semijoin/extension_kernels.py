"""The compiled inner loops of the extension.

A text is canonical bytes in a buffer, a zero byte behind it; a place is an index into the buffer.
A seed is a gram that sink and source share. A run is a maximal stretch without a difference, a
chain is runs in the order of both texts with small gaps between them.
"""

import numpy as np

from kvaudit.detect.semijoin.kernels import compiled, gram_length

GAP_MAX = 48  # canonical bytes between two runs of one chain, in either text
HOP_MAX = 16  # canonical bytes of an edit that is stepped over to a run without a seed
HOP_RUN = 10  # a run found so has at least so many bytes
LOOK_BACK = 16  # runs
TRIMMED_RUN = 8  # what a run must have left when it overlaps the one before
START, STOP, SOURCE_START, SOURCE_STOP, EXACT, CHAINED, EDITS, SCRIPT = range(8)
FIELDS = 8


@compiled
def place_of(raw, first, last, offset):  # type: ignore[no-untyped-def]
    """Return the first place in raw[first:last] whose raw offset is not below `offset`."""
    while first < last:
        middle = (first + last) >> 1
        if raw[middle] < offset:
            first = middle + 1
        else:
            last = middle
    return first


@compiled
def align(sink, source, s, t, sink_raw, source_raw):  # type: ignore[no-untyped-def]
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
def same_right(sink, source, s, t):  # type: ignore[no-untyped-def]
    """Return how many bytes are the same from (s, t) on."""
    length = 0
    while sink[s + length] == source[t + length] and sink[s + length] != 0:
        length += 1
    return length


@compiled
def same_left(sink, source, s, t):  # type: ignore[no-untyped-def]
    """Return how many bytes are the same before (s, t); a zero byte stands before the first."""
    length = 0
    while sink[s - 1 - length] == source[t - 1 - length] and sink[s - 1 - length] != 0:
        length += 1
    return length


@compiled
def hop_right(sink, source, s, t):  # type: ignore[no-untyped-def]
    """Return the gaps (in sink, in source) to the nearest run behind an edit at (s, t), or -1."""
    for total in range(1, 2 * HOP_MAX + 1):
        for gap in range(max(0, total - HOP_MAX), min(total, HOP_MAX) + 1):
            other = total - gap
            fits = True
            for k in range(gap):
                fits &= sink[s + k] != 0
            for k in range(other):
                fits &= source[t + k] != 0
            if (
                fits
                and sink[s + gap] & 0xC0 != 0x80
                and same_right(sink, source, s + gap, t + other) >= HOP_RUN
            ):
                return gap, other
    return -1, -1


@compiled
def hop_left(sink, source, s, t):  # type: ignore[no-untyped-def]
    """As `hop_right`, before an edit that ends at (s, t)."""
    for total in range(1, 2 * HOP_MAX + 1):
        for gap in range(max(0, total - HOP_MAX), min(total, HOP_MAX) + 1):
            other = total - gap
            fits = True
            for k in range(gap):
                fits &= sink[s - 1 - k] != 0
                if not fits:
                    break
            for k in range(other if fits else 0):
                fits &= source[t - 1 - k] != 0
                if not fits:
                    break
            if fits and same_left(sink, source, s - gap, t - other) >= HOP_RUN:
                return gap, other
    return -1, -1


@compiled
def find_runs(  # type: ignore[no-untyped-def]
    sink, source, sink_raw, source_raw, seeds, runs, run_of_seed
):
    """Extend the seeds of one pair, (N, 2) places in the order of the sink, to runs.

    Fills `runs`, (R, 3) int64: places in sink and source and the length; and the run of each seed,
    -1 if there is none. Returns how many runs; at most R are taken.
    """
    count = 0
    for i in range(seeds.shape[0]):
        s, t = seeds[i, 0], seeds[i, 1]
        run_of_seed[i] = -1
        for back in range(count - 1, max(-1, count - 65), -1):
            begin = runs[back, 0]
            if begin <= s < begin + runs[back, 2] and t - s == runs[back, 1] - begin:
                run_of_seed[i] = back
                break
        if run_of_seed[i] >= 0 or count + 2 > runs.shape[0]:
            continue
        ds, dt = align(sink, source, s, t, sink_raw, source_raw)
        if ds < 0:
            continue
        s, t = s + ds, t + dt
        left, right = same_left(sink, source, s, t), same_right(sink, source, s, t)
        run_of_seed[i] = count
        runs[count] = (s - left, t - left, left + right)
        count += 1
        begin, other = s - left, t - left
        gap, source_gap = hop_left(sink, source, begin, other)
        if gap >= 0:
            length = same_left(sink, source, begin - gap, other - source_gap)
            runs[count] = (begin - gap - length, other - source_gap - length, length)
            count += 1
        s, t = s + right, t + right
        while count < runs.shape[0]:
            gap, source_gap = hop_right(sink, source, s, t)
            if gap < 0:
                break
            s, t = s + gap, t + source_gap
            length = same_right(sink, source, s, t)
            runs[count] = (s, t, length)
            count += 1
            s, t = s + length, t + length
    return count


@compiled
def sort_by(keys, order):  # type: ignore[no-untyped-def]
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
def chain_runs(runs, order, best, previous):  # type: ignore[no-untyped-def]
    """Find for each run, in the order of the sink, the best chain that ends with it."""
    for i in range(order.size):
        run = runs[order[i]]
        best[i] = run[2]
        previous[i] = -1
        for j in range(i - 1, max(-1, i - 1 - LOOK_BACK), -1):
            before = runs[order[j]]
            gap = run[0] - before[0] - before[2]
            source_gap = run[1] - before[1] - before[2]
            if gap > GAP_MAX or source_gap > GAP_MAX or run[1] <= before[1]:
                continue
            gain = run[2] + min(0, gap, source_gap)
            if gain >= TRIMMED_RUN and best[j] + gain > best[i]:
                best[i] = best[j] + gain
                previous[i] = j


@compiled
def script_of(sink, begin, stop):  # type: ignore[no-untyped-def]
    """Return 0 for ASCII, 1 for other alphabets, 2 for ideographs, kana and Hangul: the most."""
    counts = np.zeros(3, np.int64)
    for place in range(begin, stop):
        length = gram_length(sink[place])
        if length == 16:
            counts[0] += 1
        elif length == 12:
            counts[2] += 3
        elif length > 0:
            counts[1] += 2
    return np.argmax(counts)


@compiled
def clipped_match(sink, runs, chain, low, high, out):  # type: ignore[no-untyped-def]
    """Describe a chain, its runs in order, between two places of the sink."""
    out[:] = 0
    stop = source_stop = -1
    for run in chain:
        begin, other, end = runs[run, 0], runs[run, 1], runs[run, 0] + runs[run, 2]
        shift = max(0, low - begin)
        if stop >= 0:
            shift = max(shift, stop - begin, source_stop - other)
        begin, other, end = begin + shift, other + shift, min(end, high)
        if end <= begin:
            continue
        if stop < 0:
            out[START], out[SOURCE_START] = begin, other
        else:
            out[EDITS] += 1
        stop, source_stop = end, other + end - begin
        out[EXACT] = max(out[EXACT], end - begin)
        out[CHAINED] += end - begin
    out[STOP], out[SOURCE_STOP] = stop, source_stop
    out[SCRIPT] = script_of(sink, out[START], stop)


@compiled
def match_pair(  # type: ignore[no-untyped-def]
    sink, source, sink_raw, source_raw, seeds, walls, work, matches, match_of_seed, first
):
    """Turn the seeds of one pair into matches, from row `first` of `matches` on.

    `walls` are places of the sink, ascending; a match reaches over none that lies outside its
    seeds. Returns how many matches there are now.
    """
    runs, run_of_seed, best, previous, chain_of_run = work
    count = find_runs(sink, source, sink_raw, source_raw, seeds, runs, run_of_seed)
    order, ranking = np.arange(count), np.arange(count)
    sort_by(runs[:count, 0], order)
    chain_runs(runs, order, best, previous)
    chain_of_run[:count] = -1
    sort_by(-best[:count], ranking)
    chain = np.zeros(count, np.int64)
    for end in ranking:
        size, at = 0, end
        while at >= 0 and chain_of_run[order[at]] < 0:
            chain[size] = order[at]
            chain_of_run[order[at]] = first
            size += 1
            at = previous[at]
        if size == 0:
            continue
        low, high = _between_walls(sink, seeds, walls, run_of_seed, chain_of_run, first)
        if high < 0:
            continue  # runs without a seed of their own
        clipped_match(sink, runs, chain[:size][::-1], low, high, matches[first])
        for i in range(seeds.shape[0]):
            if run_of_seed[i] >= 0 and chain_of_run[run_of_seed[i]] == first:
                match_of_seed[i] = first
        first += 1
    return first


@compiled
def _between_walls(sink, seeds, walls, run_of_seed, chain_of_run, chain):  # type: ignore[no-untyped-def]
    """Return how far a chain may reach: the walls before its first and behind its last seed."""
    begin = stop = -1
    for i in range(seeds.shape[0]):
        if run_of_seed[i] >= 0 and chain_of_run[run_of_seed[i]] == chain:
            if begin < 0:
                begin = seeds[i, 0]
            stop = seeds[i, 0]
    if begin < 0:
        return 0, -1
    low, high = 0, 1 << 62
    behind = place_of(walls, 0, walls.size, begin)
    if behind > 0:
        wall = walls[behind - 1]
        low = min(wall + gram_length(sink[wall]), begin)
    behind = place_of(walls, 0, walls.size, stop + 1)
    if behind < walls.size:
        high = max(walls[behind], stop + gram_length(sink[stop]))
    return low, high


@compiled
def match_pairs(  # type: ignore[no-untyped-def]
    sink, source, sink_raw, source_raw, seeds, pairs, walls, wall_ends, sink_of_pair,
    work, matches, match_of_seed, pair_of_match
):  # fmt: skip
    """Match pair after pair; `pairs` are the ends of each pair's seeds, `wall_ends` by sink.

    Returns how many matches there are.
    """
    count = begin = 0
    for pair in range(pairs.size):
        stop = pairs[pair]
        text = sink_of_pair[pair]
        first_wall = wall_ends[text - 1] if text > 0 else 0
        before = count
        count = match_pair(
            sink, source, sink_raw, source_raw, seeds[begin:stop],
            walls[first_wall : wall_ends[text]], work, matches, match_of_seed[begin:stop], count
        )  # fmt: skip
        pair_of_match[before:count] = pair
        begin = stop
    return count


@compiled
def places_of(raw, ends, texts, offsets, out):  # type: ignore[no-untyped-def]
    """Fill the places of raw offsets (within their texts, as absolute raw offsets)."""
    for i in range(texts.size):
        first = ends[texts[i] - 1] + 1 if texts[i] > 0 else 1
        out[i] = place_of(raw, first, ends[texts[i]], offsets[i])


@compiled
def count_characters(data, begins, stops, out):  # type: ignore[no-untyped-def]
    """Fill how many characters stand in each data[begin:stop]; ascending within one text."""
    last_begin, last_stop, last_count = -1, 0, 0
    for i in range(begins.size):
        at, count = begins[i], 0
        if begins[i] == last_begin and stops[i] >= last_stop:
            at, count = last_stop, last_count
        for j in range(at, stops[i]):
            count += np.int64((data[j] & 0xC0) != 0x80)
        out[i] = count
        last_begin, last_stop, last_count = begins[i], stops[i], count
