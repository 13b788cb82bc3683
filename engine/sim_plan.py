"""Scenario: what one simulated run consists of, drawn from a seed or read from a file.

A scenario is a deployment, the requests that come to it, and a schedule: the list of turns that
decides who acts when. Any part of a schedule is a schedule too, which is what shrinking rests on.
"""

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from engine.config import EngineConfig, with_needs
from engine.faults import FaultPlan, Need
from engine.role import StepModel

TENANTS = "ABC"
REQUESTS_MIN, REQUESTS_MAX = 5, 12
ANSWER_MAX = 10  # output tokens
_SYLLABLES = ("ba", "de", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "ze")


class Side(StrEnum):
    """Who may be given a turn."""

    DECODE = "decode"
    WIRE = "wire"
    PREFILL = "prefill"
    CLIENT = "client"  # sends the next request, or goes away
    CLOCK = "clock"  # time jumps to the next timeout
    OPERATOR = "operator"  # restarts the engine


class Turn(NamedTuple):
    """One turn: whose, and for a client which request.

    Attributes:
        side: Who acts. A role does its next phase; the clock and the operator have one act each.
        verb: `submit` or `cancel`; "" for all but clients.
        request_id: The client's request; "" for all but clients.
    """

    side: Side
    verb: str = ""
    request_id: str = ""

    def __str__(self) -> str:
        """Return it as files hold it: `decode`, `submit A1`."""
        return f"{self.verb} {self.request_id}" if self.verb else self.side.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """One request of a scenario.

    Attributes:
        request_id: Its tenant's letter and a number.
        prompt_ids: The prompt, in tokens of the scenario's model.
        max_tokens: Output tokens at most.
        adapter, cache_salt, room: As in `engine.request.Request`.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    adapter: str | None = None
    cache_salt: str | None = None
    room: int | None = None

    @property
    def tenant(self) -> str:
        """The party that it belongs to."""
        return self.request_id[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A deployment, its requests, and who acts when.

    Attributes:
        seed: What it was drawn from.
        config: The deployment, fault and fixes included.
        requests: In the order in which they come where no turn says otherwise.
        schedule: Turns; when they are used up, everybody takes turns in order until all is done.
            None = drawn from the seed, turn by turn.
    """

    seed: int
    config: EngineConfig
    requests: tuple[SimRequest, ...]
    schedule: tuple[Turn, ...] | None = None


class Pace(NamedTuple):
    """How often each side gets a turn, and how often a client's turn is a cancellation."""

    weights: tuple[float, ...]  # in the order of Side
    cancel_share: float


def draw_scenario(
    seed: int, plan: FaultPlan, model: StepModel, *, sanitizer: str = "off"
) -> Scenario:
    """Draw a small deployment and its requests; the same seed gives the same scenario."""
    rng = random.Random(f"scenario/{seed}")
    config, _ = with_needs(_draw_config(rng, seed, model.name), plan)
    config = replace(config, sanitizer=sanitizer)
    return Scenario(seed=seed, config=config, requests=_draw_requests(rng, config, model))


def draw_pace(rng: random.Random) -> Pace:
    """Draw how fast everybody is: a seed in which the wire is slow, one in which decode is."""
    speeds = (1.0, 2.0, 4.0, 12.0)
    decode, wire, prefill = (rng.choice(speeds) for _ in range(3))
    return Pace(
        weights=(
            decode, wire, prefill, rng.choice((0.1, 0.4, 2.0)), rng.choice((0.0, 0.01, 0.05)),
            rng.choice((0.0, 0.0, 0.02, 0.05)),
        ),
        cancel_share=rng.choice((0.0, 0.15, 0.4)),
    )  # fmt: skip


def _draw_config(rng: random.Random, seed: int, model: str) -> EngineConfig:
    page = rng.choice((4, 8, 16))
    prefill_pages = rng.randint(-(-32 // page), -(-64 // page))
    decode_pages = prefill_pages + rng.randint(0, -(-64 // page))
    return EngineConfig(
        model=model,
        device="cpu",
        context_tokens=96,
        page_size=page,
        prefill_pool_tokens=prefill_pages * page,
        decode_pool_tokens=decode_pages * page,
        chunk_tokens=rng.choice((8, 16, 32)),
        running_max=rng.choice((2, 3, 8)),
        wire_pages_per_step=rng.choice((1, 1, 2, 4)),
        overlap=rng.random() < 0.5,
        prefix_cache=rng.random() < 0.5,
        deterministic=True,
        trace=True,
        seed=seed,
    )


def _draw_requests(
    rng: random.Random, config: EngineConfig, model: StepModel
) -> tuple[SimRequest, ...]:
    tenants = TENANTS[: rng.randint(2, len(TENANTS))]
    has_adapters = rng.random() < 0.3 or _needs(config, Need.ADAPTERS)
    reuses_rooms = rng.random() < 0.3 or _needs(config, Need.ROOM_REUSE)
    drawn: list[SimRequest] = []
    for number in range(1, rng.randint(REQUESTS_MIN, REQUESTS_MAX) + 1):
        tenant = rng.choice(tenants)
        length = _draw_length(rng, config)
        prompt = _draw_prompt(rng, model, length)
        if drawn and rng.random() < 0.3:  # the beginning of an earlier prompt, whoever sent it
            earlier = rng.choice(drawn).prompt_ids
            prompt = (earlier[: rng.randint(1, len(earlier))] + prompt)[:length]
        drawn.append(
            SimRequest(
                request_id=f"{tenant}{number}",
                prompt_ids=prompt,
                max_tokens=rng.randint(1, ANSWER_MAX),
                adapter=rng.choice((None, *model.adapters)) if has_adapters else None,
                cache_salt=tenant if rng.random() < 0.5 else None,
                room=rng.randint(1, 3) if reuses_rooms else None,
            )
        )
    return tuple(drawn)


def _needs(config: EngineConfig, need: Need) -> bool:
    spec = config.faults.spec
    return spec is not None and need in spec.needs


def _draw_length(rng: random.Random, config: EngineConfig) -> int:
    """Return a prompt length: mostly one that both roles take, some that only decode takes."""
    low, high = config.prefill_limit, config.decode_limit
    kind = rng.random()
    if kind < 0.75 or (kind < 0.95 and low >= high):
        return rng.randint(1, low - 1)
    return rng.randint(low, high - 1) if kind < 0.95 else rng.randint(high, high + 20)


def _draw_prompt(rng: random.Random, model: StepModel, length: int) -> tuple[int, ...]:
    ids: list[int] = []
    while len(ids) < length:
        words = ("".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(4))
        ids += model.encode(" ".join(words) + f" {rng.randint(100, 999)} ")
    return tuple(ids[:length])


def without_trace(scenario: Scenario) -> Scenario:
    """Return the scenario with the ground truth off: no figure of it may change."""
    return replace(scenario, config=replace(scenario.config, trace=False))
