"""The wire: carries KV pages from prefill to decode, room by room, and checks what arrived.

Decode publishes the pages that it reserved under a room; prefill posts copies of the pages that it
filled; a metadata row behind the last page carries the first token. A posted copy can't be called
back: when its room has failed, the writer has no acknowledgement for any of it, sends all of it
once more, and it lands later, as a remote memory write would. So decode's pages may change hands
only when the wire has drained.

With a check of the hand-off on (`checksum`, `coverage`), a room is a success only when decode has
accepted it. Until then the sender keeps its pages, and decode may have the room sent again.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from engine.cache import KVCache
from engine.config import LATE_TURNS, EngineConfig
from engine.faults import FaultPlan, Site
from engine.request import ApiError, handoff_failed
from engine.sanitizer import Sanitizer
from engine.table import slots_of
from engine.watch import SlotWatcher

# So often decode may have a room sent again.
RESENDS_MAX = 1
# `partial-transfer` strikes transfers of more than LONG_SHARE of prefill's pool: all pages between
# the first START_SHARE of their own and the last one are lost.
LONG_SHARE, START_SHARE = 7 / 8, 1 / 8


class KVPoll(IntEnum):
    """State of a room, as both roles poll it; FAILED and SUCCESS are final."""

    FAILED = 0
    BOOTSTRAPPING = 1  # decode has not published its pages
    WAITING_FOR_INPUT = 2  # published; nothing has come yet
    TRANSFERRING = 3
    SUCCESS = 4


@dataclass(frozen=True, slots=True)
class RoomKey:
    """The one name that both roles share for one attempt of one request.

    Attributes:
        room: Bootstrap room, a random number of 63 bits.
        generation: Attempt under this room, from 1.
    """

    room: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRow:
    """What crosses the wire behind the last page.

    Attributes:
        room: The room it belongs to; all that SGLang 0.5.19 checks.
        first_token, first_logprob: The token that prefill sampled.
        tokens_sent: Prompt tokens whose KV prefill computed and sent.
        cached_tokens: How many of them came from the prefix cache.
        digest: Digest of the KV that was sent; None where the fix `checksum` is off.
    """

    room: int
    first_token: int
    first_logprob: float
    tokens_sent: int
    cached_tokens: int
    digest: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageCopy:
    key: RoomKey
    source: int
    destination: int


class _LateCopy(NamedTuple):
    """A copy that has left its source: it carries what it has read there."""

    due_turn: int
    copy: _PageCopy
    values: torch.Tensor
    tags: Any


@dataclass(slots=True, kw_only=True)
class _Room:
    ordinal: int
    poll: KVPoll = KVPoll.BOOTSTRAPPING
    destination: tuple[int, ...] = ()
    asked: list[_PageCopy] = field(default_factory=list)  # what the sender posted
    copies: list[_PageCopy] = field(default_factory=list)  # what of it is, or was, under way
    posted: int = 0
    moved: int = 0
    resends: int = 0
    coming: MetadataRow | None = None
    arrived: MetadataRow | None = None
    reason: str = ""
    is_sender_aborted: bool = False
    sides: set[str] = field(default_factory=lambda: {"prefill", "decode"})


class Wire:
    """All rooms, and the copies posted in them, first come first served.

    Invariant: a room in a final state never changes it; copies posted = copies moved + copies
    waiting + copies late.
    """

    def __init__(
        self,
        source: KVCache,
        destination: KVCache,
        *,
        faults: FaultPlan,
        trace: SlotWatcher | None,
        late_turns: int = LATE_TURNS,
    ) -> None:
        self._late_turns = late_turns
        self._faults = faults
        self._is_checked = faults.has_fix("checksum") or faults.has_fix("coverage")
        self._source = source
        self._destination = destination
        self._trace = trace
        self._rooms: dict[RoomKey, _Room] = {}
        self._generations: dict[int, int] = {}
        self._copies: deque[_PageCopy] = deque()
        self._late: deque[_LateCopy] = deque()
        self._turn = 0
        self._opened = 0

    def open(self, room: int) -> RoomKey:
        """Open the next generation of a room."""
        generation = self._generations.get(room, 0) + 1
        self._generations[room] = generation
        key = RoomKey(room, generation)
        self._rooms[key] = _Room(ordinal=self._opened)
        self._opened += 1
        return key

    def poll(self, key: RoomKey) -> KVPoll:
        """Return the room's state."""
        return self._rooms[key].poll

    def reason(self, key: RoomKey) -> str:
        """Return why the room failed; "" if it did not."""
        return self._rooms[key].reason

    def publish(self, key: RoomKey, pages: Sequence[int]) -> None:
        """Name the pages that decode reserved, in logical order."""
        room = self._rooms[key]
        if room.poll != KVPoll.BOOTSTRAPPING:
            return  # failed before decode came to it
        room.destination = tuple(pages)
        room.poll = KVPoll.WAITING_FOR_INPUT

    def post(
        self,
        key: RoomKey,
        pages: Sequence[int],
        *,
        first_page: int,
        metadata: MetadataRow | None = None,
    ) -> None:
        """Post a chunk: the sender's `pages`, from logical page `first_page` on.

        With `metadata` it is the last chunk, which the sender decides by its own count: nobody
        here compares it with what decode reserved. A list longer than decode's is cut.
        """
        room = self._rooms[key]
        if room.poll not in (KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING):
            return  # final: a failed transfer can't become a success
        room.poll = KVPoll.TRANSFERRING
        room.coming = metadata
        targets = room.destination[first_page : first_page + len(pages)]
        for index, (source, destination) in enumerate(zip(pages, targets, strict=False)):
            copy = _PageCopy(key=key, source=source, destination=destination)
            room.asked.append(copy)
            if self._is_lost(room, first_page + index):  # F05
                continue
            room.copies.append(copy)
            self._copies.append(copy)
            room.posted += 1
        self._settle(room)

    def resend(self, key: RoomKey) -> bool:
        """Send all that was asked of an arrived room once more, in order, page by page.

        Returns:
            False where that can't be: the sender has gone, or `RESENDS_MAX` is used up.
        """
        room = self._rooms[key]
        assert room.arrived is not None, "sent again before it has arrived"
        if room.poll != KVPoll.TRANSFERRING or room.resends == RESENDS_MAX:
            return False
        room.resends += 1
        room.arrived = None
        room.copies = list(room.asked)
        room.posted, room.moved = len(room.copies), 0
        self._copies.extend(room.copies)
        return True

    def accept(self, key: RoomKey) -> None:
        """Say that decode takes what has arrived: the sender may let go of its pages."""
        room = self._rooms[key]
        assert room.arrived is not None, "accepted before it has arrived"
        room.poll = KVPoll.SUCCESS

    def refuse(self, key: RoomKey, reason: str) -> None:
        """Say that decode does not take what has arrived. All of it has landed: nothing is late."""
        room = self._rooms[key]
        assert room.arrived is not None, "refused before it has arrived"
        if room.poll == KVPoll.TRANSFERRING:
            room.poll, room.reason = KVPoll.FAILED, reason

    def pump(self, pages_max: int) -> bool:
        """Move up to `pages_max` posted pages, oldest first, and those late ones that are due.

        Returns:
            Whether anything was moved, or is late and will be.
        """
        self._turn += 1
        moved = min(pages_max, len(self._copies))
        for _ in range(moved):
            self._move(self._copies.popleft())
        is_late = bool(self._late)
        while self._late and self._late[0].due_turn <= self._turn:
            self._land(self._late.popleft())
        return moved > 0 or is_late

    def fail(self, key: RoomKey, reason: str) -> None:
        """End the room; both roles see it. What was posted is sent once more and lands later."""
        room = self._rooms[key]
        if room.poll in (KVPoll.FAILED, KVPoll.SUCCESS):
            return
        room.poll = KVPoll.FAILED
        room.reason = reason
        room.posted += room.moved
        self._late.extend(self._under_way(copy) for copy in room.copies)
        self._copies = deque(copy for copy in self._copies if copy.key != key)

    def abort_sender(self, key: RoomKey) -> None:
        """Mark the sender's own side as aborted. Decode is *not* told: it waits for its timeout."""
        self._rooms[key].is_sender_aborted = True

    def has_arrived(self, key: RoomKey) -> bool:
        """Tell whether all of the room has come and decode may look at it."""
        room = self._rooms[key]
        return room.arrived is not None and room.poll != KVPoll.FAILED

    def metadata(self, key: RoomKey) -> MetadataRow:
        """Return the row that came behind the last page."""
        row = self._rooms[key].arrived
        assert row is not None, "read before it was written"
        return row

    def pages_arrived(self, key: RoomKey) -> int:
        """Return how many pages the latest sending has brought, by the receiver's own count."""
        return self._rooms[key].moved

    def is_read(self, key: RoomKey) -> bool:
        """Tell whether the sender's pages are free to change: all posted copies have left."""
        return not any(copy.key == key for copy in self._copies)

    def is_drained(self, key: RoomKey) -> bool:
        """Tell whether the receiver's pages are free to change: all posted copies have landed."""
        room = self._rooms.get(key)
        if room is None or room.posted == room.moved:
            return True
        # F16: the room is looked up by its number, and an earlier attempt has acknowledged.
        return self._has_earlier_ack(key) and self._faults.strikes(Site.DRAIN_ACK)

    def close(self, key: RoomKey, side: str) -> None:
        """Say that `prefill` or `decode` is done with the room; gone when both are, and drained."""
        self._rooms[key].sides.discard(side)
        self._forget(key)

    def check_integrity(self) -> None:
        """Assert that every copy is counted in its room and no room has lost both sides."""
        waiting: dict[RoomKey, int] = {}
        for copy in (*self._copies, *(late.copy for late in self._late)):
            waiting[copy.key] = waiting.get(copy.key, 0) + 1
        for key, room in self._rooms.items():
            assert room.posted == room.moved + waiting.pop(key, 0), "a copy is lost"
            assert room.sides or room.posted > room.moved, "a room outlived both its sides"
            assert room.arrived is not None or room.poll != KVPoll.SUCCESS, (
                "success without metadata"
            )
        assert not waiting, "a copy without a room"

    def _has_earlier_ack(self, key: RoomKey) -> bool:
        return any(
            RoomKey(key.room, generation) not in self._rooms
            for generation in range(1, key.generation)
        )

    def _is_lost(self, room: _Room, page: int) -> bool:
        """Whether a logical page is lost: of a long transfer, all between its start and its end."""
        reserved = len(room.destination)
        if LONG_SHARE * self._source.num_pages >= reserved:
            return False
        is_between = max(1, int(reserved * START_SHARE)) <= page < reserved - 1
        return is_between and self._faults.strikes(Site.WIRE_CHUNK, room.ordinal)

    def _move(self, copy: _PageCopy) -> None:
        if self._trace is not None:
            tags = self._trace.take("prefill", (copy.source,))
            self._trace.put("decode", (copy.destination,), tags)
        self._destination.copy_page_from(self._source, copy.source, copy.destination)
        self._count(copy.key)

    def _under_way(self, copy: _PageCopy) -> _LateCopy:
        return _LateCopy(
            due_turn=self._turn + self._late_turns,
            copy=copy,
            values=self._source.page(copy.source).clone(),
            tags=self._trace.take("prefill", (copy.source,)) if self._trace is not None else None,
        )

    def _land(self, late: _LateCopy) -> None:
        if self._trace is not None and late.tags is not None:
            self._trace.put("decode", (late.copy.destination,), late.tags)
        self._destination.page(late.copy.destination).copy_(late.values)
        self._count(late.copy.key)

    def _count(self, key: RoomKey) -> None:
        room = self._rooms[key]
        room.moved += 1
        self._settle(room)
        self._forget(key)

    def _settle(self, room: _Room) -> None:
        """Hand over the metadata row once every posted page has been moved."""
        if room.poll != KVPoll.TRANSFERRING or room.coming is None:
            return
        if room.posted == room.moved:
            room.arrived = room.coming
            if not self._is_checked:
                room.poll = KVPoll.SUCCESS

    def _forget(self, key: RoomKey) -> None:
        room = self._rooms[key]
        if not room.sides and room.posted == room.moved:
            del self._rooms[key]


def kv_digest(
    cache: KVCache, pages: Sequence[int], tokens: int, *, page_size: int, granularity: str
) -> bytes:
    """Return a digest of the KV of the first `tokens` positions of `pages`.

    Args:
        cache: Where the pages lie.
        pages: Physical pages, in logical order.
        tokens: Positions that count.
        page_size: Tokens in a page.
        granularity: `token` covers these slots and their number; `page` covers their whole pages,
            so that two lengths that end in one page can't be told apart.
    """
    covered = pages[: -(-tokens // page_size)]
    width = len(covered) * page_size if granularity == "page" else tokens
    slots = slots_of(covered, width, page_size)
    state = hashlib.blake2b(width.to_bytes(8, "big"), digest_size=16)
    state.update(_slot_bytes(cache, slots, page_size))
    return state.digest()


def check_handoff(
    config: EngineConfig,
    cache: KVCache,
    *,
    room: int,
    row: MetadataRow,
    pages_arrived: int,
    pages: Sequence[int],
    reserved_tokens: int,
    ordinal: int = 0,
    sanitizer: Sanitizer | None = None,
) -> ApiError | None:
    """Check what arrived against what decode reserved, before the first decode step.

    Args:
        config: Says which checks are on.
        cache: Decode's KV.
        room: The room that decode waited for.
        row: What came behind the last page.
        pages_arrived: Pages that came, by decode's own count.
        pages: Pages that decode reserved, in logical order.
        reserved_tokens: Tokens that it reserved them for.
        ordinal: The request, as the sanitizer knows it.
        sanitizer: Looks at the hand-off before the checks do; None = off.

    Returns:
        Why the hand-off is refused; None if every check that is on has passed.
    """
    if sanitizer is not None:
        _show(sanitizer, ordinal, config, cache, row, pages_arrived, pages, reserved_tokens)
    if row.room != room:
        return handoff_failed(
            "kv_room_mismatch", f"Metadata of room {row.room} arrived in room {room}."
        )
    if config.faults.has_fix("coverage"):
        error = _check_coverage(config, row, pages_arrived, reserved_tokens)
        if error is not None:
            return error
    if config.faults.has_fix("checksum"):
        own = kv_digest(
            cache, pages, reserved_tokens,
            page_size=config.page_size, granularity=config.granularity,
        )  # fmt: skip
        if row.digest != own:  # a digest that is missing is a mismatch: never fail open
            return handoff_failed(
                "kv_checksum_mismatch",
                f"KV checksum mismatch in the transfer of room {room}: the {reserved_tokens} token"
                " slots that decode reserved do not hold what prefill sent.",
            )
    return None


def _show(
    sanitizer: Sanitizer,
    ordinal: int,
    config: EngineConfig,
    cache: KVCache,
    row: MetadataRow,
    pages_arrived: int,
    pages: Sequence[int],
    reserved_tokens: int,
) -> None:
    is_same = None
    if row.digest is not None and row.tokens_sent == reserved_tokens:
        own = kv_digest(
            cache, pages, reserved_tokens,
            page_size=config.page_size, granularity=config.granularity,
        )  # fmt: skip
        is_same = row.digest == own
    sanitizer.handed_off(
        ordinal,
        tokens_sent=row.tokens_sent,
        tokens_arrived=_arrived_tokens(config, row, pages_arrived),
        tokens_reserved=reserved_tokens,
        is_same=is_same,
    )


def _check_coverage(
    config: EngineConfig, row: MetadataRow, pages_arrived: int, reserved_tokens: int
) -> ApiError | None:
    arrived, reserved, unit = _arrived_tokens(config, row, pages_arrived), reserved_tokens, "tokens"
    if config.granularity == "page":
        arrived, reserved, unit = pages_arrived, config.pages(reserved_tokens), "pages"
    if arrived == reserved:
        return None
    return handoff_failed(
        "kv_transfer_incomplete",
        f"KV transfer of room {row.room} covers {arrived} {unit}, but decode reserved {reserved}.",
    )


def _arrived_tokens(config: EngineConfig, row: MetadataRow, pages_arrived: int) -> int:
    """Return the tokens as the sender counts them, less those whose pages never came."""
    lost_pages = config.pages(row.tokens_sent) - pages_arrived
    return row.tokens_sent - max(0, lost_pages) * config.page_size


def _slot_bytes(cache: KVCache, slots: Sequence[int], page_size: int) -> bytes:
    """Return keys and values of `slots`, all layers, slot after slot, as they lie in memory."""
    index = torch.tensor(slots, dtype=torch.int64, device=cache.tensor.device)
    # Shapes: tensor (P, L, 2, page_size, H, D) -> (len(slots), L, 2, H, D)
    values = cache.tensor[index // page_size, :, :, index % page_size]
    return values.contiguous().view(torch.uint8).cpu().numpy().tobytes()
