"""Seeds in, what became of them out: the count of a whole search."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.engine import load_model, resolve_device
from engine.faults import FaultPlan
from engine.role import StepModel
from engine.sim import PAIRS, FailureKind, Outcome, simulate
from engine.sim_plan import Scenario, draw_scenario

MODELS = ("tags", "copier")  # quick enough, and always there


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """One seed, the scenario that it drew, and how it went."""

    seed: int
    scenario: Scenario
    outcome: Outcome


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has been seen so far.

    Attributes:
        seeds: Seeds run.
        failures: Those that failed, in order.
        turns, requests: Over all seeds.
        statuses: Requests by the status that they ended with; None = the run failed before.
        pairs: (yield point, side that acted next) -> how often.
    """

    seeds: int = 0
    failures: list[SeedRun] = field(default_factory=list)
    turns: int = 0
    requests: int = 0
    statuses: Counter[int | None] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, run: SeedRun) -> None:
        """Count one seed."""
        self.seeds += 1
        self.turns += len(run.outcome.turns)
        self.requests += len(run.outcome.answers)
        self.statuses.update(answer.status for answer in run.outcome.answers.values())
        self.pairs.update(run.outcome.pairs)
        if run.outcome.failure is not None:
            self.failures.append(run)

    @property
    def kinds(self) -> Counter[FailureKind]:
        """Failing seeds by the kind of their failure."""
        return Counter(
            run.outcome.failure.kind for run in self.failures if run.outcome.failure is not None
        )

    @property
    def unreached(self) -> tuple[tuple[str, str], ...]:
        """Pairs of yield point and next side that no seed has come by."""
        return tuple(pair for pair in PAIRS if pair not in self.pairs)

    @property
    def first_of_each_kind(self) -> tuple[SeedRun, ...]:
        """The first failing seed of each kind of failure, the worst kind first."""
        found: dict[FailureKind, SeedRun] = {}
        for run in self.failures:
            if run.outcome.failure is not None:
                found.setdefault(run.outcome.failure.kind, run)
        return tuple(found[kind] for kind in FailureKind if kind in found)


def sim_model(name: str) -> StepModel:
    """Load one of `MODELS` on the CPU."""
    return load_model(EngineConfig(model=name, device="cpu"), resolve_device("cpu"))


def run_seeds(
    first: int, last: int, plan: FaultPlan, model: StepModel, *, sanitizer: str = "off"
) -> Iterator[SeedRun]:
    """Run the seeds from `first` to `last`, both included, one after the other.

    With a sanitizer a violation ends its seed's run, before the bad read is made.
    """
    for seed in range(first, last + 1):
        scenario = draw_scenario(seed, plan, model, sanitizer=sanitizer)
        yield SeedRun(seed=seed, scenario=scenario, outcome=simulate(scenario, model))
