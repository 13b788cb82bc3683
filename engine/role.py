"""Role: what prefill and decode each have of their own: model, KV, pages, rows.

Shapes: logits (R, V) float32, R rows that were asked for, V the vocabulary.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from engine.attention import SequenceStep
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.pool import PagePool
from engine.request import Request
from engine.sampler import Sampled, sample
from engine.sanitizer import Sanitizer
from engine.table import PageTable
from engine.watch import SlotWatcher


class StepModel(Protocol):
    """What the engine needs of a model: `engine.model.PagedModel`, or a stand-in."""

    @property
    def name(self) -> str:
        """Name that requests ask for."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids lie below it."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest context that it can compute, in tokens."""
        ...

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Tokens that end an answer."""
        ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of its adapters."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a plain prompt."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]], /) -> list[int]:
        """Return the tokens of a chat, messages with `role` and `content`, ready for the answer."""
        ...

    def decode(self, token_ids: Sequence[int], /) -> str:
        """Return the text of tokens."""
        ...

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """Return a cache of its shape, where it computes."""
        ...

    def step(self, cache: KVCache, steps: Sequence[SequenceStep]) -> torch.Tensor:
        """Run one forward pass; returns (wanted, vocabulary) float32."""
        ...

    def replay_logprobs(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        /,
        *,
        adapter: str | None = None,
    ) -> list[float]:
        """Return log-probabilities of given tokens, computed without a pool."""
        ...


class RoleStep(NamedTuple):
    """One sequence's part of a forward pass, and whose it is."""

    ordinal: int
    step: SequenceStep
    cached_tokens: int


@dataclass(slots=True, kw_only=True)
class Role:
    """The state of one role.

    Attributes:
        name: `prefill` or `decode`.
        config: Of the whole deployment.
        model: Computes on this role's device.
        cache: Keys and values, never cleared.
        pool, table: Who holds which page; the rows of running requests.
        watch: Hears of every write and read; None = nobody does.
        sanitizer: Checks hand-offs and logits too, and stands behind `watch`; None = off.
        parts_run: Sequences computed so far, each forward pass counted.
        generator: Reseeded for every token that is drawn.
    """

    name: str
    config: EngineConfig
    model: StepModel
    cache: KVCache
    pool: PagePool
    table: PageTable
    generator: torch.Generator
    watch: SlotWatcher | None = None
    sanitizer: Sanitizer | None = None
    parts_run: int = 0

    def forward(self, parts: Sequence[RoleStep]) -> torch.Tensor:
        """Run one forward pass over all `parts`; returns the logits that they want, in order.

        With `deterministic`, each sequence runs by itself, so that batch shapes can't move bits.
        """
        steps = [part.step for part in parts]
        self.parts_run += len(parts)
        if self.watch is not None:
            self._note(self.watch, parts)
        if not self.config.deterministic:
            logits = self.model.step(self.cache, steps)
        else:
            logits = torch.cat([self.model.step(self.cache, [step]) for step in steps])
        if self.sanitizer is not None:
            asking = [part.ordinal for part in parts if part.step.wants_logits]
            self.sanitizer.computed(self.name, asking, logits)
        return logits

    def sample(self, request: Request, index: int, logits: torch.Tensor) -> Sampled:
        """Draw output token `index` of a request from one row of logits (V,)."""
        self.generator.manual_seed(request.token_seed(self.config.seed, index))
        return sample(logits, request.sampling, self.generator)

    def clear_books(self) -> None:
        """Forget who holds what; keys and values stay."""
        self.pool = PagePool(
            self.pool.num_pages, watcher=self.pool.watcher, quarantine=self.pool.quarantine
        )
        self.table = PageTable(self.table.num_rows, self.table.page_size)

    def _note(self, watch: SlotWatcher, parts: Sequence[RoleStep]) -> None:
        for part in parts:
            step = part.step
            watch.wrote(self.name, part.ordinal, step.page_table, step.first_position, step.tokens)
        for part in parts:
            watch.read(
                self.name, part.ordinal, part.step.page_table, part.step.kv_len,
                cached_tokens=part.cached_tokens,
            )  # fmt: skip


def build_role(name: str, config: EngineConfig, model: StepModel) -> Role:
    """Build one role with an empty pool."""
    tokens = config.prefill_pool_tokens if name == "prefill" else config.decode_pool_tokens
    num_pages = tokens // config.page_size
    return Role(
        name=name,
        config=config,
        model=model,
        cache=model.new_cache(num_pages, config.page_size),
        pool=PagePool(num_pages, quarantine=config.quarantine_pages),
        table=PageTable(config.running_max, config.page_size),
        generator=torch.Generator(),
    )
