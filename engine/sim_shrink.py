"""Shrinking: from a run that fails to the smallest scenario that fails in the same way.

Delta debugging (Zeller and Hildebrandt 2002) over the request list and the schedule, then each
request made plainer. A candidate counts only if its failure is of the same kind.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.role import StepModel
from engine.sim import Outcome, simulate
from engine.sim_plan import Scenario, SimRequest, Turn

RUNS_MAX = 600  # candidates tried for one failure

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest scenario found, and its run.

    Attributes:
        scenario: It fails as the first one did; its schedule is explicit.
        outcome: Its run.
        runs: Candidates that were tried.
        is_minimal: Whether nothing more could be left out; False = `RUNS_MAX` came first.
    """

    scenario: Scenario
    outcome: Outcome
    runs: int
    is_minimal: bool


class _OutOfRunsError(Exception):
    """The budget is used up; never leaves this file."""


def shrink(
    scenario: Scenario,
    outcome: Outcome,
    model: StepModel,
    *,
    runs_max: int = RUNS_MAX,
    tell: Callable[[Scenario], None] = lambda _: None,
) -> Shrunk:
    """Shrink a failing run.

    Args:
        scenario: Any scenario whose run failed.
        outcome: That run.
        model: Of the scenario.
        runs_max: Candidates to try at most.
        tell: Gets every smaller scenario as it is found.
    """
    assert outcome.failure is not None, "a run that did not fail can't be shrunk"
    search = _Search(scenario, outcome, model, runs_max, tell)
    is_minimal = True
    try:
        while search.improve():
            pass
    except _OutOfRunsError:
        is_minimal = False
    return Shrunk(
        scenario=search.best, outcome=search.outcome, runs=search.runs, is_minimal=is_minimal
    )


class _Search:
    """The smallest scenario so far, and the steps that make it smaller."""

    def __init__(
        self,
        scenario: Scenario,
        outcome: Outcome,
        model: StepModel,
        runs_max: int,
        tell: Callable[[Scenario], None],
    ) -> None:
        assert outcome.failure is not None, "a run that did not fail can't be shrunk"
        self._model = model
        self._runs_max = runs_max
        self._tell = tell
        self._kind = outcome.failure.kind
        self.best = replace(scenario, schedule=outcome.turns)
        self.outcome = outcome
        self.runs = 0

    def improve(self) -> bool:
        """Try every way once; returns whether any of them helped."""
        before = self.best
        if self.best.schedule:
            self._try(replace(self.best, schedule=()))
        self._drop_requests()
        self._drop_turns()
        for index in range(len(self.best.requests)):
            self._make_plainer(index)
        if self.best.config.prefix_cache and self.best.config.faults.fault is None:
            self._try(replace(self.best, config=replace(self.best.config, prefix_cache=False)))
        return self.best != before

    def _drop_requests(self) -> None:
        for kept in _smaller(self.best.requests, lambda: self.best.requests):
            names = {request.request_id for request in kept}
            turns = tuple(
                turn
                for turn in self.best.schedule or ()
                if not turn.request_id or turn.request_id in names
            )
            self._try(replace(self.best, requests=tuple(kept), schedule=turns))

    def _drop_turns(self) -> None:
        turns: Sequence[Turn] = self.best.schedule or ()
        for kept in _smaller(turns, lambda: self.best.schedule or ()):
            self._try(replace(self.best, schedule=tuple(kept)))

    def _make_plainer(self, index: int) -> None:
        for change in (_shorter, _halved, _cut_by_one, _brief, _plain):
            while True:
                request = self.best.requests[index]
                changed = change(request)
                if changed == request:
                    break
                requests = list(self.best.requests)
                requests[index] = changed
                if not self._try(replace(self.best, requests=tuple(requests))):
                    break

    def _try(self, candidate: Scenario) -> bool:
        if self.runs >= self._runs_max:
            raise _OutOfRunsError
        self.runs += 1
        outcome = simulate(candidate, self._model)
        failure = outcome.failure
        if failure is None or failure.kind is not self._kind:
            return False
        # What came behind the failure decides nothing.
        turns = (candidate.schedule or ())[: failure.turn]
        self.best, self.outcome = replace(candidate, schedule=turns), outcome
        self._tell(self.best)
        return True


def _smaller(
    items: Sequence[ItemT], current: Callable[[], Sequence[ItemT]]
) -> Iterator[Sequence[ItemT]]:
    """Give ever finer cuts of `items`: halves left out, then quarters, then single ones.

    `current` tells what is left after the caller has tried a cut.
    """
    size = max(1, len(items) // 2)
    while True:
        at = 0
        while at < len(current()):
            left = current()
            yield [*left[:at], *left[at + size :]]
            if len(current()) == len(left):
                at += size  # it was needed
        if size == 1:
            return
        size = max(1, size // 2)


def _shorter(request: SimRequest) -> SimRequest:
    return replace(request, prompt_ids=request.prompt_ids[:1])


def _halved(request: SimRequest) -> SimRequest:
    return replace(request, prompt_ids=request.prompt_ids[: max(1, len(request.prompt_ids) // 2)])


def _cut_by_one(request: SimRequest) -> SimRequest:
    return replace(request, prompt_ids=request.prompt_ids[: max(1, len(request.prompt_ids) - 1)])


def _brief(request: SimRequest) -> SimRequest:
    return replace(request, max_tokens=max(1, request.max_tokens // 2))


def _plain(request: SimRequest) -> SimRequest:
    return replace(request, adapter=None, cache_salt=None, room=None)
