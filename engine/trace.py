"""PageTrace: who wrote and who read every slot; ground truth for tests, never shown to a probe.

Tags lie beside the KV they describe and travel with its pages over the wire, to the host and back.
Nothing in the engine decides by them: with the trace off every figure stays.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.prefix import Namespace

NOBODY = -1  # a slot that was never written
_OWN = -2  # a read that is in order

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReads:
    """What one request read at one role, by slot; a slot read many times counts once.

    Attributes:
        slots: Slots read in all, its own included.
        foreign: Slots last written by another request, by that request's id.
        unwritten: Slots that nobody ever wrote.
        positions: The positions of all slots that were not its own, ascending.
    """

    slots: int
    foreign: Mapping[str, int]
    unwritten: int
    positions: tuple[int, ...]

    @property
    def stale(self) -> int:
        """Slots that were not written by this request or its verified prefix."""
        return sum(self.foreign.values()) + self.unwritten


class BadRead(NamedTuple):
    """The first slot that a request read and should not have, in order of time.

    Where one step read several, it is one that another request wrote, if there is any.

    Attributes:
        role: Where it was read.
        reader: The request that read it.
        writer: The request that last wrote it; None = nobody ever did.
        page, slot: Where it lies; slot = page * page_size + offset.
        position: The reader's position that it stood for.
        written_as: The position that it was written for; `NOBODY` if it never was.
    """

    role: str
    reader: str
    writer: str | None
    page: int
    slot: int
    position: int
    written_as: int


class PageTags(NamedTuple):
    """Tags of some pages, slot by slot: writer's ordinal, position, content key."""

    writer: Ints
    position: Ints
    key: Ints


class PageTrace:
    """Tags of all slots of both roles, and what each request read.

    A read is in order when the slot was written by the reader for that position, or lies in the
    prefix that the cache served and was computed from the very same namespace and tokens.

    Attributes:
        first_bad: The first read that was out of order; None while there was none.
    """

    def __init__(self, slots: Mapping[str, int], page_size: int) -> None:
        self._page_size = page_size
        self._tags = {
            role: PageTags(
                writer=np.full(count, NOBODY, dtype=np.int64),
                position=np.full(count, NOBODY, dtype=np.int64),
                key=np.zeros(count, dtype=np.int64),
            )
            for role, count in slots.items()
        }
        self._names: list[str] = []
        self._prompts: list[tuple[int, ...]] = []
        self._keys: list[Ints] = []
        self._reads: dict[tuple[int, str], Ints] = {}
        self.first_bad: BadRead | None = None

    def begin(self, request_id: str, namespace: Namespace, prompt: Sequence[int]) -> int:
        """Note a request and the prompt that was really sent; returns its ordinal."""
        self._names.append(request_id)
        self._prompts.append(tuple(prompt))
        self._keys.append(_chain_keys(namespace, prompt))
        return len(self._names) - 1

    def wrote(
        self,
        role: str,
        ordinal: int,
        pages: Sequence[int],
        first_position: int,
        tokens: Sequence[int],
    ) -> None:
        """Note that a request wrote `tokens` from `first_position` on into its pages."""
        positions = np.arange(first_position, first_position + len(tokens))
        slots = self._slots(pages, positions)
        tags = self._tags[role]
        tags.writer[slots] = ordinal
        tags.position[slots] = positions
        tags.key[slots] = self._keys_of(ordinal, positions, tokens)

    def copied(self, from_role: str, from_page: int, to_role: str, to_page: int) -> None:
        """Note that a page crossed the wire, whole, with whatever lies behind its last token."""
        self.put(to_role, (to_page,), self.take(from_role, (from_page,)))

    def take(self, role: str, pages: Sequence[int]) -> PageTags:
        """Return the tags of `pages`, to travel with them."""
        slots = self._page_slots(pages)
        tags = self._tags[role]
        return PageTags(
            writer=tags.writer[slots], position=tags.position[slots], key=tags.key[slots]
        )

    def put(self, role: str, pages: Sequence[int], moved: PageTags) -> None:
        """Lay tags that travelled with pages beside their new place."""
        slots = self._page_slots(pages)
        tags = self._tags[role]
        tags.writer[slots] = moved.writer
        tags.position[slots] = moved.position
        tags.key[slots] = moved.key

    def read(
        self, role: str, ordinal: int, pages: Sequence[int], kv_len: int, *, cached_tokens: int
    ) -> None:
        """Note that a request's attention read the first `kv_len` slots of its pages."""
        positions = np.arange(kv_len)
        slots = self._slots(pages, positions)
        tags = self._tags[role]
        writers = tags.writer[slots]
        in_order = (writers == ordinal) & (tags.position[slots] == positions)
        cached = min(cached_tokens, kv_len)
        in_order[:cached] |= tags.key[slots[:cached]] == self._keys[ordinal][:cached]
        if self.first_bad is None and not in_order.all():
            is_foreign = ~in_order & (writers != ordinal) & (writers != NOBODY)
            position = np.argmax(is_foreign if is_foreign.any() else ~in_order)
            self.first_bad = self._bad_read(role, ordinal, slots, int(position))
        sources = np.where(in_order, _OWN, writers)
        known = self._reads.get((ordinal, role))
        if known is not None:  # the first bad reading of a position stays
            old = known[:kv_len]
            sources[: len(old)] = np.where(old != _OWN, old, sources[: len(old)])
            sources = np.concatenate([sources, known[kv_len:]])
        self._reads[ordinal, role] = sources

    def reads_of(self, request_id: str, role: str = "decode") -> SlotReads:
        """Return what the latest request of that id read at a role; nothing if refused."""
        named = [ordinal for ordinal, name in enumerate(self._names) if name == request_id]
        ordinal = named[-1] if named else NOBODY
        sources = self._reads.get((ordinal, role), np.empty(0, dtype=np.int64))
        foreign: dict[str, int] = {}
        for writer in sources[sources >= 0]:
            name = self._names[int(writer)]
            foreign[name] = foreign.get(name, 0) + 1
        return SlotReads(
            slots=len(sources),
            foreign=foreign,
            unwritten=int((sources == NOBODY).sum()),
            positions=tuple(int(at) for at in np.flatnonzero(sources != _OWN)),
        )

    def writer_of(self, role: str, slot: int) -> str | None:
        """Return the id of the request that last wrote a slot; None = nobody did."""
        ordinal = int(self._tags[role].writer[slot])
        return None if ordinal == NOBODY else self._names[ordinal]

    def _bad_read(self, role: str, ordinal: int, slots: Ints, position: int) -> BadRead:
        slot = int(slots[position])
        return BadRead(
            role=role,
            reader=self._names[ordinal],
            writer=self.writer_of(role, slot),
            page=slot // self._page_size,
            slot=slot,
            position=position,
            written_as=int(self._tags[role].position[slot]),
        )

    def _keys_of(self, ordinal: int, positions: Ints, tokens: Sequence[int]) -> Ints:
        prompt, keys = self._prompts[ordinal], self._keys[ordinal]
        found = np.zeros(len(tokens), dtype=np.int64)
        for index, (position, token) in enumerate(zip(positions, tokens, strict=True)):
            if position < len(prompt) and prompt[position] == token:
                found[index] = keys[position]
        return found

    def _slots(self, pages: Sequence[int], positions: Ints) -> Ints:
        table = np.asarray(pages, dtype=np.int64)
        return table[positions // self._page_size] * self._page_size + positions % self._page_size

    def _page_slots(self, pages: Sequence[int]) -> Ints:
        starts = np.asarray(pages, dtype=np.int64)[:, None] * self._page_size
        return (starts + np.arange(self._page_size)).reshape(-1)


def _chain_keys(namespace: Namespace, tokens: Sequence[int]) -> Ints:
    """Return, for each position, a key of the namespace and all tokens up to it; never 0."""
    state = hashlib.blake2b(namespace.encoded(), digest_size=8)
    keys = np.empty(len(tokens), dtype=np.int64)
    for index, token in enumerate(tokens):
        state.update(token.to_bytes(4, "big"))
        keys[index] = (int.from_bytes(state.digest(), "big") >> 1) | 1
    return keys
