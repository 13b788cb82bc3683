import dataclasses

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from engine.attention import AttentionCall
from engine.copier_tokenizer import CopierCodec
from engine.model import PagedModel, build_model
from engine.selftest import pool_shape
from kvaudit.errors import EngineError

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "pad_token_id": 0,
}


def paged(kind, config):
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(7)  # noqa: TID251 - transformers draws weights from the global state
        network = kind(config).train(mode=False).requires_grad_(False)
    return PagedModel(name="tiny", network=network, codec=CopierCodec(), eos_token_ids=frozenset())


def test_a_recurrent_hybrid_is_refused_because_some_layers_never_attend():
    config = Qwen3NextConfig(
        **TINY,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    with pytest.raises(EngineError, match="in 1 of its 4 layers: the others"):
        paged(Qwen3NextForCausalLM, config)


def test_a_hybrid_that_attends_in_every_layer_is_refused_because_its_logits_differ():
    config = FalconH1Config(
        **TINY, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1
    )
    model = paged(FalconH1ForCausalLM, config)
    with pytest.raises(EngineError, match="other logits over pages than in one piece"):
        model.self_test()


def test_a_model_that_attends_past_the_interface_is_refused():
    config = BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(EngineError, match="past transformers' attention interface"):
        paged(BloomForCausalLM, config)


def test_a_model_that_attends_twice_in_a_layer_is_refused():
    with pytest.raises(EngineError, match="2 times for layer 0"):
        paged(DiffLlamaForCausalLM, DiffLlamaConfig(**TINY))


def test_keys_of_different_shape_in_different_layers_are_refused():
    calls = [
        AttentionCall(layer=0, kv_heads=2, key_dim=8, value_dim=8),
        AttentionCall(layer=1, kv_heads=1, key_dim=8, value_dim=8),
    ]
    with pytest.raises(EngineError, match="different shape in different layers"):
        pool_shape(calls, num_layers=2, name="tiny")


def test_the_pool_is_as_wide_as_the_wider_of_key_and_value():
    calls = [AttentionCall(layer=0, kv_heads=2, key_dim=24, value_dim=16)]
    assert pool_shape(calls, num_layers=1, name="tiny") == (1, 2, 24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_copier_passes(dtype):
    torch.set_num_threads(1)
    build_model("copier", "cpu", dtype).self_test()


def test_an_attention_off_by_one_slot_does_not_pass(monkeypatch):
    torch.set_num_threads(1)
    model = build_model("copier", "cpu")
    right = model.step

    def one_slot_short(cache, steps):
        return right(cache, [_shortened(step) for step in steps])

    monkeypatch.setattr(model, "step", one_slot_short)
    with pytest.raises(EngineError, match="off by"):
        model.self_test()


def _shortened(step):
    return dataclasses.replace(step, kv_len=max(step.kv_len - 1, len(step.tokens)))
