"""The sanitizer: catches a page's misuse before the first wrong token leaves.

Beside each slot lies a tag: who wrote it, for which position, and a key over the namespace (model,
adapter, salt) and all tokens up to it. Tags travel with their pages. Before a forward pass reads a
slot its tag is compared with what the reader must find there; before a hand-off is taken its tokens
and bytes are counted and digested. A page that is freed loses its tags and is poisoned: keys 0, so
that it attracts nobody, and values so large that whatever attends to them shows. (NaN would be
wrong: a masked slot counts 0 times its value.)

It knows nothing of the trace, and the trace nothing of it.

Shapes: tags (slots,) int64; slot = page * page_size + offset.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.cache import KEY, VALUE, KVCache
from engine.prefix import Namespace
from engine.violation import Violation
from kvaudit.errors import SanitizerError

VIOLATIONS_MAX = 1_000  # kept; all are counted
FREED, RESERVED = -2, -1  # in place of a writer
LOGIT_MAX = 1e30  # only poison makes a larger one
_POISON = {torch.float16: 6e4}  # all other floats: 3e38
_POISON_INT = -(1 << 40)
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it can be inverted modulo 2^64

Ints = npt.NDArray[np.int64]


class SlotTags(NamedTuple):
    """Tags of some pages, slot by slot."""

    writer: Ints
    position: Ints
    key: Ints


@dataclass(slots=True, kw_only=True)
class _Known:
    """What the sanitizer knows of one request: its name, its prompt, and the keys to find."""

    request_id: str
    tenant: str | None
    prompt: Ints
    keys: Ints
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)  # by role: from, to
    writing: dict[str, int] = field(default_factory=dict)  # by role: where the latest write begins


class PoolTags:
    """Tags of one role's pool; hears of every page that is given out or comes back."""

    def __init__(self, cache: KVCache, *, poisons: bool) -> None:
        count = cache.num_pages * cache.page_size
        self.cache = cache
        self.writer = np.full(count, RESERVED, dtype=np.int64)
        self.position = np.full(count, -1, dtype=np.int64)
        self.key = np.zeros(count, dtype=np.int64)
        self.last_writer = np.full(count, -1, dtype=np.int64)  # survives a release
        is_float = cache.tensor.dtype.is_floating_point
        self.poison = _POISON.get(cache.tensor.dtype, 3e38) if is_float else _POISON_INT
        self._poisons = poisons

    def reserved(self, pages: Sequence[int]) -> None:
        """Pages are given out: nothing in them is their holder's yet."""
        self.writer[self.slots(pages)] = RESERVED

    def freed(self, pages: Sequence[int]) -> None:
        """Pages come back: nobody may read or write them."""
        self.writer[self.slots(pages)] = FREED
        if self._poisons and pages:
            index = torch.tensor(pages, dtype=torch.int64, device=self.cache.tensor.device)
            self.cache.tensor[index, :, KEY] = 0
            self.cache.tensor[index, :, VALUE] = self.poison

    def forget(self) -> None:
        """All pages come back at once, as in a restart; what they hold stays as it is."""
        self.writer[:] = FREED

    def slots(self, pages: Sequence[int]) -> Ints:
        """Return all slots of `pages`, in order."""
        starts = np.asarray(pages, dtype=np.int64)[:, None] * self.cache.page_size
        return (starts + np.arange(self.cache.page_size)).reshape(-1)

    def is_poison(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """Tell which slots hold the poison, by the first value of their first layer."""
        index = torch.from_numpy(slots).to(self.cache.tensor.device)
        size = self.cache.page_size
        values = self.cache.tensor[index // size, 0, VALUE, index % size, 0, 0]
        poison = torch.tensor(self.poison, dtype=values.dtype, device=values.device)
        found: npt.NDArray[np.bool_] = (values == poison).cpu().numpy()
        return found


class Sanitizer:
    """Follows every slot of both roles.

    Args:
        caches: Keys and values by role.
        mode: `full` checks every read, `sample` a share of them; both count and compare lengths.
        action: `raise` stops the engine before the token leaves, `log` notes and goes on.
        share: In mode `sample`, the share of a request's steps that is checked.
        seed: Which steps these are.

    Attributes:
        violations: The first of each rule for each request, latest last, at most `VIOLATIONS_MAX`.
        counts: How often each rule was broken.
        asked, checked: Reads that it heard of, and that it compared slot by slot.
        pools: Tags by role; each hears of its pool's pages.
    """

    def __init__(
        self, caches: Mapping[str, KVCache], *, mode: str, action: str, share: float, seed: int
    ) -> None:
        assert mode in ("sample", "full"), "a sanitizer that is off is not built"
        self.mode = mode
        self.violations: deque[Violation] = deque(maxlen=VIOLATIONS_MAX)
        self.counts: Counter[str] = Counter()
        self.asked = self.checked = 0
        self.pools = {
            role: PoolTags(cache, poisons=mode == "full") for role, cache in caches.items()
        }
        self._action = action
        self._share = 1.0 if mode == "full" else share
        self._seed = seed
        self._known: list[_Known] = []
        self._told: set[tuple[str, int, str]] = set()

    def begin(
        self, request_id: str, tenant: str | None, namespace: Namespace, prompt: Sequence[int]
    ) -> int:
        """Note a request as it was really sent; returns its ordinal."""
        tokens = np.asarray(prompt, dtype=np.int64)
        self._known.append(
            _Known(
                request_id=request_id, tenant=tenant, prompt=tokens,
                keys=chain_keys(namespace, tokens),
            )
        )  # fmt: skip
        return len(self._known) - 1

    def forget_pages(self) -> None:
        """The engine is restarted: no page is held by anybody."""
        for pool in self.pools.values():
            pool.forget()

    def wrote(
        self,
        role: str,
        ordinal: int,
        pages: Sequence[int],
        first_position: int,
        tokens: Sequence[int],
    ) -> None:
        """Tag what a request is about to write, unless the place is another's (KVA906)."""
        pool, known = self.pools[role], self._known[ordinal]
        positions = np.arange(first_position, first_position + len(tokens))
        slots = self._at(role, pages, positions)
        self._check_write(role, ordinal, slots, positions, np.full(len(slots), ordinal))
        pool.writer[slots] = pool.last_writer[slots] = ordinal
        pool.position[slots] = positions
        pool.key[slots] = _keys_of(known, positions, np.asarray(tokens, dtype=np.int64))
        known.writing[role] = first_position
        start, end = known.filled.get(role, (first_position, first_position))
        if first_position <= end:
            known.filled[role] = (start, max(end, first_position + len(tokens)))

    def read(
        self, role: str, ordinal: int, pages: Sequence[int], kv_len: int, *, cached_tokens: int
    ) -> None:
        """Check the slots that a request is about to read: KVA901, 902, 903, 907."""
        self.asked += 1
        known = self._known[ordinal]
        start, end = known.filled.get(role, (0, 0))
        if self._is_chosen(ordinal, kv_len):
            self.checked += 1
            if self._check_slots(role, ordinal, pages, kv_len, cached_tokens):
                return
        if end < kv_len or start > (cached_tokens if role == "prefill" else 0):
            self._tell_slot("KVA902", role, ordinal, pages, max(end, 0), kv_len, "was never filled")

    def take(self, role: str, pages: Sequence[int]) -> SlotTags:
        """Return the tags of `pages`, to travel with them."""
        pool = self.pools[role]
        slots = pool.slots(pages)
        return SlotTags(pool.writer[slots], pool.position[slots], pool.key[slots])

    def put(self, role: str, pages: Sequence[int], moved: SlotTags) -> None:
        """Lay tags that travelled beside their new place, unless it is another's (KVA906)."""
        pool = self.pools[role]
        slots = pool.slots(pages)
        written = moved.writer >= 0
        if written.any():
            ordinal = int(moved.writer[written][-1])
            own = slots[written]
            self._check_write(role, ordinal, own, moved.position[written], moved.writer[written])
            pool.last_writer[own] = moved.writer[written]
        pool.writer[slots] = np.where(written, moved.writer, RESERVED)
        pool.position[slots] = moved.position
        pool.key[slots] = moved.key

    def handed_off(
        self,
        ordinal: int,
        *,
        tokens_sent: int,
        tokens_arrived: int,
        tokens_reserved: int,
        is_same: bool | None,
    ) -> None:
        """Check a hand-off before decode takes it: KVA904 and KVA905.

        Args:
            ordinal: The request.
            tokens_sent: As prefill counts.
            tokens_arrived: As the wire counts.
            tokens_reserved: As decode counts.
            is_same: Whether the bytes that arrived are those that were sent; None = not compared.
        """
        known = self._known[ordinal]
        known.filled["decode"] = (0, min(tokens_sent, tokens_arrived))
        reserved = len(known.prompt)
        if not tokens_sent == tokens_arrived == tokens_reserved == reserved:
            self._tell(
                "KVA904", "decode", ordinal,
                f"{tokens_sent} tokens were sent, {tokens_arrived} arrived, {tokens_reserved} are"
                f" reserved, the prompt has {reserved}",
            )  # fmt: skip
        elif is_same is False:
            self._tell("KVA905", "decode", ordinal, "other bytes arrived than were sent")

    def wants_digest(self, ordinal: int) -> bool:
        """Tell whether the bytes of this request's hand-off are compared."""
        return self._is_chosen(ordinal, 0)

    def computed(self, role: str, ordinals: Sequence[int], logits: torch.Tensor) -> None:
        """Check logits for poison (KVA907): (rows, vocabulary) of the requests `ordinals`."""
        if not len(ordinals):
            return
        largest = logits.abs().amax(dim=-1)
        for row in torch.nonzero(~(largest < LOGIT_MAX)).flatten().tolist():
            self._tell("KVA907", role, ordinals[row], "its logits are beyond any model's")

    def chance(self, steps: int) -> float:
        """Return the chance that a contamination that lasts `steps` steps is seen at all."""
        return 1.0 - (1.0 - self._share) ** steps

    def watchdog(self, parts_run: int) -> None:
        """Assert that it really ran: it has heard of each of `parts_run` reads of the engine."""
        assert self.asked == parts_run, "the sanitizer was not asked about every read"
        if self.mode == "full":
            assert self.checked == self.asked, "the sanitizer passed over a read"
        expected = self.asked * self._share
        assert self.checked > 0 or expected < 40, "the sanitizer samples nothing"

    def _check_slots(
        self, role: str, ordinal: int, pages: Sequence[int], kv_len: int, cached: int
    ) -> bool:
        """Compare every slot with what its reader must find; returns whether one is wrong."""
        pool, known = self.pools[role], self._known[ordinal]
        positions = np.arange(kv_len)
        slots = self._at(role, pages, positions)
        writer, key = pool.writer[slots], pool.key[slots]
        is_prompt = positions < len(known.prompt)
        wanted = np.zeros(kv_len, dtype=np.int64)
        wanted[is_prompt] = known.keys[: int(is_prompt.sum())]
        is_right = (pool.position[slots] == positions) & (~is_prompt | (key == wanted))
        is_owner = (writer == ordinal) | ((positions < cached) & (writer >= 0) & is_right)
        for rule_id, bad, detail in (
            ("KVA901", (writer >= 0) & ~is_owner & (positions >= cached), "another wrote it"),
            ("KVA902", writer < 0, "was not written since its page was given out"),
            ("KVA903", (writer >= 0) & ~is_right, "holds another place, prompt or namespace"),
        ):
            if bad.any():
                last = pool.last_writer[slots]
                of_another = bad & (last >= 0) & (last != ordinal)  # it tells whose text it is
                at = int(np.argmax(of_another if of_another.any() else bad))
                self._tell_slot(rule_id, role, ordinal, pages, at, kv_len, detail)
                return True
        # What is written in this very step does not lie there yet.
        poisoned = pool.is_poison(slots[: known.writing.get(role, kv_len)])
        if poisoned.any():
            at = int(np.argmax(poisoned))
            self._tell_slot("KVA907", role, ordinal, pages, at, kv_len, "holds poison")
        return bool(poisoned.any())

    def _check_write(
        self, role: str, ordinal: int, slots: Ints, positions: Ints, writers: Ints
    ) -> None:
        held = self.pools[role].writer[slots]
        bad = (held == FREED) | ((held >= 0) & (held != writers))
        if not bad.any():
            return
        at = int(np.argmax(bad))
        owner = int(held[at])
        detail = "is written though its page is free" if owner == FREED else "is another's"
        self._tell(
            "KVA906", role, ordinal, detail, slot=int(slots[at]), position=int(positions[at])
        )

    def _at(self, role: str, pages: Sequence[int], positions: Ints) -> Ints:
        table, size = np.asarray(pages, dtype=np.int64), self.pools[role].cache.page_size
        slots: Ints = table[positions // size] * size + positions % size
        return slots

    def _is_chosen(self, ordinal: int, step: int) -> bool:
        if self._share >= 1.0:
            return True
        mixed = (ordinal * 0x9E3779B97F4A7C15 + step * 0xC2B2AE3D27D4EB4F + self._seed) % 2**64
        mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 % 2**64
        return (mixed ^ (mixed >> 32)) < self._share * 2**64

    def _tell_slot(
        self,
        rule_id: str,
        role: str,
        ordinal: int,
        pages: Sequence[int],
        position: int,
        kv_len: int,
        detail: str,
    ) -> None:
        slot = int(self._at(role, pages, np.asarray([position]))[0])
        self._tell(rule_id, role, ordinal, detail, slot=slot, position=position, kv_len=kv_len)

    def _tell(
        self,
        rule_id: str,
        role: str,
        ordinal: int,
        detail: str,
        *,
        slot: int | None = None,
        position: int | None = None,
        kv_len: int = 0,
    ) -> None:
        self.counts[rule_id] += 1
        if (rule_id, ordinal, role) in self._told:
            return
        self._told.add((rule_id, ordinal, role))
        known, pool = self._known[ordinal], self.pools[role]
        last = int(pool.last_writer[slot]) if slot is not None else -1
        owner = self._known[last] if last >= 0 else None
        violation = Violation(
            rule_id=rule_id,
            role=role,
            request_id=known.request_id,
            tenant=known.tenant,
            owner_id=owner.request_id if owner is not None else None,
            owner_tenant=owner.tenant if owner is not None else None,
            page=slot // pool.cache.page_size if slot is not None else None,
            slot=slot,
            position=position,
            token_index=max(0, kv_len - len(known.prompt)) if role == "decode" else 0,
            detail=detail,
        )
        self.violations.append(violation)
        if self._action == "raise":
            raise SanitizerError(violation.sentence())


def chain_keys(namespace: Namespace, tokens: Ints) -> Ints:
    """Return for each position a key of the namespace and all tokens up to it; never 0.

    A polynomial over the integers modulo 2^64, which numpy computes at once: two prompts that
    differ by accident have one key with a chance of about 2^-63. It is no defence against an author
    of prompts who looks for collisions.
    """
    root = hashlib.blake2b(namespace.encoded(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        powers = np.full(len(tokens), _MULTIPLIER, dtype=np.uint64).cumprod(dtype=np.uint64)
        inverse = np.uint64(pow(_MULTIPLIER, -1, 2**64))
        inverses = np.full(len(tokens), inverse, dtype=np.uint64).cumprod(dtype=np.uint64)
        mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
        sums = (mixed * inverses).cumsum(dtype=np.uint64) + np.uint64(int.from_bytes(root, "big"))
        keys = sums * powers
    signed: Ints = (keys >> np.uint64(1)).astype(np.int64) | np.int64(1)
    return signed


def _keys_of(known: _Known, positions: Ints, tokens: Ints) -> Ints:
    """Return the keys of tokens as written: 0 where they are not the prompt's."""
    keys = np.zeros(len(tokens), dtype=np.int64)
    count = int((positions < len(known.prompt)).sum())
    place = positions[:count]
    keys[:count] = np.where(known.prompt[place] == tokens[:count], known.keys[place], 0)
    return keys
