"""Exhaustive exploration: every interleaving of a small scenario, state by state.

The engine itself is the model: a state is a copy of it, a move is one phase of a role, one turn of
the wire, a client's act, or a timeout. Two states are one if nothing that happens from there on can
differ (`engine.state_key`).

A role may do any of its phases at any time, not only the next one in its order. That is more than
a real role can do, so no interleaving is missed, and it keeps the place in the order out of the
state. Moves that change nothing lead nowhere and are not followed.
"""

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.engine import Engine
from engine.phase import Phase
from engine.request import EndEvent, Event, Request, Sampling
from engine.role import StepModel
from engine.sim_plan import Scenario
from engine.state_key import state_key
from engine.trace import BadRead
from kvaudit.clock import SimulatedClock

STATES_MAX = 100_000
TOLD_EVERY = 500  # states

Path = tuple[str, ...]


class Leak(NamedTuple):
    """A read that was out of order, and the shortest way to it."""

    path: Path
    read: BadRead


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What was found.

    Attributes:
        states: Different states that were reached.
        moves: Moves that changed something.
        leaking: States right behind a read that was out of order; what lies behind them is not
            explored.
        ended: States in which every request has ended and nothing is left to do.
        first_leak: The nearest leak; None if there is none.
        is_whole: Whether every state was reached; False = the limit came first.
    """

    states: int
    moves: int
    leaking: int
    ended: int
    first_leak: Leak | None
    is_whole: bool


class World:
    """One state: the engine, and what the clients have yet to do.

    Args:
        scenario: Its requests come in their order, and each names its room.
        model: Of the scenario.
        cancellable: Requests whose client may go away, once.
    """

    def __init__(self, scenario: Scenario, model: StepModel, cancellable: Iterable[str]) -> None:
        assert all(one.room is not None for one in scenario.requests), "a room drawn by chance"
        self.engine = Engine(scenario.config, model, clock=SimulatedClock())
        self._model = model
        self._requests = tuple(
            Request(
                request_id=one.request_id,
                prompt_ids=one.prompt_ids,
                sampling=Sampling(max_tokens=one.max_tokens, ignore_eos=True),
                room=one.room,
            )
            for one in scenario.requests
        )
        self._unsent = 0
        self._open: frozenset[str] = frozenset()
        self._cancellable = frozenset(cancellable)

    def copied(self) -> "World":
        """Return a state of its own that is the same; what never changes is shared."""
        engine = self.engine
        shared: list[object] = [self._model, self._requests, *self._requests]
        shared += [engine.config, engine.reports, engine.clock._clock, engine._rng]
        for role in engine.roles:
            shared += [role.model, role.generator]
        return copy.deepcopy(self, {id(one): one for one in shared})

    def moves(self) -> Iterator[str]:
        """Name what may be done here, whether it changes anything or not."""
        if self._unsent < len(self._requests):
            yield "submit"
        yield from (f"cancel {name}" for name in sorted(self._cancellable & self._open))
        yield from (phase.value for phase in Phase)
        if self.engine.decode.next_timeout_ns() is not None:
            yield "timeout"

    def take(self, move: str) -> bool:
        """Do one move; returns whether it may have changed anything."""
        verb, _, name = move.partition(" ")
        if verb == "submit":
            request = self._requests[self._unsent]
            self._unsent += 1
            self._open |= {request.request_id}
            self.engine.submit(request)
        elif verb == "cancel":
            self._cancellable -= {name}
            self.engine.cancel(name)
        elif verb == "timeout":
            until = self.engine.decode.next_timeout_ns()
            assert until is not None, "a timeout of nobody"
            self.engine.clock.skip(max(0, until - self.engine.clock.engine_ns))
        else:
            events = self.engine.step([Phase(move)])
            self._hear(events)
            return self.engine.did_anything or bool(events)
        return True

    def key(self) -> Hashable:
        """Return what tells this state from all that are different."""
        may_cancel = self._cancellable & self._open
        return self._unsent, may_cancel, self._open, state_key(self.engine)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self._unsent == len(self._requests) and not self.engine.has_work

    def _hear(self, events: Sequence[Event]) -> None:
        self._open -= {event.request_id for event in events if isinstance(event, EndEvent)}


def explore(
    start: World,
    *,
    states_max: int = STATES_MAX,
    tell: Callable[[int], None] = lambda _: None,
) -> Exploration:
    """Reach every state behind `start`, nearest first; the books are checked in each.

    Args:
        start: Where to begin.
        states_max: Give up behind so many.
        tell: Gets the number of states now and then.

    Raises:
        AssertionError: The books of a state are broken.
    """
    seen = {start.key()}
    frontier: deque[tuple[World, Path]] = deque([(start, ())])
    moves = leaking = ended = 0
    first: Leak | None = None
    while frontier and len(seen) <= states_max:
        world, path = frontier.popleft()
        ended += world.is_over
        for move, after in _successors(world):
            moves += 1
            key = after.key()
            if key in seen:
                continue
            seen.add(key)
            if len(seen) % TOLD_EVERY == 0:
                tell(len(seen))
            after.engine.check_integrity()
            read = _bad_read(after)
            if read is None:
                frontier.append((after, (*path, move)))
                continue
            leaking += 1
            first = first or Leak((*path, move), read)
    return Exploration(
        states=len(seen), moves=moves, leaking=leaking, ended=ended, first_leak=first,
        is_whole=not frontier,
    )  # fmt: skip


def _successors(world: World) -> Iterator[tuple[str, World]]:
    """Give every state that one move leads to, but for moves that change nothing."""
    spare: World | None = None
    for move in world.moves():
        after = spare or world.copied()
        if after.take(move):
            spare = None
            yield move, after
        else:
            spare = after  # still the same state: good for the next move


def _bad_read(world: World) -> BadRead | None:
    trace = world.engine.trace
    return trace.first_bad if trace is not None else None
