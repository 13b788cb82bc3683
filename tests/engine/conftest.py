"""A small deployment without a model, and a driver that checks it after every step."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from engine.config import EngineConfig, with_needs
from engine.engine import Engine
from engine.faults import fault_plan
from engine.request import AdmittedEvent, EndEvent, Request, Sampling, TokenEvent
from engine.tags import TagsModel
from kvaudit.clock import SimulatedClock


@dataclass
class Answer:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first_ns: int | None = None
    end: EndEvent | None = None

    @property
    def text(self) -> str:
        return TagsModel().decode(self.tokens)


class Bench:
    """An engine, its clock, and everything that it has answered."""

    def __init__(self, config: EngineConfig) -> None:
        self.clock = SimulatedClock()
        self.engine = Engine(config, TagsModel(), clock=self.clock)
        self.answers: dict[str, Answer] = {}
        self.steps = 0

    def submit(self, name: str, prompt: Iterable[int] | str, **kwargs) -> None:
        max_tokens = kwargs.pop("max_tokens", 8)
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=kwargs.pop("temperature", 0.0),
            seed=kwargs.pop("seed", None),
        )
        ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
        self.answers[name] = Answer()
        self.engine.submit(Request(request_id=name, prompt_ids=ids, sampling=sampling, **kwargs))

    def step(self) -> None:
        for event in self.engine.step():
            answer = self.answers[event.request_id]
            match event:
                case AdmittedEvent():
                    pass
                case TokenEvent():
                    assert event.index == len(answer.tokens), "a token was lost or told twice"
                    answer.tokens.append(event.token_id)
                    answer.logprobs.append(event.logprob)
                    answer.first_ns = answer.first_ns or event.at_ns
                case EndEvent():
                    assert answer.end is None, "a request ended twice"
                    answer.end = event
        self.engine.check_integrity()
        self.steps += 1
        self.clock.advance(1_000_000)

    def run(self, *, steps_max: int = 20_000) -> None:
        while self.engine.has_work:
            self.step()
            self.engine.skip_wait()
            assert self.steps < steps_max, "the engine does not come to rest"

    def is_whole(self) -> bool:
        """Whether every page is free again, but for those of the prefix cache."""
        prefill = self.engine.prefill
        return (
            prefill._role.pool.num_free + prefill.prefix.num_pages == prefill._role.pool.num_pages
            and self.engine.decode._role.pool.num_free == self.engine.decode._role.pool.num_pages
            and not self.engine.wire._rooms
        )


def make_bench(fault: str | None = None, fixes: Iterable[str] = (), **changes) -> Bench:
    """The toy of the incident: prefill pool 640, decode pool 2,048, context 1,024, page 16."""
    sizes = {
        "model": "tags",
        "page_size": 16,
        "prefill_pool_tokens": 640,
        "decode_pool_tokens": 2048,
        "context_tokens": 1024,
        "trace": True,
        "deterministic": True,
        # A sound engine is followed by the sanitizer, which stops it at the first violation. With a
        # fault it would stop what the test is about.
        "sanitizer": "full" if fault is None else "off",
    }
    config, _ = with_needs(EngineConfig(**{**sizes, **changes}), fault_plan(fault, fixes))
    return Bench(config)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return make_bench


def letters(seed: int, count: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> tuple[int, ...]:
    """Random letters of an alphabet, as tokens of the stand-in model."""
    rng = random.Random(seed)
    return tuple(ord(rng.choice(alphabet)) for _ in range(count))


@pytest.fixture
def text() -> Callable[..., tuple[int, ...]]:
    return letters
