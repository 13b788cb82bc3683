"""The semi-join's slow twin: a dictionary of all grams, nothing sampled, for small logs in tests.

Same rows, same matches, written to be obviously right: every gram of every text is looked up, every
source is extended exactly, and the first origin is the earliest request that holds the most.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvaudit.detect.semijoin.texts import SCHEMA, Match, TextRow, TextSource

BARRIER = "\x00"
GRAM = {"ascii": 16, "two-byte": 10, "cjk": 4}  # characters: 16, 20 and 12 bytes
GAP_CHARS = 24  # canonical characters between two exact pieces of one chain
OTHERS_MAX = 16


@dataclass(slots=True)
class Canonical:
    """Letters and digits of a text, folded, and where each stood; grams never cross a barrier."""

    text: str
    offsets: list[int]

    def grams(self) -> Iterator[tuple[int, str]]:
        for at, char in enumerate(self.text):
            if char == BARRIER:
                continue
            gram = self.text[at : at + GRAM[script_of(char)]]
            if len(gram) == GRAM[script_of(char)] and BARRIER not in gram:
                yield at, gram


def script_of(char: str) -> str:
    return "ascii" if char < "\x80" else "two-byte" if char < "\u0800" else "cjk"


def canonical(text: str) -> Canonical:
    kept: list[str] = []
    offsets: list[int] = []
    for at, char in enumerate(text):
        if char == BARRIER:
            kept.append(BARRIER)
            offsets.append(at)
            continue
        for folded in unicodedata.normalize("NFKC", char).casefold():
            if folded.isalnum() or unicodedata.category(folded)[0] == "M":
                kept.append(folded)
                offsets.append(at)
    return Canonical("".join(kept), offsets)


class Place(NamedTuple):
    row: int
    side: str
    at: int


class Chain(NamedTuple):
    """One chain of exact pieces between a sink and one side of a source, in canonical offsets."""

    sink_start: int
    sink_end: int
    source_start: int
    source_end: int
    exact: int
    matched: int
    edits: int


@dataclass(slots=True)
class _Texts:
    rows: dict[int, TextRow]
    sides: dict[tuple[int, str], Canonical]
    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))


def rows_of(source: TextSource) -> list[TextRow]:
    made = []
    for frame in source.batches(list(SCHEMA)):
        made += [TextRow(**row) for row in frame.iter_rows(named=True)]
    return made


def find_matches(
    source: TextSource, *, skew_us: int = 0, use_replicas: bool = False
) -> list[Match]:
    rows = rows_of(source)
    texts = _indexed(rows)
    made: list[Match] = []
    for sink in rows:
        made += _matches_of(sink, texts, skew_us, use_replicas=use_replicas)
    return sorted(made, key=lambda m: (m.sink_row, m.sink_start, m.source_row))


def order_of(row: TextRow) -> tuple[bool, int, int]:
    return row.start_us is None, row.start_us or 0, row.row


def _indexed(rows: Sequence[TextRow]) -> _Texts:
    texts = _Texts({row.row: row for row in rows}, {})
    for row in sorted(rows, key=order_of):
        for side, text in (("prompt", row.context), ("answer", row.answer)):
            held = texts.sides[row.row, side] = canonical(text)
            for at, gram in held.grams():
                texts.places[gram].append(Place(row.row, side, at))
    return texts


def _started_before(source: TextRow, sink: TextRow, skew_us: int) -> bool:
    if source.start_us is None or sink.start_us is None:
        return source.row < sink.row
    return source.start_us <= (sink.end_us if sink.end_us is not None else sink.start_us) + skew_us


def _matches_of(
    sink: TextRow, texts: _Texts, skew_us: int, *, use_replicas: bool
) -> Iterator[Match]:
    answer = texts.sides[sink.row, "answer"]
    seeds: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    own: set[int] = set()
    for at, gram in answer.grams():
        places = texts.places[gram]
        if _is_own(sink, places, texts, skew_us):
            own.add(at)
            continue
        for place in places:
            if texts.rows[place.row].organisation != sink.organisation:
                seeds[place.row, place.side].append((at, place.at))
    chains: list[tuple[Chain, int, str]] = []
    for (row, side), held in seeds.items():
        source = texts.rows[row]
        if (
            use_replicas
            and None not in (source.replica, sink.replica)
            and source.replica != sink.replica
        ):
            continue
        found = chained(answer, texts.sides[row, side], held, own)
        chains += [(chain, row, side) for chain in found]
    yield from _first_origins(sink, answer, chains, texts, skew_us)


def _is_own(sink: TextRow, places: Iterable[Place], texts: _Texts, skew_us: int) -> bool:
    for place in places:
        other = texts.rows[place.row]
        if place.row == sink.row:
            is_own = place.side == "prompt"
        else:
            is_own = other.organisation == sink.organisation
            is_own = is_own and _started_before(other, sink, skew_us)
        if is_own:
            return True
    return False


def chained(
    answer: Canonical, source: Canonical, seeds: Iterable[tuple[int, int]], own: set[int]
) -> list[Chain]:
    """Extend seeds to exact runs, then join runs on neighbouring diagonals over small gaps."""
    runs: list[tuple[int, int, int]] = []
    for at, there in sorted(set(seeds)):
        if any(s <= at < s + n and at - s == there - t for s, t, n in runs[-64:]):
            continue
        start, begun = at, there
        while (start and begun and start - 1 not in own
               and answer.text[start - 1] == source.text[begun - 1] != BARRIER):  # fmt: skip
            start, begun = start - 1, begun - 1
        size = at - start
        while (start + size < len(answer.text) and begun + size < len(source.text)
               and answer.text[start + size] == source.text[begun + size] != BARRIER
               and (start + size) not in own):  # fmt: skip
            size += 1
        size = max(size, at - start + len(_gram_at(answer, at)))
        runs.append((start, begun, size))
    return _joined(answer, source, sorted(set(runs)))


def _gram_at(answer: Canonical, at: int) -> str:
    return answer.text[at : at + GRAM[script_of(answer.text[at])]]


def _joined(answer: Canonical, source: Canonical, runs: list[tuple[int, int, int]]) -> list[Chain]:
    made: list[Chain] = []
    left = runs
    while left:
        chain, rest = [left[0]], []
        for run in left[1:]:
            start, begun, size = chain[-1]
            gap, other = run[0] - start - size, run[1] - begun - size
            if (-8 <= gap <= GAP_CHARS and -8 <= other <= GAP_CHARS
                    and BARRIER not in answer.text[start + size : run[0]]
                    and BARRIER not in source.text[begun + size : run[1]]):  # fmt: skip
                chain.append(run)
            else:
                rest.append(run)
        last = chain[-1]
        matched = sum(len(answer.text[s : s + n].encode()) for s, _, n in chain)
        exact = max(len(answer.text[s : s + n].encode()) for s, _, n in chain)
        made.append(
            Chain(chain[0][0], last[0] + last[2], chain[0][1], last[1] + last[2], exact, matched,
                  len(chain) - 1)
        )  # fmt: skip
        left = rest
    return made


def _first_origins(
    sink: TextRow, answer: Canonical, chains: list[tuple[Chain, int, str]], texts: _Texts,
    skew_us: int,
) -> Iterator[Match]:  # fmt: skip
    """Give every stretch to the source that holds most of it, the earliest of equals."""
    order = {
        row: number
        for number, row in enumerate(sorted(texts.rows, key=lambda r: order_of(texts.rows[r])))
    }
    ranked = sorted(
        chains,
        key=lambda c: (
            not _started_before(texts.rows[c[1]], sink, skew_us),
            -c[0].matched,
            order[c[1]],
            c[2] == "answer",
        ),
    )
    taken: list[Chain] = []
    for chain, row, side in ranked:
        if any(_overlaps(chain, other) for other in taken):
            continue
        taken.append(chain)
        source = texts.rows[row]
        is_decoy = not _started_before(source, sink, skew_us)
        others = sorted({
            other for held, other, _ in chains
            if other != row and _overlaps(held, chain) and held.matched * 2 >= chain.matched
            and _started_before(texts.rows[other], sink, skew_us)
        }, key=lambda r: order[r])  # fmt: skip
        held = texts.sides[row, side]
        yield Match(
            sink_row=sink.row,
            sink_start=answer.offsets[chain.sink_start],
            sink_end=answer.offsets[chain.sink_end - 1] + 1,
            source_row=row,
            source_side=side,
            source_start=held.offsets[chain.source_start],
            source_end=held.offsets[chain.source_end - 1] + 1,
            exact_bytes=chain.exact,
            chained_bytes=chain.matched,
            edits=chain.edits,
            script=script_of(answer.text[chain.sink_start]),
            is_decoy=is_decoy,
            other_sources=tuple(others[:OTHERS_MAX]),
            prompt_organisations=_organisations(answer, chain, texts, "prompt"),
            answer_organisations=_organisations(answer, chain, texts, "answer"),
        )


def _overlaps(one: Chain, other: Chain) -> bool:
    return one.sink_start < other.sink_end and other.sink_start < one.sink_end


def _organisations(answer: Canonical, chain: Chain, texts: _Texts, wanted: str) -> int:
    """Count organisations whose first text with most of it was a prompt, or that answered it."""
    grams = {g for at, g in answer.grams() if chain.sink_start <= at < chain.sink_end - 3}
    held: dict[tuple[int, str], int] = defaultdict(int)
    for gram in grams:
        for row, side in {(place.row, place.side) for place in texts.places[gram]}:
            held[row, side] += 1
    most = [key for key, count in held.items() if count * 2 >= len(grams)]
    if wanted == "answer":
        return len({texts.rows[row].organisation for row, side in most if side == "answer"})
    firsts: dict[int, tuple[bool, int, int, bool]] = {}
    for row, side in most:
        organisation = texts.rows[row].organisation
        key = (*order_of(texts.rows[row]), side == "answer")
        firsts[organisation] = min(firsts.get(organisation, key), key)
    return sum(not is_answer for _, _, _, is_answer in firsts.values())
