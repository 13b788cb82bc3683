"""The decode role: reserves pages for whole prompts, takes hand-offs, and generates.

A decode leg keeps the length that the client sent. Whether the KV behind it is this request's is
known only through the wire, and through the checks that are on.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from engine.attention import SequenceStep
from engine.faults import Site
from engine.phase import PHASES, Actor, Phase
from engine.request import (
    ApiError,
    DecodeState,
    EndEvent,
    Event,
    LegReport,
    Request,
    TokenEvent,
    Usage,
    handoff_failed,
    too_long,
)
from engine.role import Role, RoleStep
from engine.scheduler import choose_retraction, may_reserve
from engine.timer import EngineClock
from engine.transfer import KVPoll, RoomKey, Wire, check_handoff


class SavedPages(NamedTuple):
    """Pages of a retracted request, kept on the host: how many, their content and their tags."""

    num_pages: int
    values: torch.Tensor
    tags: Any


class Leaving(NamedTuple):
    """A cancelled request whose last step still runs: its row, and the pages that the row named."""

    row: int
    pages: tuple[int, ...]
    has_row: bool


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeLeg:
    """One request at decode.

    Attributes:
        request: As it came.
        ordinal: Place in the order of arrival.
        key: Its room on the wire.
        kv_len: Tokens whose KV this role believes to have: first the whole prompt, then more.
        answer_max: Output tokens at most, what the role can hold considered.
        state: Where it is.
        row: Row of the page table; None while it has no page.
        published_ns: Engine time when its pages were published.
        outputs: Tokens of the answer so far.
        cached_tokens: As prefill told.
        saved: Its pages while it is retracted.
        retractions: How often its pages were taken back.
    """

    request: Request
    ordinal: int
    key: RoomKey
    kv_len: int
    answer_max: int
    state: DecodeState = DecodeState.QUEUED
    row: int | None = None
    published_ns: int = 0
    outputs: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    saved: SavedPages | None = None
    retractions: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Prompt length as this role counts it, in tokens."""
        return len(self.request.prompt_ids)


class DecodeStep(NamedTuple):
    """What one step did: anything at all, and the events it made."""

    did: bool
    events: tuple[Event, ...]


class DecodeWorker:
    """All decode legs, and the pages that wait until a writer is done with them.

    Invariant: every page held in the pool belongs to one leg, is deferred, or leaves with its
    cancelled request; never two of these.
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
        self._legs: dict[int, DecodeLeg] = {}  # by ordinal, in order of arrival
        self._deferred: list[tuple[RoomKey, tuple[int, ...]]] = []
        self._leaving: list[Leaving] = []
        self._events: list[Event] = []

    def door(self, request: Request) -> ApiError | None:
        """Return why the request is refused before anything is reserved; None = let in."""
        length, limit = len(request.prompt_ids), self._config.decode_limit
        if length < limit:
            return None
        return too_long(role=self._role.name, length=length, limit=limit)

    def add(self, request: Request, ordinal: int, key: RoomKey) -> None:
        """Take a request in; pages for its whole prompt are reserved when there are enough."""
        length = len(request.prompt_ids)
        self._legs[ordinal] = DecodeLeg(
            request=request,
            ordinal=ordinal,
            key=key,
            kv_len=length,
            answer_max=min(request.sampling.max_tokens, self._config.total_max - length),
        )

    def cancel(self, ordinal: int) -> None:
        """Stop a leg; pages under a write that is still running go back when it is over."""
        leg = self._legs.get(ordinal)
        if leg is not None:
            if leg.state in (DecodeState.QUEUED, DecodeState.TRANSFER):
                self._wire.fail(leg.key, "the client went away")
            self._report(leg, "abort", status=499, message="the client went away")
            if self._config.overlap and leg.state == DecodeState.RUNNING:
                self._leave(leg)
            else:
                self._let_go(leg)

    def step(self, phases: Iterable[Phase] = PHASES[Actor.DECODE]) -> DecodeStep:
        """Free what has drained, generate one token each, take hand-offs, reserve."""
        acts = {
            Phase.DECODE_SWEEP: self._sweep_deferred,
            Phase.DECODE_GENERATE: self._generate,
            Phase.DECODE_FOLLOW: self._follow_wire,
            Phase.DECODE_RESUME: self._resume,
            Phase.DECODE_RESERVE: self._reserve,
        }
        did = False
        for phase in phases:
            did |= acts[phase]()
        events, self._events = self._events, []
        return DecodeStep(did=did, events=tuple(events))

    def state(self, ordinal: int) -> DecodeState:
        """Return where a leg is; DONE when it is gone."""
        leg = self._legs.get(ordinal)
        return DecodeState.DONE if leg is None else leg.state

    def pages(self, ordinal: int) -> tuple[int, ...]:
        """Return the pages of a live leg, in logical order."""
        return self._pages(self._legs[ordinal])

    @property
    def has_work(self) -> bool:
        """Whether any leg or deferred page is left."""
        return bool(self._legs or self._deferred)

    def next_timeout_ns(self) -> int | None:
        """Return the engine time at which the next wait ends; None if nothing waits."""
        return min(
            (
                leg.published_ns + self._config.waiting_timeout_ns
                for leg in self._legs.values()
                if self._is_waiting(leg)
            ),
            default=None,
        )

    def check_integrity(self) -> None:
        """Assert that pool, table, legs and deferred pages agree on who holds what."""
        self._role.pool.check_integrity()
        self._role.table.check_integrity()
        rows = [leg.row for leg in self._legs.values() if leg.row is not None]
        held = [page for row in rows for page in self._role.table.owned(row)]
        held += [page for _, pages in self._deferred for page in pages]
        held += [page for leaving in self._leaving for page in leaving.pages]
        assert len(held) == len(set(held)), "a decode page has two owners"
        assert len(held) + self._role.pool.num_free == self._role.pool.num_pages, "a page is lost"
        for page in held:
            assert self._role.pool.holders(page) == 1, f"decode page {page} is miscounted"

    def _sweep_deferred(self) -> bool:
        waiting = [entry for entry in self._deferred if not self._wire.is_drained(entry[0])]
        did = len(waiting) < len(self._deferred)
        for key, pages in self._deferred:
            if self._wire.is_drained(key):
                self._role.pool.release(pages)
                self._wire.close(key, "decode")
        self._deferred = waiting
        return did

    def _follow_wire(self) -> bool:
        did = False
        for leg in list(self._legs.values()):
            if leg.state != DecodeState.TRANSFER:
                continue
            poll = self._wire.poll(leg.key)
            if self._wire.has_arrived(leg.key):
                self._commit(leg)
            elif poll == KVPoll.FAILED:
                reason = self._wire.reason(leg.key)
                self._fail(
                    leg, handoff_failed("kv_transfer_failed", f"KV transfer failed: {reason}")
                )
            elif self._is_waiting(leg) and self._is_late(leg):
                self._time_out(leg)
            else:
                continue
            did = True
        return did

    def _is_waiting(self, leg: DecodeLeg) -> bool:
        return (
            leg.state == DecodeState.TRANSFER
            and self._wire.poll(leg.key) == KVPoll.WAITING_FOR_INPUT
        )

    def _is_late(self, leg: DecodeLeg) -> bool:
        return self._clock.engine_ns >= leg.published_ns + self._config.waiting_timeout_ns

    def _time_out(self, leg: DecodeLeg) -> None:
        message = (
            f"Request timed out after {self._config.waiting_timeout_s:g}s in"
            " KVPoll.WaitingForInput: no KV transfer came from prefill (waiting timeout)."
        )
        self._wire.fail(leg.key, message)
        self._fail(leg, handoff_failed("kv_transfer_timeout", message))

    def _commit(self, leg: DecodeLeg) -> None:
        # The room number is all that is looked at, unless a fix adds a check: `kv_len` stays the
        # length that this role reserved, whatever prefill has sent (F01, F02, F04).
        row = self._wire.metadata(leg.key)
        error = check_handoff(
            self._config,
            self._role.cache,
            room=leg.key.room,
            row=row,
            pages_arrived=self._wire.pages_arrived(leg.key),
            pages=self._pages(leg),
            reserved_tokens=leg.kv_len,
            ordinal=leg.ordinal,
            sanitizer=self._role.sanitizer,
        )
        if error is not None:
            # A sender that has computed all of it can send it again; one that has computed less
            # (F01, F04) has no more to send.
            if row.tokens_sent != leg.kv_len or not self._wire.resend(leg.key):
                self._wire.refuse(leg.key, error.message)
                self._fail(leg, error)
            return
        self._wire.accept(leg.key)
        leg.cached_tokens = row.cached_tokens
        if self._faults.strikes(Site.KV_LENGTH, leg.ordinal):  # F33: whole pages, tail and all
            self._round_up(leg)
        leg.state = DecodeState.RUNNING
        self._wire.close(leg.key, "decode")
        self._emit(leg, row.first_token, row.first_logprob)

    def _resume(self) -> bool:
        did = False
        for leg in sorted(
            (leg for leg in self._legs.values() if leg.state == DecodeState.RETRACTED),
            key=lambda leg: leg.ordinal,
        ):
            needed = self._config.pages(leg.kv_len + 1)
            if self._role.table.num_free == 0 or self._role.pool.num_free < needed:
                did |= self._end_last_steps_if_idle()
                break
            self._restore(leg, needed)
            did = True
        return did

    def _reserve(self) -> bool:
        if any(leg.state == DecodeState.RETRACTED for leg in self._legs.values()):
            return False  # those that were taken back come first
        did = False
        for leg in list(self._legs.values()):
            if leg.state != DecodeState.QUEUED:
                continue
            placed = [other for other in self._legs.values() if other.row is not None]
            pages = self._config.pages(leg.kv_len)
            if self._role.table.num_free == 0 or not may_reserve(
                pages=pages,
                free=self._role.pool.num_free,
                running=len(placed),
                is_alone=not placed,
            ):
                did |= self._end_last_steps_if_idle()
                break  # first come, first served
            leg.row = self._role.table.acquire(self._role.pool.allocate(pages))
            leg.state = DecodeState.TRANSFER
            leg.published_ns = self._clock.engine_ns
            self._wire.publish(leg.key, self._pages(leg))
            did = True
        return did

    def _generate(self) -> bool:
        batch = self._make_room()
        if not batch:
            return False
        self._end_last_steps()
        logits = self._role.forward(
            [
                RoleStep(
                    ordinal=leg.ordinal,
                    cached_tokens=leg.cached_tokens,
                    step=SequenceStep(
                        tokens=(leg.outputs[-1],),
                        first_position=leg.kv_len,
                        page_table=self._pages(leg),
                        kv_len=leg.kv_len + 1,
                        wants_logits=True,
                        adapter=leg.request.adapter,
                    ),
                )
                for leg in batch
            ]
        )
        for leg, row in zip(batch, logits, strict=True):
            leg.kv_len += 1
            sampled = self._role.sample(leg.request, len(leg.outputs), row)
            self._emit(leg, sampled.token_id, sampled.logprob)
        return True

    def _make_room(self) -> list[DecodeLeg]:
        """Give each running leg a page for its next token, taking pages back where none is left."""
        for leg in list(self._legs.values()):
            while leg.state == DecodeState.RUNNING and self._needs_page(leg):
                if self._role.pool.num_free > 0:
                    assert leg.row is not None, "a running leg without a row"
                    self._role.table.extend(leg.row, self._role.pool.allocate(1))
                else:
                    self._retract(choose_retraction(self._running()))
        return self._running()

    def _running(self) -> list[DecodeLeg]:
        return [leg for leg in self._legs.values() if leg.state == DecodeState.RUNNING]

    def _needs_page(self, leg: DecodeLeg) -> bool:
        assert leg.row is not None, "a running leg without a row"
        return leg.kv_len + 1 > self._role.table.capacity(leg.row)

    def _retract(self, leg: DecodeLeg) -> None:
        assert leg.row is not None, "a running leg without a row"
        pages = self._role.table.release(leg.row)
        index = torch.tensor(pages, dtype=torch.int64, device=self._role.cache.tensor.device)
        values = self._role.cache.tensor.index_select(0, index).cpu()
        watch = self._role.watch
        tags = watch.take(self._role.name, pages) if watch is not None else None
        leg.saved = SavedPages(num_pages=len(pages), values=values, tags=tags)
        leg.row = None
        leg.state = DecodeState.RETRACTED
        leg.retractions += 1
        self._role.pool.release(pages)

    def _restore(self, leg: DecodeLeg, needed: int) -> None:
        saved = leg.saved
        assert saved is not None, "a retracted leg without its pages"
        pages = self._role.pool.allocate(max(needed, saved.num_pages))
        target = self._role.cache.tensor
        index = torch.tensor(pages[: saved.num_pages], dtype=torch.int64, device=target.device)
        target.index_copy_(0, index, saved.values.to(target.device))
        if saved.tags is not None and self._role.watch is not None:
            self._role.watch.put(self._role.name, pages[: saved.num_pages], saved.tags)
        leg.row = self._role.table.acquire(pages)
        leg.saved = None
        leg.state = DecodeState.RUNNING

    def _emit(self, leg: DecodeLeg, token_id: int, logprob: float) -> None:
        leg.outputs.append(token_id)
        at_ns = self._clock.monotonic_ns()
        self._events.append(
            TokenEvent(
                request_id=leg.request.request_id,
                index=len(leg.outputs) - 1,
                token_id=token_id,
                logprob=logprob,
                at_ns=at_ns,
            )
        )
        is_end = token_id in self._role.model.eos_token_ids
        if is_end and not leg.request.sampling.ignore_eos:
            self._answer(leg, "stop")
        elif len(leg.outputs) >= leg.answer_max:
            self._answer(leg, "length")

    def _answer(self, leg: DecodeLeg, finish_reason: str) -> None:
        self._events.append(
            EndEvent(
                request_id=leg.request.request_id,
                at_ns=self._clock.monotonic_ns(),
                status=200,
                finish_reason=finish_reason,
                usage=Usage(
                    prompt_tokens=leg.prompt_tokens,
                    completion_tokens=len(leg.outputs),
                    cached_tokens=leg.cached_tokens,
                ),
            )
        )
        self._report(leg, finish_reason, status=200)
        self._let_go(leg)

    def _fail(self, leg: DecodeLeg, error: ApiError) -> None:
        self._events.append(
            EndEvent(
                request_id=leg.request.request_id,
                at_ns=self._clock.monotonic_ns(),
                status=error.status,
                error=error,
            )
        )
        self._report(leg, "abort", status=error.status, message=error.message)
        self._let_go(leg)

    def _report(
        self, leg: DecodeLeg, finish_reason: str, *, status: int, message: str = ""
    ) -> None:
        self._reports.append(
            LegReport(
                request_id=leg.request.request_id,
                role=self._role.name,
                room=leg.key.room,
                input_tokens=leg.prompt_tokens,
                finish_reason=finish_reason,
                status=status,
                at_unix_ns=self._clock.unix_ns(),
                message=message,
            )
        )

    def _let_go(self, leg: DecodeLeg) -> None:
        """Give row and pages back; pages that a writer may still reach wait until it drained."""
        del self._legs[leg.ordinal]
        has_room = leg.state in (DecodeState.QUEUED, DecodeState.TRANSFER)
        leg.state = DecodeState.DONE
        pages = self._role.table.release(leg.row) if leg.row is not None else ()
        is_reached = has_room and not self._wire.is_drained(leg.key)
        # F13: the pages go to the next request, and the writer goes on.
        if is_reached and not self._faults.strikes(Site.DECODE_RELEASE, leg.ordinal):
            self._deferred.append((leg.key, pages))
            return
        self._role.pool.release(pages)
        if has_room:
            self._wire.close(leg.key, "decode")

    def _leave(self, leg: DecodeLeg) -> None:
        """Let go of a leg that a step under way still uses: row and pages stay until it is over."""
        assert leg.row is not None, "a running leg without a row"
        del self._legs[leg.ordinal]
        leg.state = DecodeState.DONE
        pages = self._role.table.owned(leg.row)
        # F20: the row changes hands at once; the step that was under way still writes it.
        has_row = not self._faults.strikes(Site.ROW_RELEASE, leg.ordinal)
        if not has_row:
            self._role.table.release(leg.row)
        self._leaving.append(Leaving(leg.row, pages, has_row))

    def _end_last_steps(self) -> None:
        """End the steps that cancelled requests took part in: the next one is about to begin."""
        for row, pages, has_row in self._leaving:
            if has_row:
                self._role.table.release(row)
            else:
                self._role.table.overwrite(row, pages)
            self._role.pool.release(pages)
        self._leaving.clear()

    def _end_last_steps_if_idle(self) -> bool:
        """End them where no next step will come, so that what they hold can be given out."""
        if not self._leaving or self._running():
            return False
        self._end_last_steps()
        return True

    def _round_up(self, leg: DecodeLeg) -> None:
        leg.kv_len = self._config.pages(leg.kv_len) * self._config.page_size
        leg.answer_max = max(1, min(leg.answer_max, self._config.total_max - leg.kv_len))

    def _pages(self, leg: DecodeLeg) -> tuple[int, ...]:
        return () if leg.row is None else self._role.table.pages(leg.row)
