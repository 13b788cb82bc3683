"""Attention over pages for any Hugging Face decoder, through transformers' attention interface.

The model's code stays its own. It calls `paged_attention` once a layer with queries, keys and
values after RoPE; we store keys and values in the pool and attend over the pages that the step's
plan names. The model also hands us its own mask rule (causal, sliding window, chunks), which we
evaluate on true positions, because the `sliding_window` argument is missing in some models.

The plan travels in a context variable, since a few models drop unknown keyword arguments.

Padded or masked slots never count: their weight is exactly zero. That holds for any finite
content, so a pool may hold poison of 3e38, but not NaN.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from engine.cache import KEY, VALUE, KVCache

ATTENTION_NAME = "kvaudit_paged"
RAGGED_RATIO = 2  # decodes share one gather while the longest table is at most twice the shortest


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """What one sequence does in one step.

    Attributes:
        tokens: New tokens: a chunk of prefill, or one token of decode.
        first_position: Position of tokens[0], for RoPE and for the slots written.
        page_table: Physical page ids in logical order; position p lies in slot
            page_table[p // page_size] * page_size + p % page_size.
        kv_len: Slots that the last token attends to, from the start of the table; the token before
            it sees one less, and so on. Normally first_position + len(tokens), which is causal
            attention; any other value is what a real kernel would make of a wrong length.
        write: Whether the new keys and values are stored.
        wants_logits: Whether the last token's logits are returned.
        adapter: Name of a built-in adapter, or None.
    """

    tokens: tuple[int, ...]
    first_position: int
    page_table: tuple[int, ...]
    kv_len: int
    write: bool = True
    wants_logits: bool
    adapter: str | None = None

    def check(self, *, page_size: int, num_pages: int) -> None:
        """Assert that every slot read or written lies on a page of the table."""
        assert self.tokens, "a step without tokens"
        assert self.first_position >= 0, "a negative position"
        assert self.kv_len >= len(self.tokens), "fewer slots seen than tokens fed"
        slots = len(self.page_table) * page_size
        assert self.kv_len <= slots, f"{self.kv_len} slots seen, the table holds {slots}"
        if self.write:
            last = self.first_position + len(self.tokens)
            assert last <= slots, f"position {last - 1} lies past the table's {slots} slots"
        assert all(0 <= page < num_pages for page in self.page_table), "no such page"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRule:
    """The model's own rule which slot a query may see, as its mask maker gave it.

    Attributes:
        sees: Maps tensors of batch, head, query and key indices to a bool tensor.
        elementwise_only: True when `sees` takes no broadcast tensors and must be vmapped.
    """

    sees: Callable[..., Tensor]
    elementwise_only: bool = False

    def mask(self, query_positions: Tensor, kv_positions: Tensor) -> Tensor:
        """Return bool [queries, keys]."""
        zero = torch.zeros((), dtype=torch.int64, device=query_positions.device)
        if self.elementwise_only:
            over_keys = torch.vmap(self.sees, in_dims=(None, None, None, 0))
            over_both = torch.vmap(over_keys, in_dims=(None, None, 0, None))
            return over_both(zero, zero, query_positions, kv_positions)
        seen = self.sees(zero, zero, query_positions[:, None], kv_positions[None, :])
        return seen.expand(query_positions.shape[0], kv_positions.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences that attend together: one chunk alone, or decodes of similar length.

    Attributes:
        rows: Their token rows in the flat batch: a slice, or int64 [sequences].
        page_ids: int64 [sequences, pages], padded with the sequence's own first page.
        kv_lens: One for each sequence.
        query_len: Tokens of each sequence.
    """

    rows: slice | Tensor
    page_ids: Tensor
    kv_lens: tuple[int, ...]
    query_len: int


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step's slots and groups, the same for all layers.

    Attributes:
        cache: The pool.
        written: Where new keys and values go, as `KVCache.rows_of` gives it; int64 [tokens].
        write_rows: Rows of the flat batch that are written; None = all of them.
        groups: Who attends to what.
        masks: What is added to scores, as far as made, by rule and group; layers share it.
    """

    cache: KVCache
    written: Tensor
    write_rows: Tensor | None
    groups: tuple[Group, ...]
    masks: dict[tuple[int, int], tuple[MaskRule, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePlan:
    """One sequence from its first token to its last, in one piece and with no pool.

    Attributes:
        masks: What is added to scores, as far as made, by rule; layers share it.
    """

    masks: dict[int, tuple[MaskRule, Tensor]] = field(default_factory=dict)


class AttentionCall(NamedTuple):
    """What one attention call brought: its layer and the shape of one token's keys and values."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeProbe:
    """Attends to nothing, and notes who called.

    Attributes:
        calls: All calls so far, in order.
    """

    calls: list[AttentionCall] = field(default_factory=list)


_CAUSAL = MaskRule(sees=lambda _batch, _head, query, key: key <= query)
_plan: ContextVar[StepPlan | WholePlan | ShapeProbe | None] = ContextVar(
    "kvaudit_attention_plan", default=None
)


def plan_step(cache: KVCache, steps: Sequence[SequenceStep]) -> StepPlan:
    """Lay out one step: which slots are written, who attends to which pages."""
    page_size, device = cache.page_size, cache.device
    slots: list[int] = []
    written_rows: list[int] = []
    decodes: list[tuple[int, SequenceStep]] = []
    groups: list[Group] = []
    row = 0
    for step in steps:
        step.check(page_size=page_size, num_pages=cache.num_pages)
        count = len(step.tokens)
        if step.write:
            slots += [
                step.page_table[position // page_size] * page_size + position % page_size
                for position in range(step.first_position, step.first_position + count)
            ]
            written_rows += range(row, row + count)
        if count == 1:
            decodes.append((row, step))
        else:
            groups.append(_group([(row, step)], page_size, device))
        row += count
    groups += _decode_groups(decodes, page_size, device)
    return StepPlan(
        cache=cache,
        written=cache.rows_of(torch.tensor(slots, dtype=torch.int64, device=device)),
        write_rows=(
            None
            if len(written_rows) == row
            else torch.tensor(written_rows, dtype=torch.int64, device=device)
        ),
        groups=tuple(groups),
    )


@contextmanager
def planned(plan: StepPlan | WholePlan | ShapeProbe) -> Iterator[None]:
    """Make `plan` the one that attention calls in this context obey."""
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


def register() -> None:
    """Make `ATTENTION_NAME` known to transformers; may be called any number of times."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _mask_rule)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskRule | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store the new keys and values, then attend over the pages of the plan.

    Args:
        module: The model's attention module; only its `layer_idx` is used.
        query: [1, heads, tokens, head_dim].
        key: [1, kv_heads, tokens, head_dim], heads not repeated.
        value: [1, kv_heads, tokens, value_dim].
        attention_mask: The model's mask rule; None = causal.
        scaling: Of the scores; None = 1 / sqrt(head_dim).
        softcap: Scores are squeezed into +-softcap by tanh; None = not.
        s_aux: One sink score a head, which takes weight and gives nothing; None = no sinks.

    Returns:
        [1, tokens, heads, value_dim], and None in place of the weights.
    """
    plan = _plan.get()
    assert plan is not None, "paged attention outside a step"
    assert query.shape[0] == 1, "sequences are laid out flat, in one row"
    rule = attention_mask if attention_mask is not None else _CAUSAL
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    scores = _Scores(scale=scale, softcap=softcap, sinks=s_aux)
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    match plan:
        case StepPlan():
            output = _over_pages(plan, _layer_of(module), queries, keys, values, rule, scores)
        case WholePlan():
            bias = _bias_in_one_piece(plan, rule, queries)
            output = _attend(queries, keys[None], values[None], bias, scores)
        case _:
            plan.calls.append(
                AttentionCall(
                    layer=_layer_of(module),
                    kv_heads=keys.shape[1],
                    key_dim=keys.shape[2],
                    value_dim=values.shape[2],
                )
            )
            output = queries.new_zeros(*queries.shape[:2], values.shape[-1])
    return output.unsqueeze(0), None


class _Scores(NamedTuple):
    """How scores become weights; see `paged_attention`."""

    scale: float
    softcap: float | None
    sinks: Tensor | None


def _layer_of(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    return layer if isinstance(layer, int) else -1


def _over_pages(
    plan: StepPlan,
    layer: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: MaskRule,
    scores: _Scores,
) -> Tensor:
    """Write everything first, then let each group attend; all tensors [tokens, heads, dim]."""
    _store(plan, layer, keys, values)
    parts = []
    for index, group in enumerate(plan.groups):
        stored_keys = plan.cache.gather(layer, KEY, group.page_ids)[..., : keys.shape[-1]]
        stored_values = plan.cache.gather(layer, VALUE, group.page_ids)[..., : values.shape[-1]]
        bias = _bias(plan, rule, index)
        parts.append(_attend(queries[group.rows], stored_keys, stored_values, bias, scores))
    if len(parts) == 1:  # one group is the whole batch in its order
        return parts[0]
    output = queries.new_empty(*queries.shape[:2], values.shape[-1])
    for group, part in zip(plan.groups, parts, strict=True):
        output[group.rows] = part
    return output


def _mask_rule(
    *, mask_function: Callable[..., Tensor], use_vmap: bool = False, **_: Any
) -> MaskRule:
    """Hand the model's predicate through to `paged_attention` instead of a mask tensor."""
    return MaskRule(sees=mask_function, elementwise_only=use_vmap)


def _store(plan: StepPlan, layer: int, keys: Tensor, values: Tensor) -> None:
    if plan.write_rows is not None:
        keys, values = keys[plan.write_rows], values[plan.write_rows]
    if plan.written.numel():
        plan.cache.write(layer, plan.written, keys, values)


def _bias_in_one_piece(plan: WholePlan, rule: MaskRule, queries: Tensor) -> Tensor:
    """Return [1, tokens, tokens], made once for each rule."""
    known = plan.masks.get(id(rule))
    if known is not None:
        return known[1]
    positions = torch.arange(queries.shape[0], device=queries.device)
    seen = rule.mask(positions, positions) & (positions[None, :] <= positions[:, None])
    bias = _as_bias(seen[None], queries.dtype)
    plan.masks[id(rule)] = (rule, bias)
    return bias


def _bias(plan: StepPlan, rule: MaskRule, index: int) -> Tensor:
    """Return [sequences, queries, slots], made once for each rule and group."""
    known = plan.masks.get((id(rule), index))
    if known is not None:
        return known[1]
    group = plan.groups[index]
    device = group.page_ids.device
    slots = torch.arange(group.page_ids.shape[1] * plan.cache.page_size, device=device)
    ends = torch.tensor(group.kv_lens, device=device)
    offsets = torch.arange(group.query_len, device=device)
    queries = (ends[:, None] - group.query_len + offsets[None, :]).reshape(-1)
    seen = rule.mask(queries, slots) & (slots[None, :] <= queries[:, None])
    seen = seen.view(len(group.kv_lens), group.query_len, -1)
    bias = _as_bias(seen, plan.cache.tensor.dtype)
    plan.masks[id(rule), index] = (rule, bias)  # the rule too, so that its id stays taken
    return bias


def _as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores: 0 where seen, -inf elsewhere.

    The fused kernel would make it of a bool mask by itself, but in every layer.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scores: _Scores) -> Tensor:
    """Attend over gathered slots; query heads of one KV head share its keys without a copy.

    Args:
        query: [sequences * queries, heads, head_dim].
        keys: [sequences, slots, kv_heads, head_dim].
        values: [sequences, slots, kv_heads, value_dim].
        bias: Added to the scores; [sequences, queries, slots].
        scores: How they become weights.

    Returns:
        [sequences * queries, heads, value_dim].
    """
    sequences, query_len, _ = bias.shape
    kv_heads = keys.shape[2]
    shared = query.shape[1] // kv_heads
    grouped = query.reshape(sequences, query_len, kv_heads, shared, -1).permute(0, 2, 3, 1, 4)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if query_len == 1:  # one row for each shared head, so that keys are read once
        grouped = grouped.squeeze(3)
        bias = bias[:, None, :, :]
    else:  # [kv_heads, shared, queries, dim]: the shared heads are a batch of stride 0
        assert sequences == 1, "chunks attend alone"
        grouped = grouped[0]
        keys = keys[0].unsqueeze(1).expand(-1, shared, -1, -1)
        values = values[0].unsqueeze(1).expand(-1, shared, -1, -1)
        bias = bias[None]
    if scores.softcap is None and scores.sinks is None:
        mixed = scaled_dot_product_attention(
            grouped, keys, values, attn_mask=bias, scale=scores.scale
        )
    else:
        sinks = None
        if scores.sinks is not None:
            by_head = scores.sinks.view(kv_heads, shared)
            sinks = by_head[None, :, :, None] if query_len == 1 else by_head[:, :, None, None]
        mixed = _attend_by_hand(grouped, keys, values, bias, scores._replace(sinks=sinks))
    if query_len == 1:
        return mixed.reshape(sequences, kv_heads * shared, -1)
    return mixed.permute(2, 0, 1, 3).reshape(query_len, kv_heads * shared, -1)


def _attend_by_hand(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scores: _Scores
) -> Tensor:
    """Attend with capped scores or sinks, which the fused kernel does not know."""
    raw = torch.matmul(query, keys.transpose(-1, -2)).float() * scores.scale
    if scores.softcap is not None:
        raw = torch.tanh(raw / scores.softcap) * scores.softcap
    raw = raw + bias
    if scores.sinks is not None:
        raw = torch.cat((raw, scores.sinks.float().expand(*raw.shape[:-1], 1)), dim=-1)
    weights = torch.softmax(raw, dim=-1)[..., : keys.shape[-2]]
    return torch.matmul(weights.to(values.dtype), values)


def _decode_groups(
    decodes: list[tuple[int, SequenceStep]], page_size: int, device: torch.device
) -> list[Group]:
    """Gather decodes of similar length together, so that padding never costs more than it saves."""
    groups: list[Group] = []
    together: list[tuple[int, SequenceStep]] = []
    for row, step in sorted(decodes, key=lambda item: item[1].kv_len):
        if together and step.kv_len > RAGGED_RATIO * max(together[0][1].kv_len, page_size):
            groups.append(_group(together, page_size, device))
            together = []
        together.append((row, step))
    if together:
        groups.append(_group(together, page_size, device))
    return groups


def _group(members: list[tuple[int, SequenceStep]], page_size: int, device: torch.device) -> Group:
    members = sorted(members, key=lambda member: member[0])
    first_row, first = members[0]
    query_len = len(first.tokens)
    used = [math.ceil(step.kv_len / page_size) for _, step in members]
    widest = max(used)
    tables = [
        [*step.page_table[:pages], *[step.page_table[0]] * (widest - pages)]
        for (_, step), pages in zip(members, used, strict=True)
    ]
    rows: slice | Tensor = slice(first_row, first_row + query_len * len(members))
    if members[-1][0] - first_row >= len(members) > 1:  # others' rows lie between
        rows = torch.tensor([row for row, _ in members], device=device)
    return Group(
        rows=rows,
        page_ids=torch.tensor(tables, dtype=torch.int64, device=device),
        kv_lens=tuple(step.kv_len for _, step in members),
        query_len=query_len,
    )
