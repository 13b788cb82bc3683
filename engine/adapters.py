"""Low-rank adapters on the key and value projections, chosen for each sequence of a step.

An adapter adds up(down(x)) to what a projection gives. Sequences with different adapters, or none,
run in one forward; each row of the flat batch gets its own sequence's adapter. So keys and values
written under one adapter are not those of another: what a prefix cache without the adapter in its
key mixes up.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention import SequenceStep

RANK = 8
RELATIVE_SIZE = 0.1  # of a random adapter's change, against the projection that it changes
_PROJECTIONS = ("k_proj", "v_proj")


class LowRank(NamedTuple):
    """A change of one projection: down is [rank, inputs], up is [outputs, rank]."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A named set of changes.

    Attributes:
        name: As requests ask for it, `copier:a`.
        changes: By module name, such as `model.layers.0.self_attn.k_proj`.
    """

    name: str
    changes: Mapping[str, LowRank]


class RowsOf(NamedTuple):
    """Rows of the flat batch that one adapter computes."""

    adapter: str
    rows: Tensor


_assigned: ContextVar[tuple[RowsOf, ...]] = ContextVar("kvaudit_adapter_rows", default=())


def install(network: Any, adapters: Sequence[Adapter]) -> None:
    """Hook the adapters into the projections that they change; without rows they do nothing."""
    for module_name in sorted({name for adapter in adapters for name in adapter.changes}):
        module = network.get_submodule(module_name)
        changes = {
            adapter.name: LowRank(
                *(part.to(module.weight) for part in adapter.changes[module_name])
            )
            for adapter in adapters
            if module_name in adapter.changes
        }
        module.register_forward_hook(_hook(changes))


def assignment(steps: Sequence[SequenceStep], device: torch.device) -> tuple[RowsOf, ...]:
    """Return which rows of the flat batch each adapter computes."""
    rows: dict[str, list[int]] = {}
    start = 0
    for step in steps:
        end = start + len(step.tokens)
        if step.adapter is not None:
            rows.setdefault(step.adapter, []).extend(range(start, end))
        start = end
    return tuple(RowsOf(name, torch.tensor(found, device=device)) for name, found in rows.items())


@contextmanager
def adapted(rows: tuple[RowsOf, ...]) -> Iterator[None]:
    """Let forwards in this context compute these rows under their adapters."""
    token = _assigned.set(rows)
    try:
        yield
    finally:
        _assigned.reset(token)


def random_adapters(network: Any, names: Sequence[str]) -> tuple[Adapter, ...]:
    """Return an adapter for each name on every key and value projection, the same every time."""
    return tuple(
        Adapter(name=name, changes=_random_changes(network, seed))
        for seed, name in enumerate(names, start=1)
    )


def _random_changes(network: Any, seed: int) -> dict[str, LowRank]:
    generator = torch.Generator().manual_seed(seed)
    changes = {}
    for name, module in network.named_modules():
        if name.rpartition(".")[2] not in _PROJECTIONS or not hasattr(module, "weight"):
            continue
        outputs, inputs = module.weight.shape
        down = torch.randn(RANK, inputs, generator=generator)
        up = torch.randn(outputs, RANK, generator=generator)
        size = RELATIVE_SIZE * module.weight.float().norm().cpu() / (up @ down).norm()
        changes[name] = LowRank(down, up * size)
    return changes


def _hook(changes: dict[str, LowRank]) -> Any:
    def add(_module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        assigned = _assigned.get()
        if not assigned:
            return None
        changed = output.clone()
        for name, rows in assigned:
            if name in changes:
                down, up = changes[name]
                changed[:, rows] += inputs[0][:, rows] @ down.T @ up.T
        return changed

    return add
