"""KVA205, values: an id of another tenant's prompt or attachment in an answer, respelled or masked.

Answers are the small side: their values are collected first, then every context is read once. A
value counts when no request of the own organisation held it before, its own context does not hold
it even in pieces, and fewer than three other organisations knew it by themselves. A masked value
also needs the name of its field, or its layout, in both places.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvaudit.detect.scored.fresh_text import fresh_contexts
from kvaudit.detect.scored.public_text import PublicText
from kvaudit.detect.scored.values import (
    OUTER,
    MaskedValue,
    Value,
    fold_value,
    masked_values_of,
    values_of,
)
from kvaudit.detect.semijoin.texts import BARRIER, TextSource

COMMON_ORGANISATIONS = 3
HOLDERS_MAX = 64  # organisations that are remembered of one value


@dataclass(frozen=True, slots=True, kw_only=True)
class Bled:
    """One foreign value in one answer.

    Attributes:
        sink_row, source_row: The answer, and the first request whose context holds the value.
        start, text: Where it stands in the answer, and how.
        source_start, source_text: The same in the source's context.
        bits: How much it takes to be equal by accident, at least.
        is_masked: Whether only both ends were compared.
        field: A word before the value in both places; "" if there is none.
        other_sources: Later foreign rows that held it.
        organisations: Organisations that knew it by themselves.
        expected_accidents: In a log with so many values.
    """

    sink_row: int
    source_row: int
    start: int
    text: str
    source_start: int
    source_text: str
    bits: float
    is_masked: bool
    field: str
    other_sources: tuple[int, ...]
    organisations: int
    expected_accidents: float


@dataclass(slots=True)
class _Asked:
    """One value of an answer that is looked for."""

    row: int
    organisation: int
    last_us: int | None
    value: Value | MaskedValue


@dataclass(slots=True)
class _Holder:
    """The first context of one organisation that holds a value."""

    row: int
    start_us: int | None
    value: Value


@dataclass(slots=True)
class _Index:
    asked: dict[str, list[_Asked]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[str, dict[int, list[_Holder]]] = field(default_factory=dict)
    in_answers: int = 0
    in_contexts: int = 0


def find_bled_values(source: TextSource, public: PublicText, *, skew_us: int) -> list[Bled]:
    """Return foreign values in answers, the longest of those that overlap."""
    index = _Index()
    for frame in source.batches(["row", "organisation", "start_us", "end_us", "answer"]):
        for row, owner, start, end, answer in frame.iter_rows():
            _ask(index, row, owner, start, end, answer)
    if not index.asked:
        return []
    for fresh in fresh_contexts(source):
        for value in values_of(fresh.context, fresh.begin):
            index.in_contexts += 1
            for key in _keys(value):
                if key in index.asked:
                    holder = _Holder(fresh.row, fresh.start_us, value)
                    _hold(index, key, fresh.organisation, holder)
    found = [made for held in index.asked.values() for asked in held
             if (made := _judged(asked, index, skew_us)) is not None]  # fmt: skip
    private = [item for item in found if not public.holds(item.source_text)]
    return _not_own(source, _longest(private))


def _ask(
    index: _Index, row: int, owner: int, start: int | None, end: int | None, answer: str
) -> None:
    last = end if end is not None else start
    seen: set[str] = set()
    found: list[Value | MaskedValue] = [*values_of(answer), *masked_values_of(answer)]
    for value in found:
        key = _key(value)
        if key not in seen:
            seen.add(key)
            index.in_answers += 1
            index.asked[key].append(_Asked(row, owner, last, value))


def _key(value: Value | MaskedValue) -> str:
    return value.folded if isinstance(value, Value) else f"{value.head}*{value.tail}"


def _keys(value: Value) -> Iterator[str]:
    yield value.folded
    if len(value.folded) >= 2 * OUTER:
        yield f"{value.folded[:OUTER]}*{value.folded[-OUTER:]}"


def _hold(index: _Index, key: str, owner: int, holder: _Holder) -> None:
    """Remember the first holders of each organisation, in the order of time."""
    by_owner = index.holders.setdefault(key, {})
    if owner not in by_owner and len(by_owner) >= HOLDERS_MAX:
        return
    held = by_owner.setdefault(owner, [])
    held.append(holder)
    held.sort(key=lambda h: (h.start_us is None, h.start_us or 0, h.row))
    del held[4:]


def _judged(asked: _Asked, index: _Index, skew_us: int) -> Bled | None:
    by_owner = index.holders.get(_key(asked.value), {})
    own = by_owner.get(asked.organisation, [])
    if any(_is_before(holder, asked, skew_us) or holder.row == asked.row for holder in own):
        return None
    foreign = {
        owner: first for owner, held in by_owner.items() if owner != asked.organisation
        if (first := next((h for h in held if _is_before(h, asked, skew_us)), None)) is not None
    }  # fmt: skip
    knowing = [
        first for owner, first in foreign.items() if not _was_told(first, owner, index, asked)
    ]
    if not knowing:
        return None
    ranked = sorted(knowing, key=lambda h: (h.start_us is None, h.start_us or 0, h.row))
    source = ranked[0]
    shared = sorted(asked.value.fields & source.value.fields)
    is_masked = isinstance(asked.value, MaskedValue)
    if is_masked and not shared and asked.value.shape != source.value.shape:
        return None
    chances = math.log2(max(1, index.in_answers)) + math.log2(max(1, index.in_contexts))
    return Bled(
        sink_row=asked.row, source_row=source.row, start=asked.value.start, text=asked.value.text,
        source_start=source.value.start, source_text=source.value.text, bits=asked.value.bits,
        is_masked=is_masked, field=shared[0] if shared else "",
        other_sources=tuple(h.row for h in ranked[1:]), organisations=len(knowing),
        expected_accidents=math.exp2(min(60.0, chances - asked.value.bits)),
    )  # fmt: skip


def _is_before(holder: _Holder, asked: _Asked, skew_us: int) -> bool:
    if holder.start_us is None or asked.last_us is None:
        return True
    return holder.start_us <= asked.last_us + skew_us


def _was_told(holder: _Holder, owner: int, index: _Index, asked: _Asked) -> bool:
    """Whether an earlier answer gave the holder's organisation the value: a victim that resends."""
    return any(
        other.organisation == owner and other.row != holder.row
        and holder.start_us is not None and other.last_us is not None
        and other.last_us <= holder.start_us
        for other in index.asked[_key(asked.value)]
    )  # fmt: skip


def _longest(found: Iterable[Bled]) -> list[Bled]:
    """Keep the strongest of the values that overlap in one answer."""
    kept: list[Bled] = []
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for item in sorted(found, key=lambda b: (b.sink_row, -b.bits, b.start)):
        end = item.start + len(item.text)
        if all(end <= first or last <= item.start for first, last in ends[item.sink_row]):
            ends[item.sink_row].append((item.start, end))
            kept.append(item)
    return kept


def _not_own(source: TextSource, found: Sequence[Bled]) -> list[Bled]:
    """Leave out what the own context holds in another spelling or in pieces."""
    rows = sorted({item.sink_row for item in found})
    contexts: Mapping[int, str] = source.fetch(rows, "context") if rows else {}
    folded = {row: fold_value(text.replace(BARRIER, " ")) for row, text in contexts.items()}
    return [item for item in found if not _stands_in(item, folded.get(item.sink_row, ""))]


def _stands_in(item: Bled, own: str) -> bool:
    if not item.is_masked:
        return fold_value(item.text) in own
    whole = fold_value(item.source_text)
    return whole in own or (whole[:OUTER] in own and whole[-OUTER:] in own)
