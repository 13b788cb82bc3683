from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, fitted, sized_for, start_check, with_needs
from engine.faults import FAULTS, fault_plan
from kvaudit.errors import ConfigError, StartRefusedError, UnknownNameError


def test_the_defaults_are_the_incident_at_small_scale():
    config = EngineConfig()
    assert (config.page_size, config.context_tokens) == (16, 2048)
    assert (config.prefill_pool_tokens, config.decode_pool_tokens) == (1328, 4096)
    assert config.prefill_limit == 1322
    assert config.decode_limit == 2042
    assert config.waiting_timeout_s == 2.0


def test_the_incidents_own_limit_comes_out():
    config = EngineConfig(
        context_tokens=1_048_576, prefill_pool_tokens=681_280, decode_pool_tokens=2_097_152,
        page_size=64,
    )  # fmt: skip
    assert config.prefill_limit == 681_274


def test_smollm2_has_a_smaller_deployment_with_the_same_band():
    config = sized_for("smollm2")
    assert (config.context_tokens, config.prefill_pool_tokens) == (512, 256)
    assert config.decode_pool_tokens == 1024
    assert config.prefill_limit < config.decode_limit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill_pool_tokens": 8}, "smaller than one page"),
        ({"decode_pool_tokens": 1000}, "no multiple of the page size"),
        ({"page_size": 0}, "`page_size` is 0"),
        ({"context_tokens": -5}, "`context_tokens` is -5"),
        ({"context_tokens": 7}, "admits no prompt"),
        ({"page_size": 1, "prefill_pool_tokens": 7}, "admits no prompt"),
        ({"waiting_timeout_s": 0.0}, "waiting_timeout_s"),
        ({"hash_bits": 129}, "hash_bits"),
        ({"chunk_tokens": True}, "chunk_tokens"),
        ({"device": "cpu:1"}, "is no device"),
    ],
)
def test_a_size_that_does_not_fit_is_named(change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        EngineConfig(**change)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"device": "cudda"}, "cuda"),
        ({"decode_device": "cpuu"}, "cpu"),
        ({"dtype": "bfloat"}, "bfloat16"),
        ({"granularity": "tokens"}, "token"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_one(change, nearest):
    with pytest.raises(UnknownNameError) as caught:
        EngineConfig(**change)
    assert caught.value.nearest == nearest


def test_the_hint_for_a_ragged_pool_names_two_sizes_that_fit():
    with pytest.raises(ConfigError) as caught:
        EngineConfig(prefill_pool_tokens=1000)
    assert caught.value.hint == "choose 992 or 1008"


def test_start_check_refuses_the_default_deployment_and_takes_a_sound_one():
    with pytest.raises(StartRefusedError, match="prefill pool holds 1328"):
        start_check(EngineConfig())
    with pytest.raises(StartRefusedError, match="decode pool holds 1024"):
        start_check(EngineConfig(prefill_pool_tokens=2048, decode_pool_tokens=1024))
    start_check(EngineConfig(prefill_pool_tokens=2048))


def test_a_fault_is_refused_without_what_it_needs():
    plan = fault_plan("prefix-hash-collision")
    with pytest.raises(ConfigError, match="prefix cache"):
        EngineConfig(faults=plan)
    config, switched = with_needs(EngineConfig(), plan)
    assert config.prefix_cache
    assert switched == ("prefix cache",)


def test_what_is_on_already_is_not_said_to_be_switched_on():
    config = EngineConfig(prefix_cache=True)
    assert with_needs(config, fault_plan("prefix-hash-collision"))[1] == ()


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_can_be_configured_with_its_needs(name):
    config, _ = with_needs(EngineConfig(), fault_plan(name))
    assert config.faults.fault == name


@given(positions=st.integers(64, 4096))
def test_a_smaller_model_keeps_the_band_between_the_limits(positions):
    config = fitted(EngineConfig(), positions)
    assert config.context_tokens <= positions
    assert config.prefill_limit < config.decode_limit


def test_pages_round_up():
    config = replace(EngineConfig(), page_size=16)
    assert [config.pages(count) for count in (1, 16, 17, 1340)] == [1, 1, 2, 84]
