"""The simulator: the whole engine as a function of a scenario; one thread, simulated time.

It is the engine's own scheduler, pools, prefix cache and wire that run, phase by phase. Who acts
next is drawn from the seed at every yield point, or read from a schedule. After every turn all
books are checked, and the trace is asked whether anybody read a slot that was not his. (Method:
deterministic simulation as in FoundationDB and TigerBeetle's VOPR; each seed draws its own speeds,
as in swarm testing, Groce et al. 2012.)
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from engine.engine import Engine
from engine.phase import PHASES, Actor, Phase
from engine.request import AdmittedEvent, EndEvent, Event, Request, Sampling, TokenEvent
from engine.role import StepModel
from engine.sim_plan import Scenario, Side, SimRequest, Turn, draw_pace
from engine.trace import BadRead
from kvaudit.clock import SimulatedClock
from kvaudit.errors import SanitizerError

TURNS_DRAWN_MAX = 4_000  # then everybody takes turns in order
TURNS_MAX = 20_000  # a run that is not at rest by then is stuck
TURN_NS = 1_000_000
REPLAY_GAP_MAX = 1e-3  # nat; what a right answer may differ from its replay by
START = "start"

_ACTORS = {Side.DECODE: Actor.DECODE, Side.WIRE: Actor.WIRE, Side.PREFILL: Actor.PREFILL}
# What a turn ends at, by which coverage is counted.
YIELD_POINTS = (
    START, *(phase.value for phase in Phase),
    "client.submit", "client.cancel", "clock.jump", "operator.restart",
)  # fmt: skip
PAIRS = tuple((point, side.value) for point in YIELD_POINTS for side in Side)


class FailureKind(StrEnum):
    """What can go wrong in a run, the worst first."""

    FOREIGN_READ = "foreign-read"  # a slot that another tenant wrote
    STALE_READ = "stale-read"  # a slot that nobody or another request wrote, or for another place
    BROKEN_BOOKS = "broken-books"  # a page, row or copy is lost or held twice
    WRONG_ANSWER = "wrong-answer"  # not what the model says to this prompt by itself
    SANITIZER = "sanitizer"  # a violation, in a mode that raises
    STUCK = "stuck"  # the engine does not come to rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first thing that went wrong in a run.

    Attributes:
        kind: What.
        turn: At which turn, counted from 1.
        message: One sentence.
        request_id: The request that was struck; None if it is nobody's.
        read: The read that was out of order; None for the other kinds.
    """

    kind: FailureKind
    turn: int
    message: str
    request_id: str | None = None
    read: BadRead | None = None


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a client has heard of one request.

    Attributes:
        tokens, logprobs: The answer so far.
        status: How it ended; None while it has not.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run went.

    Attributes:
        failure: The first failure; None = the run is sound.
        turns: Everybody's turns, as they were taken.
        answers: By request, in the order of their arrival.
        pairs: (yield point, side that acted next) -> how often, where the point had done anything.
        digest: The same for two runs in which the same happened.
        simulated_ns: How much time passed in the run.
    """

    failure: Failure | None
    turns: tuple[Turn, ...]
    answers: dict[str, Answer]
    pairs: Counter[tuple[str, str]]
    digest: str
    simulated_ns: int


class Watcher(Protocol):
    """Looks on while a run goes, and changes nothing."""

    def after(self, simulation: "Simulation", turn: Turn, events: Sequence[Event]) -> None:
        """Look at the engine after a turn."""
        ...


class _Done(NamedTuple):
    """What a turn was: its yield point, and whether anything was done."""

    point: str
    did: bool
    events: Sequence[Event]


class Simulation:
    """One run of one scenario.

    Invariant: every request is unsent, open or ended; the engine knows the open ones.

    Attributes:
        scenario: What is run.
        engine: The engine as it stands.
        answers: What clients have heard, by request, sent ones only.
    """

    def __init__(
        self, scenario: Scenario, model: StepModel, *, watcher: Watcher | None = None
    ) -> None:
        self.scenario = scenario
        self.answers: dict[str, Answer] = {}
        self._clock = SimulatedClock()
        self._began_ns = self._clock.now_ns
        self.engine = Engine(scenario.config, model, clock=self._clock)
        self._model = model
        self._watcher = watcher
        self._requests = {request.request_id: request for request in scenario.requests}
        self._unsent = list(self._requests)
        self._open: dict[str, None] = {}
        self._phase = dict.fromkeys(Actor, 0)
        self._turns: list[Turn] = []
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._heard = hashlib.blake2b(digest_size=8)
        self._idle: set[str] = set()  # points at which nothing was done since anything was
        self._rng = random.Random(f"turns/{scenario.seed}")
        self._pace = draw_pace(self._rng)

    def run(self) -> Outcome:
        """Run to the first failure or to the end; raises nothing that the engine raises."""
        failure: Failure | None = None
        point, did = START, True
        while failure is None and (turn := self._next_turn()) is not None:
            if did and self.scenario.schedule is None:
                self._pairs[point, turn.side.value] += 1
            self._turns.append(turn)
            try:
                point, did, events = self._take(turn)
                failure = self._hear(events)
                self.engine.check_integrity()
            except Exception as error:  # whatever the engine trips over is a finding
                failure = self._broken(error)
            else:
                failure = self._bad_read() or failure
                if self._watcher is not None:
                    self._watcher.after(self, turn, events)
            self._idle = set() if did else self._idle | {point}
        return self._outcome(failure)

    def request(self, request_id: str) -> SimRequest:
        """Return one request of the scenario."""
        return self._requests[request_id]

    def text(self, token_ids: Sequence[int]) -> str:
        """Return tokens as text."""
        return self._model.decode(token_ids)

    @property
    def open(self) -> tuple[str, ...]:
        """Requests that were sent and have not ended."""
        return tuple(self._open)

    @property
    def turn(self) -> int:
        """Turns taken so far."""
        return len(self._turns)

    def _next_turn(self) -> Turn | None:
        if self._is_over():
            return None
        at = len(self._turns)
        if self.scenario.schedule is not None:
            if at < len(self.scenario.schedule):
                return self.scenario.schedule[at]
            return self._fair_turn(at - len(self.scenario.schedule))
        if at < TURNS_DRAWN_MAX:
            return self._drawn_turn()
        return self._fair_turn(at - TURNS_DRAWN_MAX)

    def _is_over(self) -> bool:
        is_done = not (self._unsent or self._open or self.engine.has_work)
        return is_done or len(self._turns) >= TURNS_MAX

    def _is_idle(self) -> bool:
        """Tell whether no phase has anything to do: only a client or time can change that."""
        return self._idle.issuperset(Phase)

    def _drawn_turn(self) -> Turn:
        weights = list(self._pace.weights)
        sides = list(Side)
        if not self._unsent and not self._open:
            weights[sides.index(Side.CLIENT)] = 0
        if self._is_idle() and (self._unsent or self._open):
            weights = [1.0 if side in (Side.CLIENT, Side.CLOCK) else 0.0 for side in sides]
        side = self._rng.choices(sides, weights)[0]
        return self._client_turn() if side is Side.CLIENT else Turn(side)

    def _client_turn(self) -> Turn:
        goes_away = self._rng.random() < self._pace.cancel_share
        if self._open and (goes_away or not self._unsent):
            if not goes_away:
                return Turn(Side.CLOCK)
            return Turn(Side.CLIENT, "cancel", self._rng.choice(list(self._open)))
        if self._unsent:
            return Turn(Side.CLIENT, "submit", self._unsent[0])
        return Turn(Side.CLOCK)

    def _fair_turn(self, at: int) -> Turn:
        """Everybody in order: a new request, all of decode's phases, the wire, prefill's."""
        if self._is_idle() and not self._unsent:
            return Turn(Side.CLOCK)
        round_ = [Side.CLIENT, *(side for side in _ACTORS for _ in PHASES[_ACTORS[side]])]
        side = round_[at % len(round_)]
        if side is not Side.CLIENT:
            return Turn(side)
        if self._unsent:
            return Turn(Side.CLIENT, "submit", self._unsent[0])
        return Turn(Side.DECODE)

    def _take(self, turn: Turn) -> _Done:
        self._clock.advance(TURN_NS)
        if turn.side is Side.CLIENT:
            return self._obey_client(turn)
        if turn.side is Side.CLOCK:
            until = self.engine.decode.next_timeout_ns()
            now = self.engine.clock.engine_ns
            self.engine.clock.skip(max(TURN_NS, (until or now) - now))
            return _Done("clock.jump", did=until is not None, events=())
        if turn.side is Side.OPERATOR:
            self.engine.reset()
            self._phase = dict.fromkeys(Actor, 0)
            for request_id in self._open:
                self.answers[request_id].status = 503
            self._open.clear()
            return _Done("operator.restart", did=True, events=())
        actor = _ACTORS[turn.side]
        phases = PHASES[actor]
        phase = phases[self._phase[actor]]
        self._phase[actor] = (self._phase[actor] + 1) % len(phases)
        events = self.engine.step([phase])
        return _Done(phase.value, did=self.engine.did_anything or bool(events), events=events)

    def _obey_client(self, turn: Turn) -> _Done:
        name = turn.request_id
        if turn.verb == "cancel":
            is_open = name in self._open
            self.engine.cancel(name)
            return _Done("client.cancel", did=is_open, events=())
        if name not in self._unsent:
            return _Done("client.submit", did=False, events=())
        self._unsent.remove(name)
        self._open[name] = None
        self.answers[name] = Answer()
        request = self._requests[name]
        self.engine.submit(
            Request(
                request_id=name,
                prompt_ids=request.prompt_ids,
                sampling=Sampling(max_tokens=request.max_tokens, ignore_eos=True),
                adapter=request.adapter,
                cache_salt=request.cache_salt,
                room=request.room,
                tenant=request.tenant,
            )
        )
        return _Done("client.submit", did=True, events=())

    def _hear(self, events: Sequence[Event]) -> Failure | None:
        failure: Failure | None = None
        for event in events:
            self._heard.update(repr(event).encode())
            answer = self.answers[event.request_id]
            assert answer.status is None, "a request that had ended was heard of again"
            match event:
                case TokenEvent():
                    assert event.index == len(answer.tokens), "a token was lost or told twice"
                    answer.tokens.append(event.token_id)
                    answer.logprobs.append(event.logprob)
                case EndEvent():
                    answer.status = event.status
                    del self._open[event.request_id]
                    failure = failure or self._wrong_answer(event.request_id)
                case AdmittedEvent():
                    pass
        return failure

    def _wrong_answer(self, request_id: str) -> Failure | None:
        """Compare an answer with the model's own, computed past every pool and cache."""
        answer, request = self.answers[request_id], self._requests[request_id]
        if not answer.tokens:
            return None
        replayed = self._model.replay_logprobs(
            request.prompt_ids, answer.tokens, adapter=request.adapter
        )
        gaps = [abs(one - other) for one, other in zip(replayed, answer.logprobs, strict=True)]
        if max(gaps) <= REPLAY_GAP_MAX:
            return None
        at = next(index for index, gap in enumerate(gaps) if gap > REPLAY_GAP_MAX)
        return Failure(
            kind=FailureKind.WRONG_ANSWER, turn=self.turn, request_id=request_id,
            message=f"output token {at} of `{request_id}` is {gaps[at]:.3g} nat away from what the"
            " model gives under its own prompt",
        )  # fmt: skip

    def _bad_read(self) -> Failure | None:
        trace = self.engine.trace
        read = trace.first_bad if trace is not None else None
        if read is None:
            return None
        owner = self.request(read.reader).tenant
        is_foreign = read.writer is not None and self.request(read.writer).tenant != owner
        return Failure(
            kind=FailureKind.FOREIGN_READ if is_foreign else FailureKind.STALE_READ,
            turn=self.turn, request_id=read.reader, read=read,
            message=f"{read.role} read slot {read.slot} of page {read.page} as position"
            f" {read.position} of `{read.reader}` of tenant {owner}, which {self._written(read)}",
        )  # fmt: skip

    def _written(self, read: BadRead) -> str:
        if read.writer is None:
            return "nobody had written"
        if read.writer == read.reader:
            return f"it had written itself for position {read.written_as}"
        tenant = self.request(read.writer).tenant
        return f"`{read.writer}` of tenant {tenant} had written for position {read.written_as}"

    def _broken(self, error: Exception) -> Failure:
        if isinstance(error, SanitizerError):
            return Failure(kind=FailureKind.SANITIZER, turn=self.turn, message=error.message)
        told = f"{type(error).__name__}: {error}"
        return Failure(kind=FailureKind.BROKEN_BOOKS, turn=self.turn, message=told)

    def _outcome(self, failure: Failure | None) -> Outcome:
        if failure is None and self.turn >= TURNS_MAX:
            failure = Failure(
                kind=FailureKind.STUCK, turn=self.turn,
                message=f"after {self.turn} turns the engine is not at rest;"
                f" open: {', '.join(self._open) or 'nothing'}",
            )  # fmt: skip
        self._heard.update(repr((failure, self._turns)).encode())
        return Outcome(
            failure=failure,
            turns=tuple(self._turns),
            answers=self.answers,
            pairs=self._pairs,
            digest=self._heard.hexdigest(),
            simulated_ns=self._clock.now_ns - self._began_ns,
        )


def simulate(scenario: Scenario, model: StepModel, *, watcher: Watcher | None = None) -> Outcome:
    """Run a scenario; a pure function of its arguments."""
    return Simulation(scenario, model, watcher=watcher).run()
