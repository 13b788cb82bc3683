"""Sizing gives the worked examples exactly, and the measured pools within its range."""

import pytest

from kvaudit.errors import KvauditError
from kvaudit.preflight.sizing import (
    GIB,
    pool_tokens_of,
    rest_gib,
    sglang_pool,
    shape_of,
    token_bytes,
    vllm_pool,
)

SMOLLM = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
          "hidden_size": 576, "max_position_embeddings": 8192}  # fmt: skip
LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "hidden_size": 4096, "max_position_embeddings": 131072}  # fmt: skip
QWEN = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 40960}  # fmt: skip
DEEPSEEK = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "max_position_embeddings": 163840}  # fmt: skip
GLM = {"num_hidden_layers": 78, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
       "num_indexer_layers": 21, "max_position_embeddings": 1048576}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "dtype", "draft", "expected"),
    [
        (SMOLLM, "bfloat16", 0, 23_040),
        (LLAMA, "bfloat16", 0, 131_072),
        (QWEN, "bfloat16", 0, 147_456),
        (DEEPSEEK, "bfloat16", 0, 70_272),
        (DEEPSEEK, "bfloat16", 1, 71_424),
        (DEEPSEEK, "fp8_e4m3", 0, 35_136),
        (GLM, "fp8_e4m3", 0, 53_940),
        (GLM | {"num_indexer_layers": None}, "fp8_e4m3", 0, 61_464),
        (GLM | {"num_indexer_layers": None}, "bfloat16", 0, 100_152),
    ],
)
def test_bytes_per_token_are_those_of_the_worked_examples(
    config: dict[str, int], dtype: str, draft: int, expected: int
) -> None:
    assert token_bytes(shape_of(config, draft_layers=draft), kv_dtype=dtype) == expected


@pytest.mark.parametrize(
    ("config", "dtype", "before", "weights", "fraction", "page", "rest", "tokens"),
    [
        (SMOLLM, "bfloat16", 23.5, 0.26, 0.85, 1, 19.715, 918_785),
        (LLAMA, "bfloat16", 79, 15, 0.88, 1, 54.52, 446_627),
        (LLAMA, "bfloat16", 23.5, 15, 0.88, 1, 5.68, 46_530),
        (QWEN, "bfloat16", 23.5, 15.3, 0.88, 1, 5.38, 39_175),
        (DEEPSEEK, "bfloat16", 139, 80, 0.85, 64, 38.15, 582_912),
        (GLM, "fp8_e4m3", 139, 90, 0.85, 64, 28.15, 560_320),
    ],
)
def test_pools_are_those_of_the_worked_examples(
    config: dict[str, int], dtype: str, before: float, weights: float, fraction: float, page: int,
    rest: float, tokens: int,
) -> None:  # fmt: skip
    assert rest_gib(before, weights, fraction) == pytest.approx(rest)
    shape = shape_of(config)
    assert pool_tokens_of(rest, token_bytes(shape, kv_dtype=dtype), page) == tokens
    pool = sglang_pool(
        shape, card_gib=before, weights_gib=weights, kv_dtype=dtype, page_size=page,
        fraction=fraction,
    )  # fmt: skip
    assert (pool.low, pool.high) == (tokens, tokens)


def test_one_context_takes_what_the_worked_examples_say() -> None:
    cell = token_bytes(shape_of(GLM), kv_dtype="fp8_e4m3")
    assert round(1_048_576 * cell / GIB, 2) == 52.68
    assert round(681_280 * cell / GIB, 2) == 34.22
    assert round(163_840 * token_bytes(shape_of(DEEPSEEK)) / GIB, 3) == 10.723


def test_heads_are_split_over_ranks_and_repeated_past_their_number_and_latents_are_neither() -> (
    None
):
    llama, deepseek = shape_of(LLAMA), shape_of(DEEPSEEK)
    assert token_bytes(llama, tensor_ranks=8) == 131_072 // 8
    assert token_bytes(llama, tensor_ranks=16) == 131_072 // 8
    assert token_bytes(deepseek, tensor_ranks=8) == token_bytes(deepseek)


def test_windows_and_recurrent_layers_have_memory_of_their_own() -> None:
    kinds = ["sliding_attention"] * 16 + ["linear_attention"] * 8 + ["full_attention"] * 8
    mixed = shape_of(LLAMA | {"layer_types": kinds})
    assert token_bytes(mixed) == 131_072 // 4
    pool = sglang_pool(mixed, card_gib=79, weights_gib=15, fraction=0.88)
    assert pool.low < pool.high
    assert any("windows" in text for text in pool.assumptions)


def test_a_fraction_that_nobody_gave_makes_a_range_with_its_assumption() -> None:
    pool = sglang_pool(shape_of(LLAMA), card_gib=79, weights_gib=15)
    assert pool.low < 446_627 < pool.high
    assert any("fraction" in text for text in pool.assumptions)
    capped = sglang_pool(shape_of(LLAMA), card_gib=79, weights_gib=15, most_tokens=100_000)
    assert (capped.low, capped.high) == (100_000, 100_000)


def test_weights_that_do_not_fit_leave_no_pool() -> None:
    pool = sglang_pool(shape_of(LLAMA), card_gib=12, weights_gib=15, fraction=0.88)
    assert (pool.low, pool.high) == (0, 0)


def test_a_measured_pool_of_vllm_lies_within_the_range() -> None:
    # 1 GiB for KV gave 1,456 blocks of 32 tokens for this model in float16 on a processor.
    pool = vllm_pool(
        shape_of(SMOLLM), card_gib=1, weights_gib=0, overhead_gib=(0, 0), utilization=1,
        block_size=32,
    )  # fmt: skip
    assert pool.high // 32 == 1_456


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 2}, "num_attention_heads"),
        ({"num_hidden_layers": 2, "num_attention_heads": 2}, "head_dim"),
        ({"num_hidden_layers": 2, "kv_lora_rank": 512}, "qk_rope_head_dim"),
        (LLAMA | {"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_a_configuration_of_unknown_shape_is_refused(config: dict[str, int], said: str) -> None:
    with pytest.raises(KvauditError, match=said):
        shape_of(config)


def test_a_number_format_of_unknown_size_is_refused() -> None:
    with pytest.raises(KvauditError, match="number format"):
        token_bytes(shape_of(LLAMA), kv_dtype="fp4_x")
