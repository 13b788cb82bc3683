"""The protocol of transfer, abort and release, small enough to be explored whole.

The deployment has every weakness of the protocol at once, and each fix closes one of them. With all
fixes on no interleaving may leak; with any one left out at least one must.

`checksum` and `coverage` are no part of it. They look at what has arrived, whatever went wrong
before, and so would hide that `retire` is missing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.explore import Exploration, World, explore
from engine.faults import FaultPlan
from engine.sim_plan import Scenario, SimRequest
from engine.tags import TagsModel

FIXES = ("retire", "deferred-release", "generation")
WEAKNESSES = ("reject-not-propagated", "early-free-late-writer", "stale-ack")
CANCELLABLE = ("A2",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """One exploration: the fix that was left out, None = all are on, and what came of it."""

    left_out: str | None
    found: Exploration

    @property
    def is_as_it_must_be(self) -> bool:
        """Whether it was whole, and leaks exactly where a fix is missing."""
        return self.found.is_whole and (self.found.leaking > 0) == (self.left_out is not None)


def scenario(left_out: str | None) -> Scenario:
    """Return the deployment with all fixes but one.

    Three requests: one over prefill's limit; then a second attempt in its room, whose client may go
    away at any time; then another tenant's. Decode has room for two of them at a time.
    """
    config = EngineConfig(
        model=TagsModel.name,
        device="cpu",
        context_tokens=24,
        page_size=8,
        prefill_pool_tokens=16,
        decode_pool_tokens=32,
        chunk_tokens=8,
        running_max=2,
        wire_pages_per_step=1,
        wire_late_turns=1,
        step_ns=1,
        deterministic=True,
        trace=True,
        faults=FaultPlan(
            fault=WEAKNESSES[0],
            also=frozenset(WEAKNESSES[1:]),
            fixes=frozenset(FIXES) - {left_out},
        ),
    )
    prompts = {"A1": b"over the limit", "A2": b"a retry", "B3": b"another"}
    requests = tuple(
        SimRequest(request_id=name, prompt_ids=tuple(prompt), max_tokens=2, room=room)
        for (name, prompt), room in zip(prompts.items(), (1, 1, 2), strict=True)
    )
    return Scenario(seed=1, config=config, requests=requests)


def explore_protocol(tell: Callable[[int], None] = lambda _: None) -> Iterator[Explored]:
    """Explore with all fixes, then with each of them left out."""
    for left_out in (None, *FIXES):
        start = World(scenario(left_out), TagsModel(), CANCELLABLE)
        yield Explored(left_out=left_out, found=explore(start, tell=tell))
