"""The prefill role: admits prompts, computes them chunk by chunk, sends their KV to decode.

The places where the incident of August 2026 went wrong are marked with their fault; the numbers
are those of the chain in `docs/concepts`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from engine.attention import SequenceStep
from engine.faults import Site
from engine.phase import PHASES, Actor, Phase
from engine.prefix import Namespace, PrefixCache
from engine.request import ApiError, LegReport, PrefillState, Request, too_long
from engine.role import Role, RoleStep
from engine.scheduler import Chunk, plan_chunks
from engine.timer import EngineClock
from engine.transfer import KVPoll, MetadataRow, RoomKey, Wire, kv_digest

PLACEHOLDER_TOKEN = 0  # what SGLang 0.5.19 puts in place of a refused prompt


@dataclass(slots=True, kw_only=True, eq=False)
class PrefillLeg:
    """One request at prefill.

    Attributes:
        request: As it came.
        ordinal: Place in the order of arrival.
        key: Its room on the wire.
        tokens: The prompt as this role sees it; every page count here derives from it.
        state: Where it is.
        row: Row of the page table; None while it has no page.
        computed: Tokens whose KV is there, cached ones included.
        cached: Tokens taken from the prefix cache.
        pages_sent: Pages posted on the wire.
        to_finish: An abort that waits to be read when the result is processed.
        finish_reason: How the leg ended.
    """

    request: Request
    ordinal: int
    key: RoomKey
    tokens: tuple[int, ...]
    state: PrefillState = PrefillState.BOOTSTRAP
    row: int | None = None
    computed: int = 0
    cached: int = 0
    pages_sent: int = 0
    to_finish: ApiError | None = None
    finish_reason: str | None = None

    @property
    def length(self) -> int:
        """Prompt length as this role sees it, in tokens."""
        return len(self.tokens)


class PrefillStep(NamedTuple):
    """What one step did: anything at all, whether it computed, and whom it admitted."""

    did: bool
    computed: bool
    admitted: tuple[str, ...]


class PrefillWorker:
    """All prefill legs.

    Invariant: every page held in the pool is held once for each leg that names it and once for the
    prefix cache if it does.
    """

    def __init__(
        self, role: Role, wire: Wire, clock: EngineClock, reports: deque[LegReport]
    ) -> None:
        self._role = role
        self._config = role.config
        self._faults = role.config.faults
        self._wire = wire
        self._clock = clock
        self._reports = reports
        self._legs: dict[int, PrefillLeg] = {}  # by ordinal, in order of arrival
        self.prefix = PrefixCache(
            role.pool,
            role.config.page_size,
            hash_bits=role.config.hash_bits,
            faults=role.config.faults,
        )

    def door(self, request: Request, ordinal: int) -> ApiError | None:
        """Return why the request is refused before anything is reserved; None = let in."""
        length, limit = len(request.prompt_ids), self._config.prefill_limit
        if length < limit:
            return None
        if self._faults.strikes(Site.PREFILL_TRUNCATION, ordinal):  # F04: cut, here alone
            return None
        if self._faults.strikes(Site.PREFILL_DOOR, ordinal):  # F01: refused, yet let in
            return None
        return too_long(role=self._role.name, length=length, limit=limit)

    def add(self, request: Request, ordinal: int, key: RoomKey) -> None:
        """Take a request in; it waits until decode has published its pages."""
        leg = PrefillLeg(request=request, ordinal=ordinal, key=key, tokens=request.prompt_ids)
        if leg.length >= self._config.prefill_limit:
            self._keep_over_limit(leg)
        # The queue's own capacity check: after F02 it sees one token, and passes.
        assert self._config.pages(leg.length) <= self._role.pool.num_pages, "can never be placed"
        self._legs[ordinal] = leg

    def cancel(self, ordinal: int) -> None:
        """Stop a leg whose room has failed, and free its pages."""
        leg = self._legs.get(ordinal)
        if leg is not None:
            self._end(leg, "abort", status=499)

    def step(self, phases: Iterable[Phase] = PHASES[Actor.PREFILL]) -> PrefillStep:
        """Let decode's failures in, admit, compute one batch of chunks, send what is done."""
        did = computed = False
        admitted: list[PrefillLeg] = []
        for phase in phases:
            if phase is Phase.PREFILL_FOLLOW:
                did |= self._follow_wire()
            elif phase is Phase.PREFILL_ADMIT:
                admitted += self._admit()
            else:
                computed |= self._compute_chunks()
        return PrefillStep(
            did=did or bool(admitted) or computed,
            computed=computed,
            admitted=tuple(leg.request.request_id for leg in admitted),
        )

    def state(self, ordinal: int) -> PrefillState:
        """Return where a leg is; DONE when it is gone."""
        leg = self._legs.get(ordinal)
        return PrefillState.DONE if leg is None else leg.state

    def length(self, ordinal: int) -> int:
        """Return the prompt length of a live leg as this role counts it, in tokens."""
        return self._legs[ordinal].length

    @property
    def has_work(self) -> bool:
        """Whether any leg is left."""
        return bool(self._legs)

    def check_integrity(self) -> None:
        """Assert that pool, table and legs agree on who holds what."""
        self._role.pool.check_integrity()
        self._role.table.check_integrity()
        self.prefix.check_integrity()
        expected = dict.fromkeys(range(self._role.pool.num_pages), 0)
        for page in self.prefix.held_pages:
            expected[page] += 1
        for leg in self._legs.values():
            for page in self._pages(leg):
                expected[page] += 1
        for page, count in expected.items():
            assert self._role.pool.holders(page) == count, f"prefill page {page} is miscounted"

    def _keep_over_limit(self, leg: PrefillLeg) -> None:
        limit = self._config.prefill_limit
        if self._faults.strikes(Site.PREFILL_TRUNCATION, leg.ordinal):
            leg.tokens = leg.tokens[:limit]  # F04: decode keeps the length that was sent
            return
        # F01: the refusal does not return. F02: one placeholder stands in for the prompt, so all
        # that follows here counts one token and one page; the abort goes where nobody reads it.
        leg.to_finish = too_long(role=self._role.name, length=leg.length, limit=limit)
        leg.tokens = (PLACEHOLDER_TOKEN,)

    def _follow_wire(self) -> bool:
        did = False
        for leg in list(self._legs.values()):
            poll = self._wire.poll(leg.key)
            if leg.state == PrefillState.BOOTSTRAP and poll == KVPoll.WAITING_FOR_INPUT:
                leg.state = PrefillState.WAITING
                did = True
            elif poll == KVPoll.FAILED:
                self._end(leg, "abort", status=500)
                did = True
            elif poll == KVPoll.SUCCESS:
                self._finish_transfer(leg)
                did = True
        return did

    def _admit(self) -> list[PrefillLeg]:
        admitted: list[PrefillLeg] = []
        for leg in self._legs.values():
            if leg.state != PrefillState.WAITING:
                continue
            if not self._place(leg):
                break  # first come, first served
            admitted.append(leg)
        return admitted

    def _place(self, leg: PrefillLeg) -> bool:
        role = self._role
        if role.table.num_free == 0:
            return False
        hit: tuple[int, ...] = ()
        if self._config.prefix_cache:
            hit = self.prefix.match(self._namespace(leg), leg.tokens)
        needed = self._config.pages(leg.length) - len(hit)
        if role.pool.num_free < needed:
            self.prefix.evict(needed - role.pool.num_free)
        if role.pool.num_free < needed:
            role.pool.release(hit)
            return False
        leg.row = role.table.acquire(hit + role.pool.allocate(needed))
        leg.cached = leg.computed = len(hit) * self._config.page_size
        leg.state = PrefillState.RUNNING
        return True

    def _compute_chunks(self) -> bool:
        running = [leg for leg in self._legs.values() if leg.state == PrefillState.RUNNING]
        chunks = plan_chunks(running, self._config.chunk_tokens)
        if chunks:
            self._compute(running, chunks)
        return bool(chunks)

    def _compute(self, running: list[PrefillLeg], chunks: Iterable[Chunk]) -> None:
        chosen = [(running[chunk.leg], chunk) for chunk in chunks]
        logits = self._role.forward(
            [
                RoleStep(
                    ordinal=leg.ordinal,
                    cached_tokens=leg.cached,
                    step=SequenceStep(
                        tokens=leg.tokens[chunk.start : chunk.end],
                        first_position=chunk.start,
                        page_table=self._pages(leg),
                        kv_len=chunk.end,
                        wants_logits=chunk.end == leg.length,
                        adapter=leg.request.adapter,
                    ),
                )
                for leg, chunk in chosen
            ]
        )
        row = 0
        for leg, chunk in chosen:
            leg.computed = chunk.end
            if chunk.end < leg.length:
                self._send_finished_pages(leg)
            else:
                self._process_result(leg, logits[row])
                row += 1

    def _process_result(self, leg: PrefillLeg, logits: torch.Tensor) -> None:
        # An aborted result is retired: no hand-off, no insert. F01: the abort is not read here,
        # since the result looks at the finish reason and the abort stands elsewhere.
        if leg.to_finish is not None and not self._faults.strikes(Site.ABORT_READING, leg.ordinal):
            self._wire.abort_sender(leg.key)
            self._end(leg, "abort", status=leg.to_finish.status)
            return
        sampled = self._role.sample(leg.request, 0, logits)
        if self._config.prefix_cache:
            self.prefix.insert(self._namespace(leg), leg.tokens, self._pages(leg))
        self._send_last_chunk(leg, sampled.token_id, sampled.logprob)
        leg.state = PrefillState.SENDING

    def _send_finished_pages(self, leg: PrefillLeg) -> None:
        done = leg.computed // self._config.page_size
        if done > leg.pages_sent:
            self._wire.post(
                leg.key, self._pages(leg)[leg.pages_sent : done], first_page=leg.pages_sent
            )
            leg.pages_sent = done

    def _send_last_chunk(self, leg: PrefillLeg, token_id: int, logprob: float) -> None:
        # "Last" by this role's own count: for a placeholder that is page 1 of 1.
        pages = self._pages(leg)
        digest = None
        sanitizer = self._role.sanitizer
        is_compared = sanitizer is not None and sanitizer.wants_digest(leg.ordinal)
        if is_compared or self._faults.has_fix("checksum"):
            digest = kv_digest(
                self._role.cache, pages, leg.length,
                page_size=self._config.page_size, granularity=self._config.granularity,
            )  # fmt: skip
        row = MetadataRow(
            room=leg.key.room, first_token=token_id, first_logprob=logprob,
            tokens_sent=leg.length, cached_tokens=leg.cached, digest=digest,
        )  # fmt: skip
        self._wire.post(leg.key, pages[leg.pages_sent :], first_page=leg.pages_sent, metadata=row)
        leg.pages_sent = len(pages)

    def _finish_transfer(self, leg: PrefillLeg) -> None:
        # F03: a finished transfer is a success of one token, whatever was to be aborted.
        if leg.to_finish is not None and not self._faults.strikes(Site.ABORT_STATUS, leg.ordinal):
            self._end(leg, "abort", status=leg.to_finish.status)
        else:
            self._end(leg, "length", status=200)

    def _end(self, leg: PrefillLeg, finish_reason: str, *, status: int) -> None:
        leg.state = PrefillState.DONE
        leg.finish_reason = finish_reason
        self._reports.append(
            LegReport(
                request_id=leg.request.request_id,
                role=self._role.name,
                room=leg.key.room,
                input_tokens=leg.length,
                finish_reason=finish_reason,
                status=status,
                at_unix_ns=self._clock.unix_ns(),
                message=leg.to_finish.message if leg.to_finish is not None else "",
                pages_sent=leg.pages_sent,
            )
        )
        assert self._wire.is_read(leg.key), "pages are freed while the wire still reads them"
        if leg.row is not None:
            self._role.pool.release(self._role.table.release(leg.row))
        self._wire.close(leg.key, "prefill")
        del self._legs[leg.ordinal]

    def _pages(self, leg: PrefillLeg) -> tuple[int, ...]:
        return () if leg.row is None else self._role.table.pages(leg.row)

    def _namespace(self, leg: PrefillLeg) -> Namespace:
        namespace = namespace_of(leg.request, self._config.model)
        if self._faults.strikes(Site.PREFIX_ADAPTER, leg.ordinal):  # F24: one key for all adapters
            return replace(namespace, adapter=None)
        return namespace


def namespace_of(request: Request, model: str) -> Namespace:
    """Return what a request's cached pages may be shared under."""
    return Namespace(model=model, adapter=request.adapter, salt=request.cache_salt)
