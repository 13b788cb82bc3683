"""Capacity: what each role can hold, what is advertised, and which prompt lengths are exposed.

SGLang admits a prompt of fewer than `min(context, pool) - 6` tokens (0.5.11 to 0.5.23). Between the
limits of prefill and decode, one role refuses what the other has reserved pages for.
"""

import json
from dataclasses import dataclass

from kvaudit.errors import ConfigError
from kvaudit.findings import Json
from kvaudit.preflight.conditions import UNKNOWN, Unknown, Value
from kvaudit.preflight.deployment import Deployment, Role
from kvaudit.preflight.sizing import PoolRange, sglang_pool, shape_of, vllm_pool

# `max_req_len = min(context, pool) - 1`, and five tokens are kept for the answer.
SGLANG_MARGIN_TOKENS = 6
VLLM_BLOCK_TOKENS = 16  # on CUDA; a processor has other ones, and says so in its metrics

Count = int | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Prompt lengths that one role refuses and the other takes, `start` inclusive, in tokens.

    Attributes:
        start, end: The band.
        assumptions: What was taken for granted, for people.
    """

    start: int
    end: int
    assumptions: tuple[str, ...] = ()


def pool_tokens(role: Role) -> Count:
    """Return the size of a role's KV pool: as measured, else as planned."""
    measured = _count(role.fact("pool_tokens"))
    if not isinstance(measured, Unknown):
        return measured
    planned, estimate = _planned(role), estimated_pool(role)
    if estimate is None or (role.engine == "vllm" and not isinstance(planned, Unknown)):
        return planned
    if isinstance(planned, Unknown):
        return estimate.low if estimate.low == estimate.high else UNKNOWN
    return min(planned, estimate.high)


def _planned(role: Role) -> Count:
    if role.engine == "vllm":
        blocks, page = _count(role.fact("num_gpu_blocks_override")), _count(role.fact("page_size"))
        if isinstance(blocks, Unknown):
            return UNKNOWN
        return blocks * (VLLM_BLOCK_TOKENS if isinstance(page, Unknown) else page)
    return _count(role.fact("max_total_tokens")) if role.engine == "sglang" else UNKNOWN


def estimated_pool(role: Role) -> PoolRange | None:
    """Return the pool that the model, the card and the flags give; None unless all are told."""
    try:
        return _reckoned(role)
    except ConfigError:
        return None  # `sizing_doubt` tells why


def sizing_doubt(role: Role, deployment: Deployment) -> str | None:
    """Return what is odd about a reckoned pool, for people; None if nothing is."""
    try:
        estimate = _reckoned(role)
    except ConfigError as error:
        return f"the pool of {role.name} can't be reckoned: {error.message}"
    context = context_tokens(role, deployment)
    if estimate is None or isinstance(context, Unknown) or role.engine != "vllm":
        return None
    if estimate.high >= context:
        return None
    return (
        f"the pool of {role.name} is reckoned to hold {estimate.high:,} tokens at most, fewer than"
        f" the context of {context:,}; vLLM will then refuse to start"
    )


def _reckoned(role: Role) -> PoolRange | None:
    """Return the pool as a range.

    Raises:
        ConfigError: The model's configuration, or the number format, is of unknown shape.
    """
    config, card, weights = (
        role.fact(name) for name in ("model_config", "card_gib", "weights_gib")
    )
    if role.engine not in ("sglang", "vllm") or not isinstance(config, str):
        return None
    if not isinstance(card, int | float) or not isinstance(weights, int | float):
        return None
    shape = shape_of(json.loads(config))
    page, dtype = _count(role.fact("page_size")), role.fact("kv_cache_dtype")
    kv_dtype = dtype if isinstance(dtype, str) else "auto"
    if role.engine == "vllm":
        share = role.fact("gpu_memory_utilization")
        return vllm_pool(
            shape, card_gib=card, weights_gib=weights, tensor_ranks=_tensor_ranks(role),
            utilization=share if isinstance(share, float) else None, kv_dtype=kv_dtype,
            block_size=VLLM_BLOCK_TOKENS if isinstance(page, Unknown) else page,
        )  # fmt: skip
    most, fraction = _count(role.fact("max_total_tokens")), role.fact("mem_fraction_static")
    return sglang_pool(
        shape, card_gib=card, weights_gib=weights, tensor_ranks=_tensor_ranks(role),
        kv_dtype=kv_dtype, page_size=1 if isinstance(page, Unknown) else page,
        fraction=fraction if isinstance(fraction, float) else None,
        most_tokens=None if isinstance(most, Unknown) else most,
    )  # fmt: skip


def _tensor_ranks(role: Role) -> int:
    """Return the ranks that divide the heads of one pool."""
    ranks, shards = _count(role.fact("tp_size")), _count(role.fact("dp_size"))
    tensor_ranks = 1 if isinstance(ranks, Unknown) else ranks
    # SGLang's data-parallel attention divides them among its shards; vLLM's shards are apart.
    if role.fact("enable_dp_attention") is True and not isinstance(shards, Unknown):
        return max(1, tensor_ranks // shards)
    return tensor_ranks


def is_pool_planned(role: Role) -> bool:
    """Return whether the pool is a flag's upper limit and not a measured size."""
    return isinstance(_count(role.fact("pool_tokens")), Unknown) and not isinstance(
        pool_tokens(role), Unknown
    )


def context_tokens(role: Role, deployment: Deployment) -> Count:
    """Return the context that a role advertises; roles of one deployment serve one model."""
    own = own_context(role)
    if not isinstance(own, Unknown):
        return own
    others = [own_context(other) for other in deployment.roles if other.engine == role.engine]
    known = [held for held in others if not isinstance(held, Unknown)]
    return max(known) if known else UNKNOWN


def own_context(role: Role) -> Count:
    """Return the context that a role's own sources tell, or that its limit shows."""
    said = _count(role.fact("context_length"))
    if not isinstance(said, Unknown):
        return said
    limit, pool = _count(role.fact("input_limit")), _count(role.fact("pool_tokens"))
    if isinstance(limit, Unknown) or isinstance(pool, Unknown):
        return UNKNOWN
    # The limit is below what the pool allows, so the context set it.
    tokens = limit + SGLANG_MARGIN_TOKENS
    return tokens if tokens < pool else UNKNOWN


def input_limit(role: Role, deployment: Deployment) -> Count:
    """Return the prompt length from which SGLang refuses, in tokens."""
    said = _count(role.fact("input_limit"))
    if not isinstance(said, Unknown):
        return said
    context, pool = context_tokens(role, deployment), pool_tokens(role)
    if isinstance(context, Unknown) or isinstance(pool, Unknown):
        return UNKNOWN
    return min(context, pool) - SGLANG_MARGIN_TOKENS


def exposed_band(deployment: Deployment) -> Band | Unknown | None:
    """Return the band between the roles' limits; None if prefill takes all that decode takes."""
    prefills = [role for role in deployment.of("prefill") if role.engine == "sglang"]
    decodes = [role for role in deployment.of("decode") if role.engine == "sglang"]
    if not prefills:
        return UNKNOWN if decodes else None
    limits = [input_limit(role, deployment) for role in prefills]
    known = [limit for limit in limits if not isinstance(limit, Unknown)]
    if not known:
        return UNKNOWN
    start = min(known)
    end, assumptions = _upper(decodes, prefills, deployment)
    if isinstance(end, Unknown):
        return UNKNOWN
    if start < end:
        planned = [role.name for role in (*prefills, *decodes) if is_pool_planned(role)]
        if planned:
            assumptions += (
                f"the pool of {' and '.join(planned)} is as large as its `--max-total-tokens`;"
                " the start-up log tells the real size, which may be smaller",
            )
        return Band(start=start, end=end, assumptions=assumptions)
    return UNKNOWN if len(known) < len(limits) else None


def _upper(
    decodes: list[Role], prefills: list[Role], deployment: Deployment
) -> tuple[Count, tuple[str, ...]]:
    limits = [input_limit(role, deployment) for role in decodes]
    known = [limit for limit in limits if not isinstance(limit, Unknown)]
    if known and len(known) == len(limits):
        return max(known), ()
    # What decode holds is not known. Preflight takes the worst: as much as is advertised.
    contexts = [context_tokens(role, deployment) for role in decodes or prefills]
    advertised = [held for held in contexts if not isinstance(held, Unknown)]
    if not advertised:
        return (max(known), ()) if known else (UNKNOWN, ())
    return max(advertised) - SGLANG_MARGIN_TOKENS, (
        "no source tells the pool of decode; it is taken to hold the advertised context",
    )


NAMES = frozenset({"apart", "exposed", "pool_below_context", "pool"})


def capacity_fact(name: str, role: Role, deployment: Deployment) -> Value:
    """Return one of the facts in `NAMES`."""
    if name == "apart":
        return deployment.is_apart
    if name == "exposed":
        band = exposed_band(deployment)
        return band if isinstance(band, Unknown) else band is not None
    if name == "pool_below_context":
        return _is_below(role, deployment)
    return pool_tokens(role)


def capacity_facts(role: Role, deployment: Deployment) -> dict[str, Json]:
    """Return the sizes of a role for a report; None where no source tells one."""
    sizes = {
        "context_tokens": context_tokens(role, deployment),
        "pool_tokens": pool_tokens(role),
        "input_limit_tokens": input_limit(role, deployment) if role.engine == "sglang" else UNKNOWN,
    }
    shown: dict[str, Json] = {
        name: None if isinstance(held, Unknown) else held for name, held in sizes.items()
    }
    estimate = estimated_pool(role)
    if estimate is not None:
        shown |= {
            "pool_range_tokens": [estimate.low, estimate.high],
            "pool_range_assumes": list(estimate.assumptions),
        }
    return shown | {"pool_is_planned": is_pool_planned(role)}


def unsaid(name: str, role: Role, deployment: Deployment) -> list[str]:
    """Return what would have to be said for a fact of a role to be known."""
    if name not in ("exposed", "pool_below_context"):
        return [name]
    sizes = (
        ("pool_tokens", pool_tokens(role)),
        ("context_length", context_tokens(role, deployment)),
    )
    return [fact for fact, held in sizes if isinstance(held, Unknown)] or [name]


def _is_below(role: Role, deployment: Deployment) -> Value:
    if role.engine not in ("sglang", "vllm"):
        return False  # these refuse to start, or divide a fixed window among their slots
    context, pool = context_tokens(role, deployment), pool_tokens(role)
    if isinstance(pool, Unknown) and role.engine == "vllm":
        return False  # vLLM refuses to start unless one whole context fits
    if isinstance(context, Unknown):
        return UNKNOWN
    estimate = estimated_pool(role) if isinstance(pool, Unknown) else None
    if estimate is not None and (estimate.high < context or estimate.low >= context):
        return estimate.high < context
    return UNKNOWN if isinstance(pool, Unknown) else pool < context


def _count(value: Value) -> Count:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return UNKNOWN
