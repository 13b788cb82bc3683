"""What each engine's own pages say; what a page does not say stays unknown."""

import json

import pytest

from kvaudit.preflight.live import read_live
from kvaudit.serverfacts import RoleFacts, ServerAnswers, ServerFacts, facts_of


def listed(name="m", **fields):
    return {"object": "list", "data": [{"id": name, "object": "model"} | fields]}


TGI = ServerAnswers(
    models=listed(owned_by="m"),
    info={
        "model_id": "m", "max_input_tokens": 4095, "max_total_tokens": 4096,
        "max_batch_total_tokens": 65_536, "version": "3.0.1", "sha": "abc", "docker_label": "sha-a",
        "router": "text-generation-router",
    },
)  # fmt: skip
OLD_TGI = ServerAnswers(
    models=listed(), info={"max_input_length": 1024, "docker_label": None, "version": "1.4.0"}
)
LLAMA = ServerAnswers(
    models=listed(owned_by="llamacpp", meta={"n_ctx": 8192, "n_ctx_train": 8192}),
    props={
        "default_generation_settings": {"n_ctx": 8192, "params": {"cache_prompt": True}},
        "total_slots": 4, "build_info": "b11434-abcdef",
    },
)  # fmt: skip
TENSORRT = ServerAnswers(
    models=listed(owned_by="tensorrt_llm"),
    version={"version": "1.2.0rc1"},
    metrics=json.dumps([
        {"iter": 1},
        {"iter": 2, "kvCacheStats": {"maxNumBlocks": 100, "freeNumBlocks": 90,
                                     "usedNumBlocks": 10, "tokensPerBlock": 32}},
    ]),
)  # fmt: skip
OLLAMA = ServerAnswers(
    models=listed("llama3:8b", owned_by="library"),
    ollama_version={"version": "0.17.1"},
    ollama_running={"models": [
        {"name": "other:1b", "context_length": 512},
        {"name": "llama3:8b", "model": "llama3:8b", "context_length": 4096, "size": 1},
    ]},
)  # fmt: skip
TRANSFORMERS = ServerAnswers(
    models=listed("/models/smollm2-135m", owned_by="local", created=0, status={"value": "loaded"})
)
LMDEPLOY = ServerAnswers(models=listed(owned_by="lmdeploy"), metrics="# nothing of a pool\n")
PLAIN = ServerAnswers(models=listed(owned_by="openai"))


@pytest.mark.parametrize(
    ("answers", "facts"),
    [
        (TGI, ServerFacts(
            kind="tgi", version="3.0.1", context_tokens=4096,
            roles=(RoleFacts(role="unified", pool_tokens=65_536, max_input_tokens=4095),),
        )),
        (OLD_TGI, ServerFacts(
            kind="tgi", version="1.4.0",
            roles=(RoleFacts(role="unified", max_input_tokens=1024),),
        )),
        (LLAMA, ServerFacts(
            kind="llama.cpp", version="b11434-abcdef", context_tokens=8192, prefix_cache=True,
        )),
        (TENSORRT, ServerFacts(
            kind="tensorrt-llm", version="1.2.0rc1",
            roles=(RoleFacts(role="unified", pool_tokens=3200, page_size=32),),
        )),
        (OLLAMA, ServerFacts(kind="ollama", version="0.17.1", context_tokens=4096)),
        (TRANSFORMERS, ServerFacts(kind="transformers")),
        (LMDEPLOY, ServerFacts(kind="lmdeploy")),
        (PLAIN, ServerFacts(kind="unknown")),
    ],
    ids=["tgi", "old-tgi", "llama.cpp", "tensorrt-llm", "ollama", "transformers", "lmdeploy",
         "plain"],
)  # fmt: skip
def test_each_engine_is_known_by_its_own_pages(answers, facts):
    name = answers.models["data"][0]["id"]
    found = facts_of(answers)
    assert (found.model, found.models) == (name, (name,))
    for field in ("kind", "version", "context_tokens", "roles", "prefix_cache"):
        assert getattr(found, field) == getattr(facts, field), field


def test_statistics_without_a_cache_tell_of_no_pool():
    for metrics in ("[]", "[1, {}]", "[{", '[{"kvCacheStats": {"maxNumBlocks": 5}}]', "[" * 99_999):
        answers = ServerAnswers(models=listed(owned_by="tensorrt_llm"), metrics=metrics)
        assert facts_of(answers).roles == ()


def test_a_page_of_another_shape_is_no_page_of_that_engine():
    strange = ServerAnswers(
        models=listed(owned_by="local", status="loaded"), info={"version": "1"}, props=[1],
        ollama_version={"version": "9"}, ollama_running={"models": 5},
    )  # fmt: skip
    assert facts_of(strange).kind == "unknown"


@pytest.mark.parametrize("answers", [TGI, LLAMA, TENSORRT, OLLAMA, LMDEPLOY])
def test_a_running_server_is_one_role_of_a_deployment(answers):
    pieces = read_live(answers, "http://127.0.0.1:8000")
    facts = facts_of(answers)
    assert {piece.workload for piece in pieces} == {"http://127.0.0.1:8000"}
    assert {piece.engine for piece in pieces} == {facts.kind}
    told = {name: held.value for piece in pieces for name, held in piece.settings.items()}
    assert told.get("context_length") == facts.context_tokens
