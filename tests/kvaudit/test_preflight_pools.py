"""Pools through the whole way: the worked examples, and those that real servers told of."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvaudit.cli.preflight_run import read_deployment, told
from kvaudit.findings import Verdict
from kvaudit.preflight.capacity import capacity_facts
from kvaudit.preflight.deployment import Deployment
from kvaudit.preflight.judging import judge_deployment
from kvaudit.preflight.sizing import GIB, sglang_pool, shape_of, token_bytes, vllm_pool

DATA = Path(__file__).resolve().parents[1] / "data"
LOGS, PAGES = DATA / "real-logs", DATA / "deployments"
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


def planned(
    tmp_path: Path, config: dict[str, Any], command: str, memory: tuple[float, float]
) -> Deployment:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "launch.sh").write_text(command, encoding="utf-8")
    return read_deployment([str(tmp_path / n) for n in ("launch.sh", "config.json")], [], memory)


@pytest.mark.parametrize(
    ("config", "flags", "memory", "pool", "limit", "is_enough"),
    [
        (SMOLLM, "--mem-fraction-static 0.85", (23.5, 0.26), 918_785, 8_186, True),
        (LLAMA, "--mem-fraction-static 0.88", (79, 15), 446_627, 131_066, True),
        (LLAMA, "--mem-fraction-static 0.88", (23.5, 15), 46_530, 46_524, False),
        (QWEN, "--mem-fraction-static 0.88", (23.5, 15.3), 39_175, 39_169, False),
        (DEEPSEEK, "--mem-fraction-static 0.85 --page-size 64 --tp 8", (139, 80), 582_912, 163_834,
         True),
        (GLM, "--mem-fraction-static 0.85 --page-size 64 --tp 8 --kv-cache-dtype fp8_e4m3",
         (139, 90), 560_320, 560_314, False),
    ],
)  # fmt: skip
def test_a_worked_example_comes_out_of_the_whole_way(
    tmp_path: Path, config: dict[str, Any], flags: str, memory: tuple[float, float], pool: int,
    limit: int, is_enough: bool,
) -> None:  # fmt: skip
    command = f"pip install sglang==0.5.22\nsglang serve --model-path m {flags}"
    deployment = planned(tmp_path, config, command, memory)
    (role,) = deployment.roles
    sizes = capacity_facts(role, deployment)
    assert (sizes["pool_tokens"], sizes["input_limit_tokens"]) == (pool, limit)
    assert sizes["pool_range_tokens"] == [pool, pool]
    fired = {finding.evidence.rule_id for finding in judge_deployment(deployment).findings}
    assert ("KVA704" not in fired) is is_enough


@pytest.mark.parametrize(
    ("config", "dtype", "tokens", "gib", "digits"),
    [
        (SMOLLM, "bfloat16", 8_192, 0.176, 3),
        (LLAMA, "bfloat16", 131_072, 16.0, 1),
        (QWEN, "bfloat16", 40_960, 5.625, 3),
        (DEEPSEEK, "bfloat16", 163_840, 10.723, 3),
        (GLM, "fp8_e4m3", 1_048_576, 52.68, 2),
        (GLM | {"num_indexer_layers": None}, "fp8_e4m3", 1_048_576, 60.02, 2),
        (GLM, "fp8_e4m3", 681_280, 34.22, 2),
        (GLM | {"num_indexer_layers": None}, "fp8_e4m3", 681_280, 39.00, 2),
    ],
)
def test_one_context_takes_what_the_worked_example_says(
    config: dict[str, Any], dtype: str, tokens: int, gib: float, digits: int
) -> None:
    assert round(tokens * token_bytes(shape_of(config), kv_dtype=dtype) / GIB, digits) == gib


def test_the_latent_part_alone_takes_what_the_worked_example_says() -> None:
    without_index = {key: value for key, value in GLM.items() if "index" not in key}
    assert token_bytes(shape_of(without_index)) == 89_856


def test_the_pool_in_the_log_of_a_real_sglang_is_the_one_reckoned(tmp_path: Path) -> None:
    deployment = read_deployment([str(LOGS / "sglang-ok.log")], ["0.5.23"])
    (role,) = deployment.roles
    sizes = capacity_facts(role, deployment)
    assert (sizes["pool_tokens"], sizes["context_tokens"]) == (9_600, 8_192)
    assert not sizes["pool_is_planned"]
    assert judge_deployment(deployment).verdict is Verdict.CLEAN
    # It says "K size: 0.10 GB, V size: 0.10 GB" of them.
    assert round(9_600 * token_bytes(shape_of(SMOLLM)) / 2 / GIB, 2) == 0.10
    # Its own fraction and limit, on a processor with that much left to it.
    reckoned = sglang_pool(shape_of(SMOLLM), card_gib=16, weights_gib=0.26, fraction=0.719,
                           most_tokens=9_600)  # fmt: skip
    assert reckoned.low <= 9_600 <= reckoned.high


def test_the_pool_in_the_metrics_of_a_real_sglang_is_read() -> None:
    deployment = read_deployment([str(PAGES / "metrics-sglang.txt")], ["0.5.23"])
    (role,) = deployment.roles
    sizes = capacity_facts(role, deployment)
    assert (role.engine, sizes["pool_tokens"], sizes["context_tokens"]) == ("sglang", 9_600, 8_192)
    assert role.role == "unified"


def test_the_pools_of_a_real_vllm_are_the_ones_reckoned() -> None:
    (told_by_metrics,) = read_deployment([str(PAGES / "metrics-vllm.txt")], ["0.32.0"]).roles
    assert told_by_metrics.fact("pool_tokens") == 46_592
    # It had one GiB for KV, and blocks of 128 tokens; with blocks of 32 it said 1,456 of them.
    for block, tokens in ((128, 46_592), (32, 1_456 * 32)):
        reckoned = vllm_pool(shape_of(SMOLLM), card_gib=1, weights_gib=0, overhead_gib=(0, 0.1),
                             utilization=1, block_size=block)  # fmt: skip
        assert reckoned.low <= tokens <= reckoned.high
        assert reckoned.high == tokens


def test_the_log_of_a_real_vllm_tells_its_version_its_flags_and_its_pool() -> None:
    deployment = read_deployment([str(LOGS / "vllm-debug.log")], [])
    (role,) = deployment.roles
    assert role.version is not None
    assert role.version.value == "0.32.0"
    assert role.fact("num_gpu_blocks_override") == 300
    assert role.fact("enable_prefix_caching") is False
    sizes = capacity_facts(role, deployment)
    assert (sizes["pool_tokens"], sizes["context_tokens"]) == (9_600, 8_192)
    assert judge_deployment(deployment).verdict is Verdict.CLEAN


def test_the_log_of_a_real_llama_cpp_tells_its_slots() -> None:
    (role,) = read_deployment([str(LOGS / "llamacpp.log")], ["b13000"]).roles
    assert (role.engine, role.fact("slot_tokens"), role.fact("parallel")) == ("llama.cpp", 8192, 4)


def test_the_pool_of_vllm_is_reckoned_as_a_range_with_its_assumptions(tmp_path: Path) -> None:
    command = "docker run vllm/vllm-openai:v0.32.0 --model m"
    deployment = planned(tmp_path, LLAMA, command, (79, 15))
    sizes = capacity_facts(deployment.roles[0], deployment)
    # (79 x 0.90 - 15 - 7.9) and (79 x 0.92 - 15) GiB, by 131,072 bytes, in blocks of 16.
    assert sizes["pool_range_tokens"] == [394_848, 472_512]
    assert "vLLM takes a share of 0.9 to 0.92" in str(sizes["pool_range_assumes"])
    judgement = judge_deployment(deployment)
    assert judgement.verdict is Verdict.CLEAN
    assert "(reckoned: 394,848 to 472,512)" in told(deployment, judgement)


def test_vllm_whose_memory_holds_no_context_is_said_to_refuse_to_start(tmp_path: Path) -> None:
    command = "docker run vllm/vllm-openai:v0.32.0 --model m --gpu-memory-utilization 0.9"
    judgement = judge_deployment(planned(tmp_path, LLAMA, command, (24, 15)))
    assert "vLLM will then refuse to start" in " ".join(judgement.assumptions)
    assert judgement.verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    ("config", "flags", "said"),
    [
        ({"num_hidden_layers": 12, "d_model": 512}, "", "no usable `num_attention_heads`"),
        (LLAMA, "--kv-cache-dtype nvfp4", "number format `nvfp4`"),
    ],
)
def test_a_pool_that_can_not_be_reckoned_stays_unknown_and_says_why(
    tmp_path: Path, config: dict[str, Any], flags: str, said: str
) -> None:
    lines = ["pip install sglang==0.5.22"] + [
        f"sglang serve --model-path m --disaggregation-mode {role} --context-length 9999 {flags}"
        for role in ("prefill", "decode")
    ]
    judgement = judge_deployment(planned(tmp_path, config, "\n".join(lines), (79, 15)))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert said in " ".join(judgement.assumptions)
    assert "`pool_tokens` of prefill; KVA703 hangs on it" in " ".join(judgement.reasons)


@pytest.mark.parametrize(
    ("more", "layers", "window", "state"),
    [
        ({"full_attention_interval": 4}, 8, 0, 24),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 4, 0, 28),
        ({"sliding_window_pattern": 6}, 5, 27, 0),
        ({"hybrid_override_pattern": "M-M*" * 8}, 8, 0, 24),
        ({"layer_types": ["full_attention", "sliding_attention"] * 16}, 16, 16, 0),
    ],
)
def test_the_kinds_of_layers_are_told_by_list_or_by_rule(
    more: dict[str, Any], layers: int, window: int, state: int
) -> None:
    shape = shape_of(LLAMA | more)
    assert (shape.layers, shape.window_layers, shape.state_layers) == (layers, window, state)
