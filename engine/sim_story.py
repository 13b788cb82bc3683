"""The story of a run: what happened, turn by turn, in numbered sentences.

The teller looks at the engine after each turn and says what is different; turns in which nothing
changed are passed over.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from engine.request import DecodeState, EndEvent, Event, PrefillState, TokenEvent
from engine.role import StepModel
from engine.sim import FailureKind, Outcome, Simulation
from engine.sim_plan import Scenario, Side, Turn

EXCERPT = 24  # characters of a prompt that are shown
TOKENS_TOLD_MAX = 40  # sentences on single tokens; more are passed over


class Story(NamedTuple):
    """A run and its sentences, without numbers."""

    outcome: Outcome
    sentences: tuple[str, ...]


class _Leg(NamedTuple):
    """Where a request was after a turn."""

    prefill: PrefillState
    decode: DecodeState
    pages: tuple[int, ...]


_NOWHERE = _Leg(PrefillState.DONE, DecodeState.DONE, ())


class _Teller:
    """A watcher that makes sentences of what changed."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self._legs: dict[str, _Leg] = {}
        self._owners: dict[int, frozenset[str]] = {}
        self._told_tokens = 0

    def after(self, simulation: Simulation, turn: Turn, events: Sequence[Event]) -> None:
        """Say what is different from the turn before."""
        said: list[str] = []
        if turn.side is Side.CLIENT:
            said += self._client(simulation, turn)
        elif turn.side is Side.CLOCK:
            said.append("time jumps to the next timeout")
        elif turn.side is Side.OPERATOR:
            said.append("the engine is restarted: every request is lost, the pages keep theirs")
        elif turn.side is Side.WIRE:
            said += self._arrivals(simulation)
        for name in simulation.open:
            said += self._moves(simulation, name)
        said += self._events(simulation, events)
        for name in set(self._legs) - set(simulation.open):
            said += self._lets_go(self._legs.pop(name), name)
        self._owners = _owners(simulation)
        self.sentences += [f"turn {simulation.turn}: {sentence}" for sentence in said]

    def _client(self, simulation: Simulation, turn: Turn) -> list[str]:
        name = turn.request_id
        request = simulation.request(name)
        if turn.verb == "cancel":
            return [f"the client of `{name}` goes away"] if name in self._legs else []
        if name in self._legs or name not in simulation.open:
            return []
        length, config = len(request.prompt_ids), simulation.scenario.config
        over = [
            f"over {role}'s limit of {limit - 1}"
            for role, limit in (("prefill", config.prefill_limit), ("decode", config.decode_limit))
            if length >= limit
        ]
        told = f" ({' and '.join(over)})" if over else ""
        text = simulation.text(request.prompt_ids)
        shown = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
        with_adapter = f" for the adapter `{request.adapter}`" if request.adapter else ""
        if request.room is not None:
            with_adapter += f" in room {request.room}"
        return [
            f"tenant {request.tenant} sends `{name}`{with_adapter}:"
            f" {_count(length, 'token')}{told}, {shown!r}"
        ]

    def _moves(self, simulation: Simulation, name: str) -> list[str]:
        old, new = self._legs.get(name), _leg(simulation, name)
        self._legs[name] = new
        if old is None or old == new:
            return []
        said = []
        if (old.decode, new.decode) == (DecodeState.QUEUED, DecodeState.TRANSFER):
            said.append(
                f"decode reserves {_pages(new.pages)} for `{name}`{self._left_by(new.pages, name)}"
            )
        elif (old.decode, new.decode) == (DecodeState.TRANSFER, DecodeState.RUNNING):
            count = len(simulation.request(name).prompt_ids)
            said.append(
                f"decode takes the hand-off of `{name}` and believes that it has"
                f" {_count(count, 'token')} of it"
            )
        elif new.decode is DecodeState.RETRACTED:
            said.append(
                f"decode has no page left: {_pages(old.pages)} of `{name}` are saved and taken back"
            )
        elif old.decode is DecodeState.RETRACTED:
            said.append(f"`{name}` returns, in {_pages(new.pages)}")
        elif len(new.pages) > len(old.pages):
            added = new.pages[len(old.pages) :]
            said.append(f"`{name}` grows into {_pages(added)}{self._left_by(added, name)}")
        if old.prefill is not PrefillState.RUNNING and new.prefill is PrefillState.RUNNING:
            said.append(f"prefill begins to compute `{name}`")
        if old.prefill is not PrefillState.SENDING and new.prefill is PrefillState.SENDING:
            length = simulation.engine.prefill_length(name)
            sent = len(simulation.request(name).prompt_ids)
            but = "" if length == sent else f", not {sent}"
            said.append(f"prefill has computed `{name}` as {_count(length, 'token')}{but}")
        return said

    def _arrivals(self, simulation: Simulation) -> list[str]:
        """Say which pages of decode hold something else now, and who holds them."""
        holder = {page: name for name, leg in self._legs.items() for page in leg.pages}
        said = []
        for page, writers in sorted(_owners(simulation).items()):
            came = writers - self._owners.get(page, frozenset())
            if not came:
                continue
            held = holder.get(page)
            whose = f"which `{held}` holds" if held else "which nobody holds"
            late = f", {whose}" if held not in came else ""
            said.append(f"a page of {_names(came)} arrives in decode's page {page}{late}")
        return said

    def _events(self, simulation: Simulation, events: Sequence[Event]) -> list[str]:
        said = []
        for event in events:
            name = event.request_id
            if isinstance(event, TokenEvent) and self._told_tokens < TOKENS_TOLD_MAX:
                self._told_tokens += 1
                said.append(
                    f"`{name}` gets output token {event.index}:"
                    f" {simulation.text([event.token_id])!r}"
                )
            elif isinstance(event, EndEvent):
                why = f": {event.error.message}" if event.error is not None else ""
                said.append(f"`{name}` ends with status {event.status}{why}")
        return said

    def _left_by(self, pages: Iterable[int], name: str) -> str:
        writers = set().union(*(self._owners.get(page, frozenset()) for page in pages)) - {name}
        return f", last written by {_names(writers)}" if writers else ""

    def _lets_go(self, leg: _Leg, name: str) -> list[str]:
        if not leg.pages:
            return []
        return [f"`{name}` leaves {_pages(leg.pages)} of decode with what they hold"]


def tell(scenario: Scenario, model: StepModel) -> Story:
    """Run a scenario and tell what happened; the last sentence is the failure, if there is one."""
    teller = _Teller()
    outcome = Simulation(scenario, model, watcher=teller).run()
    failure = outcome.failure
    sentences = teller.sentences
    if failure is not None:
        sentences = [*sentences, f"turn {failure.turn}: {failure.kind}: {failure.message}"]
        lost = outcome.answers.get(failure.request_id or "")
        if lost is not None and lost.tokens and failure.kind is not FailureKind.WRONG_ANSWER:
            last = model.decode(lost.tokens[-1:])
            sentences.append(
                f"the first token of `{failure.request_id}` that can be contaminated:"
                f" output token {len(lost.tokens) - 1}, {last!r}"
            )
    return Story(outcome, tuple(sentences))


def numbered(sentences: Sequence[str]) -> str:
    """Return sentences as a numbered list."""
    width = len(str(len(sentences)))
    return "\n".join(f"{at:>{width}}. {said}" for at, said in enumerate(sentences, start=1))


def _leg(simulation: Simulation, name: str) -> _Leg:
    states = simulation.engine.states(name)
    if states[1] is DecodeState.DONE:
        return _NOWHERE
    return _Leg(states[0], states[1], simulation.engine.decode_pages(name))


def _owners(simulation: Simulation) -> dict[int, frozenset[str]]:
    """Return who has written into each page of decode, by the trace."""
    engine = simulation.engine
    pages = engine.roles[1].pool.num_pages
    trace = engine.trace
    if trace is None:
        return {}
    size = simulation.scenario.config.page_size
    slots = np.arange(pages * size).reshape(pages, size)
    return {
        page: frozenset(
            name for slot in slots[page] if (name := trace.writer_of("decode", int(slot)))
        )
        for page in range(pages)
    }


def _pages(pages: Sequence[int]) -> str:
    """Return page numbers in words, runs of them as a range."""
    parts: list[str] = []
    start = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1:
            first, last = pages[start], pages[at - 1]
            parts.append(f"{first}" if first == last else f"{first}-{last}")
            start = at
    return f"{'page' if len(pages) == 1 else 'pages'} {', '.join(parts)}"


def _names(names: Iterable[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
