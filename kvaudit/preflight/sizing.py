"""Sizing: bytes of KV per token from a model's configuration, and tokens of a pool as a range.

The formulas are those of SGLang 0.5.11 to 0.5.23 and of vLLM's paged cache. Sizes are bytes; memory
is GiB where a name says so. What a configuration does not say is not guessed: the answer is None,
or a range with its assumptions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvaudit.errors import ConfigError
from kvaudit.findings import Json

GIB = 2**30
# Bytes of one element by the names that engines give number formats.
ELEMENT_BYTES = {
    "auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "fp8": 1, "fp8_e5m2": 1,
    "fp8_e4m3": 1, "int8": 1,
}  # fmt: skip
SCALE_GROUP = 128  # elements of a packed format that share one scale of four bytes
SCALE_BYTES = 4
ROPE_BYTES = 2  # the rotary part of a packed latent stays in bfloat16
SPARSE_PAGE_TOKENS = 64
DEFAULT_FRACTION = (0.80, 0.90)  # what SGLang chooses by itself on cards of 24 GB and more

VLLM_UTILIZATION = (0.90, 0.92)  # 0.9 for years, 0.92 in 0.32.0
VLLM_OVERHEAD = 0.1  # of the card: activations, graphs, what others use


class Attention(StrEnum):
    """How a layer keeps what it has read."""

    HEADS = "heads"  # MHA, GQA, MQA: keys and values of each head
    LATENT = "latent"  # MLA: one compressed vector, not divided over tensor ranks
    SPARSE = "sparse"  # DSA: MLA with an index of keys beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a model decides the size of its KV.

    Attributes:
        attention: Kind of its layers.
        layers: Layers that keep KV for every token.
        window_layers: Layers of a sliding window, which have a pool of their own.
        state_layers: Recurrent layers, whose state is kept by request and not by token.
        kv_heads: Heads that keep keys and values.
        key_dim, value_dim: Elements of a head.
        latent_dim, rope_dim: Elements of MLA's vector.
        index_dim, index_layers: Of DSA's index.
        draft_layers: Layers of a draft model that share the pool.
        context_tokens: Longest context of the model; None if it does not say.
        assumptions: What was taken for granted.
    """

    attention: Attention
    layers: int
    window_layers: int = 0
    state_layers: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    latent_dim: int = 0
    rope_dim: int = 0
    index_dim: int = 0
    index_layers: int = 0
    draft_layers: int = 0
    context_tokens: int | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRange:
    """Tokens of a pool, from the least to the most that the assumptions allow."""

    low: int
    high: int
    assumptions: tuple[str, ...]


def shape_of(config: Mapping[str, Json], *, draft_layers: int = 0) -> Shape:
    """Return the shape that a model's `config.json` tells of.

    Raises:
        ConfigError: It lacks what its kind of attention needs.
    """
    inner = config.get("text_config")
    held = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    total = _whole(held, "num_hidden_layers")
    window, state = _layer_kinds(held, total)
    context = held.get("max_position_embeddings")
    shared: dict[str, Any] = {
        "layers": total - window - state, "window_layers": window, "state_layers": state,
        "draft_layers": draft_layers,
    }  # fmt: skip
    known_context = context if isinstance(context, int) else None
    if held.get("kv_lora_rank"):
        return _latent(held, shared, known_context)
    heads = _whole(held, "num_attention_heads")
    kv_heads = _whole(held, "num_key_value_heads", default=heads)
    dim = _whole(held, "head_dim", default=_whole(held, "hidden_size", default=0) // heads)
    if dim == 0:
        raise ConfigError("the model's configuration has neither `head_dim` nor `hidden_size`")
    if shared["layers"] < 1:
        raise ConfigError("no layer of the model keeps KV for every token")
    return Shape(
        attention=Attention.HEADS, kv_heads=kv_heads, key_dim=dim,
        value_dim=_whole(held, "v_head_dim", default=dim), context_tokens=known_context, **shared,
    )  # fmt: skip


def _latent(held: Mapping[str, Json], shared: Mapping[str, Any], context: int | None) -> Shape:
    index = held.get("index_head_dim")
    is_sparse = isinstance(index, int) and index > 0
    indexed = held.get("num_indexer_layers", held.get("index_n_layers"))
    layers = int(shared["layers"])
    assumed = is_sparse and not isinstance(indexed, int)
    return Shape(
        attention=Attention.SPARSE if is_sparse else Attention.LATENT,
        latent_dim=_whole(held, "kv_lora_rank"),
        rope_dim=_whole(held, "qk_rope_head_dim"),
        index_dim=index if isinstance(index, int) else 0,
        index_layers=indexed if isinstance(indexed, int) else layers if is_sparse else 0,
        context_tokens=context,
        assumptions=("every layer has an index of its own",) if assumed else (),
        **shared,
    )


def _layer_kinds(held: Mapping[str, Json], total: int) -> tuple[int, int]:
    """Return how many layers have a sliding window and how many are recurrent."""
    kinds = held.get("layer_types", held.get("layers_block_type"))
    if not isinstance(kinds, list):
        return _patterned(held, total)
    if len(kinds) != total:
        raise ConfigError(f"`layer_types` names {len(kinds)} layers, `num_hidden_layers` {total}")
    window = sum("sliding" in str(kind) for kind in kinds)
    state = sum(any(word in str(kind) for word in ("linear", "mamba", "conv", "recurrent"))
                for kind in kinds)  # fmt: skip
    return window, state


def _patterned(held: Mapping[str, Json], total: int) -> tuple[int, int]:
    """Return the same for configurations that give a rule instead of a list."""
    pattern = held.get("hybrid_override_pattern")  # Nemotron-H: `M` state, `*` attention, `-` none
    if isinstance(pattern, str):
        return 0, total - pattern.count("*")
    for name in ("full_attention_interval", "attn_layer_period"):  # Qwen3-Next, Jamba
        if held.get(name) is not None:
            return 0, total - total // _whole(held, name)
    if held.get("sliding_window_pattern") is not None:  # Gemma 3
        return total - total // _whole(held, "sliding_window_pattern"), 0
    return 0, 0


def _whole(held: Mapping[str, Json], name: str, *, default: int | None = None) -> int:
    value = held.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
        return value
    if value is None and default is not None:
        return default
    raise ConfigError(
        f"the model's configuration has no usable `{name}`", hint="give the model's `config.json`"
    )


def token_bytes(shape: Shape, *, kv_dtype: str = "bfloat16", tensor_ranks: int = 1) -> int:
    """Return the bytes of KV that one token takes on one card, draft layers among them.

    Layers of a sliding window and recurrent layers have memory of their own and do not count.

    Raises:
        ConfigError: The number format is not known.
    """
    if kv_dtype not in ELEMENT_BYTES:
        raise ConfigError(
            f"the size of the number format `{kv_dtype}` is not known",
            hint=f"known: {', '.join(ELEMENT_BYTES)}",
        )
    element = ELEMENT_BYTES[kv_dtype]
    layers = shape.layers + shape.draft_layers
    if shape.attention is Attention.HEADS:
        # Heads are repeated, not split, once there are more ranks than heads.
        heads = max(1, shape.kv_heads // tensor_ranks)
        return heads * (shape.key_dim + shape.value_dim) * layers * element
    if shape.attention is Attention.LATENT:
        return (shape.latent_dim + shape.rope_dim) * layers * element
    packed = element == 1
    latent = (
        shape.latent_dim + shape.latent_dim // SCALE_GROUP * SCALE_BYTES
        + shape.rope_dim * ROPE_BYTES
    ) if packed else (shape.latent_dim + shape.rope_dim) * element  # fmt: skip
    index = shape.index_dim + shape.index_dim // SCALE_GROUP * SCALE_BYTES
    return latent * layers + index * shape.index_layers


def rest_gib(before_gib: float, weights_gib: float, fraction: float) -> float:
    """Return what SGLang leaves to the pool, in GiB: free after weights, less its reserve."""
    return before_gib - weights_gib - before_gib * (1 - fraction)


def pool_tokens_of(rest: float, cell: int, page_size: int = 1) -> int:
    """Return the tokens that fit, whole pages only; 0 when the weights alone are too large.

    Args:
        rest: GiB left to the pool.
        cell: Bytes of one token.
        page_size: Tokens of a page.
    """
    tokens = max(0, math.floor(rest * GIB / cell + 1e-6))
    return tokens // page_size * page_size


def sglang_pool(
    shape: Shape,
    *,
    card_gib: float,
    weights_gib: float,
    tensor_ranks: int = 1,
    kv_dtype: str = "bfloat16",
    page_size: int = 1,
    fraction: float | None = None,
    most_tokens: int | None = None,
) -> PoolRange:
    """Return the pool of one SGLang rank as a range.

    Args:
        shape: The model.
        card_gib: Memory of the card that is free before anything is loaded.
        weights_gib: Weights of one rank.
        tensor_ranks: Ranks that divide the heads.
        kv_dtype: Number format of the KV.
        page_size: Tokens of a page.
        fraction: `--mem-fraction-static`; None = SGLang chooses.
        most_tokens: `--max-total-tokens`; None = no limit.
    """
    cell = token_bytes(shape, kv_dtype=kv_dtype, tensor_ranks=tensor_ranks)
    low, high = (fraction, fraction) if fraction is not None else DEFAULT_FRACTION
    assumptions = list(shape.assumptions)
    assumptions.append(f"{card_gib:g} GiB free before and {weights_gib:g} GiB of weights")
    if fraction is None:
        assumptions.append(f"SGLang chooses a memory fraction of {low:g} to {high:g}")
    share = _kept(shape, assumptions)
    tokens = [
        pool_tokens_of(rest_gib(card_gib, weights_gib, part) * kept, cell, page_size)
        for part, kept in ((low, share), (high, 1.0))
    ]
    most = tokens[1] if most_tokens is None else most_tokens // page_size * page_size
    return PoolRange(
        low=min(tokens[0], most), high=min(tokens[1], most), assumptions=tuple(assumptions)
    )


def vllm_pool(
    shape: Shape,
    *,
    card_gib: float,
    weights_gib: float,
    overhead_gib: tuple[float, float] | None = None,
    utilization: float | None = None,
    tensor_ranks: int = 1,
    kv_dtype: str = "bfloat16",
    block_size: int = 16,
) -> PoolRange:
    """Return the pool of one vLLM engine as a range.

    Args:
        shape: The model.
        card_gib: Memory of the card.
        weights_gib: Weights of one rank.
        overhead_gib: Least and most of activations and whatever else is in use; None = between
            nothing and `VLLM_OVERHEAD` of the card.
        utilization: `--gpu-memory-utilization`; None = vLLM's own, which its versions differ in.
        tensor_ranks: Ranks that divide the heads.
        kv_dtype: Number format of the KV.
        block_size: Tokens of a block.
    """
    cell = token_bytes(shape, kv_dtype=kv_dtype, tensor_ranks=tensor_ranks)
    least, most = overhead_gib or (0.0, card_gib * VLLM_OVERHEAD)
    low, high = (utilization, utilization) if utilization is not None else VLLM_UTILIZATION
    assumptions = [*shape.assumptions, f"{card_gib:g} GiB of memory, {weights_gib:g} of weights"]
    assumptions.append(f"{least:g} to {most:g} GiB beside weights and KV")
    if utilization is None:
        assumptions.append(f"vLLM takes a share of {low:g} to {high:g} of the memory")
    share = _kept(shape, assumptions)
    return PoolRange(
        low=pool_tokens_of((card_gib * low - weights_gib - most) * share, cell, block_size),
        high=pool_tokens_of(card_gib * high - weights_gib - least, cell, block_size),
        assumptions=tuple(assumptions),
    )


def _kept(shape: Shape, assumptions: list[str]) -> float:
    """Return the least share of the memory that is left to layers which keep every token."""
    others = shape.window_layers + shape.state_layers
    if not others:
        return 1.0
    # Their memory comes first and can take up to everything that they would take as full.
    assumptions.append("windows and recurrent states take between nothing and their full share")
    return shape.layers / (shape.layers + others)
