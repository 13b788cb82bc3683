"""What servers' own pages say, read off pages that vLLM 0.32.0 and SGLang 0.5.23 gave."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.serverfacts import RoleFacts, ServerAnswers, facts_of, parse_metrics

DATA = Path(__file__).parent.parent / "data" / "http"


def models(*names, **fields):
    return {"object": "list", "data": [{"id": name, "object": "model"} | fields for name in names]}


def test_vllm_tells_its_context_pool_page_size_and_prefix_cache():
    facts = facts_of(
        ServerAnswers(
            models=models("smollm2", owned_by="vllm", max_model_len=8192),
            version={"version": "0.32.0"},
            metrics=(DATA / "metrics-vllm.txt").read_text(),
        )
    )
    assert (facts.kind, facts.version, facts.model) == ("vllm", "0.32.0", "smollm2")
    assert facts.context_tokens == 8192
    assert facts.roles == (RoleFacts(role="unified", pool_tokens=46592, page_size=128),)
    assert facts.prefix_cache is True
    assert facts.returns_token_ids is True


def test_an_older_vllm_has_its_pool_counted_in_blocks_and_the_smallest_engine_counts():
    line = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks='
    facts = facts_of(
        ServerAnswers(
            models=models("m", owned_by="vllm"),
            metrics=f'{line}"100",engine="0"}} 1.0\n{line}"90",engine="1"}} 1.0\n',
        )
    )
    assert facts.roles == (RoleFacts(role="unified", pool_tokens=1440, page_size=16),)
    assert facts.prefix_cache is False
    assert facts.context_tokens is None


def test_sglang_tells_its_role_limits_by_server_info():
    facts = facts_of(
        ServerAnswers(
            models=models("glm", owned_by="sglang", max_model_len=1_048_576),
            server_info={
                "version": "0.5.19",
                "disaggregation_mode": "prefill",
                "disable_radix_cache": True,
                "page_size": 64,
                "context_length": None,
                "scheduler_info": {"max_total_num_tokens": 681_280, "max_req_input_len": 681_274},
                "internal_states": [{"memory_usage": {"token_capacity": 681_280}}],
            },
        )
    )
    assert facts.kind == "sglang"
    assert facts.prefix_cache is False
    # Lengths of 681,274 and more were refused.
    assert facts.role("prefill") == RoleFacts(
        role="prefill", pool_tokens=681_280, page_size=64, max_input_tokens=681_273
    )
    assert facts.role("decode") is None


def test_sglang_metrics_alone_are_enough_for_pool_and_page():
    facts = facts_of(
        ServerAnswers(
            models=models("smollm2", owned_by="sglang"),
            metrics=(DATA / "metrics-sglang.txt").read_text(),
        )
    )
    assert facts.roles == (RoleFacts(role="unified", pool_tokens=9600, page_size=1),)
    assert facts.context_tokens == 8192


def test_sglangs_string_null_means_one_unified_role():
    info = {"disaggregation_mode": "null", "max_total_num_tokens": 9600, "page_size": 1}
    facts = facts_of(ServerAnswers(models=models("m", owned_by="sglang"), server_info=info))
    assert facts.role("prefill") == RoleFacts(role="unified", pool_tokens=9600, page_size=1)


def test_llama_cpp_tells_its_context_by_the_models_list_or_props():
    listed = facts_of(ServerAnswers(models=models("m", owned_by="llamacpp", meta={"n_ctx": 8192})))
    props = {"build_info": "b0-x", "default_generation_settings": {"n_ctx": 4096}}
    by_props = facts_of(ServerAnswers(models=models("m", owned_by="llamacpp"), props=props))
    assert (listed.kind, listed.context_tokens) == ("llama.cpp", 8192)
    assert (by_props.version, by_props.context_tokens) == ("b0-x", 4096)


def test_the_first_model_that_is_no_adapter_is_asked_for():
    listed = {"data": [{"id": "m:a", "parent": "m"}, {"id": "m"}]}
    facts = facts_of(ServerAnswers(models=listed))
    assert facts.model == "m"
    assert facts.models == ("m:a", "m")


def test_a_server_that_says_nothing_is_known_for_nothing():
    facts = facts_of(ServerAnswers())
    assert facts.kind == "unknown"
    assert (facts.model, facts.context_tokens, facts.prefix_cache, facts.roles) == (
        None,
        None,
        None,
        (),
    )
    assert facts.returns_logprobs is None


@pytest.mark.parametrize(
    "line",
    ["", "# HELP x y", "no value", "x{a=} ", "x NaN", "x +Inf", "{} 1", 'x{a="b} 1 2 3 4'],
)
def test_a_metrics_line_that_is_none_is_passed_over(line):
    assert [sample.name for sample in parse_metrics(f"{line}\nok 1\n")] == ["ok"]


def test_label_values_are_unescaped_and_may_hold_anything():
    (sample,) = parse_metrics('m{path="a\\\\b",text="say \\"x, y\\"}\\n"} 2.5 1796022400840\n')
    assert sample.labels == {"path": "a\\b", "text": 'say "x, y"}\n'}
    assert sample.value == 2.5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "id", "roles", "scheduler_info", "meta", "page_size", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(models=JSON, info=JSON, props=JSON, version=JSON, metrics=st.text(max_size=80))
def test_no_answer_whatever_its_shape_breaks_the_parsers(models, info, props, version, metrics):
    facts = facts_of(
        ServerAnswers(
            models=models, server_info=info, props=props, version=version, metrics=metrics
        )
    )
    assert facts.context_tokens is None or facts.context_tokens > 0
