"""Role: what prefill and decode each have of their own: model, KV, pages, rows.

Shapes: logits (R, V) float32, R rows that were asked for, V the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.model import PagedModel, SequenceStep
from engine.pool import PagePool
from engine.request import Request
from engine.sampler import Sampled, sample
from engine.table import PageTable
from engine.trace import PageTrace


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
        trace: Ground truth; None = off.
        generator: Reseeded for every token that is drawn.
    """

    name: str
    config: EngineConfig
    model: PagedModel
    cache: KVCache
    pool: PagePool
    table: PageTable
    trace: PageTrace | None
    generator: torch.Generator

    def forward(self, parts: Sequence[RoleStep]) -> torch.Tensor:
        """Run one forward pass over all `parts`; returns the logits that they want, in order.

        With `deterministic`, each sequence runs by itself, so that batch shapes can't move bits.
        """
        steps = [part.step for part in parts]
        if self.trace is not None:
            self._note(self.trace, parts)
        if not self.config.deterministic:
            return self.model.step(self.cache, steps)
        return torch.cat([self.model.step(self.cache, [step]) for step in steps])

    def sample(self, request: Request, index: int, logits: torch.Tensor) -> Sampled:
        """Draw output token `index` of a request from one row of logits (V,)."""
        self.generator.manual_seed(request.token_seed(self.config.seed, index))
        return sample(logits, request.sampling, self.generator)

    def _note(self, trace: PageTrace, parts: Sequence[RoleStep]) -> None:
        for part in parts:
            step = part.step
            trace.wrote(self.name, part.ordinal, step.page_table, step.first_position, step.tokens)
        for part in parts:
            trace.read(
                self.name, part.ordinal, part.step.page_table, part.step.kv_len,
                cached_tokens=part.cached_tokens,
            )  # fmt: skip


def build_role(name: str, config: EngineConfig, model: PagedModel, trace: PageTrace | None) -> Role:
    """Build one role with an empty pool."""
    tokens = config.prefill_pool_tokens if name == "prefill" else config.decode_pool_tokens
    num_pages = tokens // config.page_size
    return Role(
        name=name,
        config=config,
        model=model,
        cache=model.new_cache(num_pages, config.page_size, model.device),
        pool=PagePool(num_pages),
        table=PageTable(config.running_max, config.page_size),
        trace=trace,
        generator=torch.Generator(),
    )
