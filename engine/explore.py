"""Exhaustive exploration: every interleaving of a small scenario, state by state.

The engine itself is the model: a state is a copy of it, a move is one phase of a role, one turn of
the wire, a client's act or a timeout. Two states are one if they differ only in names of rooms, in
time that nobody waits for, and in what was logged.

A role may do any of its phases at any time, not only the next one in its order. That is more than
a real role can do, so no interleaving is missed; and it is what keeps the place in the order out of
the state. Moves that change nothing lead nowhere and are not followed.
"""

import copy
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.engine import Engine
from engine.phase import Phase
from engine.request import EndEvent, Request, Sampling
from engine.role import StepModel
from engine.sim_plan import Scenario
from engine.state_key import state_key
from engine.trace import BadRead
from kvaudit.clock import SimulatedClock

STATES_MAX = 200_000

Path = tuple[str, ...]


class Leak(NamedTuple):
    """A state in which a request has read what was not his, and the shortest way there."""

    path: Path
    read: BadRead


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What was found.

    Attributes:
        states: Different states that were reached.
        moves: Moves that changed something.
        leaking: States right behind a read that was out of order; nothing is explored behind them.
        ended: States in which every request has ended and every page is back.
        first_leak: The nearest leak; None if there is none.
        is_whole: Whether every state was reached; False = `STATES_MAX` came first.
    """

    states: int
    moves: int
    leaking: int
    ended: int
    first_leak: Leak | None
    is_whole: bool


class _World:
    """One state: the engine, and what the clients have yet to do."""

    def __init__(self, scenario: Scenario, model: StepModel, cancellable: frozenset[str]) -> None:
        self.scenario = scenario
        self._model = model
        self.engine = Engine(scenario.config, model, clock=SimulatedClock())
        self.unsent = tuple(request.request_id for request in scenario.requests)
        self.cancellable = cancellable
        self.open: frozenset[str] = frozenset()

    def copied(self) -> "_World":
        """Return a state of its own that is the same; what never changes is shared."""
        engine = self.engine
        shared = [self.scenario, self._model, engine.config, engine.reports, engine._rng]
        for role in engine.roles:
            shared += [role.model, role.generator]
        return copy.deepcopy(self, {id(one): one for one in shared})

    def moves(self) -> Iterator[str]:
        """Name what may be done here, whether it changes anything or not."""
        if self.unsent:
            yield f"submit {self.unsent[0]}"
        yield from (f"cancel {name}" for name in sorted(self.cancellable & self.open))
        yield from (phase.value for phase in Phase)
        if self.engine.decode.next_timeout_ns() is not None:
            yield "timeout"

    def take(self, move: str) -> None:
        """Do one move."""
        verb, _, name = move.partition(" ")
        if verb == "submit":
            self._submit(name)
        elif verb == "cancel":
            self.cancellable -= {name}
            self.engine.cancel(name)
            self._hear([])
        elif verb == "timeout":
            until = self.engine.decode.next_timeout_ns()
            assert until is not None, "a timeout of nobody"
            self.engine.clock.skip(max(0, until - self.engine.clock.engine_ns))
        else:
            self._hear(self.engine.step([Phase(move)]))

    def _submit(self, name: str) -> None:
        request = next(one for one in self.scenario.requests if one.request_id == name)
        self.unsent = self.unsent[1:]
        self.open |= {name}
        self.engine.submit(
            Request(
                request_id=name,
                prompt_ids=request.prompt_ids,
                sampling=Sampling(max_tokens=request.max_tokens, ignore_eos=True),
                room=request.room,
            )
        )

    def _hear(self, events: list) -> None:  # type: ignore[type-arg]
        self.open -= {event.request_id for event in events if isinstance(event, EndEvent)}

    def key(self) -> Hashable:
        return (self.unsent, self.cancellable & self.open, self.open, state_key(self.engine))


def explore(
    scenario: Scenario,
    model: StepModel,
    *,
    cancellable: frozenset[str],
    states_max: int = STATES_MAX,
) -> Exploration:
    start = _World(scenario, model, cancellable)
    seen = {start.key()}
    frontier: deque[tuple[_World, Path]] = deque([(start, ())])
    moves = leaking = ended = 0
    first = None
    while frontier:
        world, path = frontier.popleft()
        here = world.key()
        fresh = None
        if not (world.unsent or world.engine.has_work):
            ended += 1
        for move in list(world.moves()):
            after = fresh or world.copied()
            after.take(move)
            after.engine.check_integrity()
            key = after.key()
            if key == here:
                fresh = after
                continue
            fresh = None
            moves += 1
            if key in seen:
                continue
            seen.add(key)
            if after.engine.trace.first_bad is not None:
                leaking += 1
                first = first or Leak((*path, move), after.engine.trace.first_bad)
                continue
            frontier.append((after, (*path, move)))
        if len(seen) > states_max:
            break
    return Exploration(
        states=len(seen),
        moves=moves,
        leaking=leaking,
        ended=ended,
        first_leak=first,
        is_whole=not frontier,
    )
