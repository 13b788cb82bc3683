"""Every hazard fires on its example and is silent on the look-alike, however they are written."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaudit.errors import KvauditError
from kvaudit.findings import Severity, Verdict
from kvaudit.preflight.deployment import assemble
from kvaudit.preflight.hazards import WEAK, facts_asked, hazard_of, hazards, read_hazard
from kvaudit.preflight.judging import Judgement, judge_deployment
from kvaudit.preflight.sources import read_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "hazards.md"
STARTS = {
    "sglang": (["python3", "-m", "sglang.launch_server"], "lmsysorg/sglang:v{}"),
    "vllm": (["vllm", "serve"], "vllm/vllm-openai:v{}"),
    "tgi": (["text-generation-launcher"], "ghcr.io/huggingface/text-generation-inference:{}"),
    "llama.cpp": (["/app/llama-server"], "ghcr.io/ggml-org/llama.cpp:server-{}"),
    "ollama": (["ollama", "serve"], "ollama/ollama:{}"),
    "lmdeploy": (["lmdeploy", "serve", "api_server"], "openmmlab/lmdeploy:v{}"),
    "tensorrt-llm": (["trtllm-serve"], "nvcr.io/nvidia/tensorrt-llm/release:{}"),
    "lmcache": (["lmcache_server", "0.0.0.0", "65432"], "lmcache/standalone:v{}"),
    "mooncake": (["mooncake_master"], "mooncake/mooncake:{}"),
    "litellm": (["litellm", "--port", "4000"], "ghcr.io/berriai/litellm:v{}"),
}
ENVIRONMENT = ("SGLANG_", "VLLM_")
VARIABLES = ("sglang_", "vllm_")
Roles = Sequence[Mapping[str, Any]]


def arguments(roles: Roles) -> str:
    """A compose file whose commands hold every option."""
    services = {}
    for number, role in enumerate(roles):
        start, image = STARTS[role["engine"]]
        words, environment = _options(role)
        services[f"s{number}"] = {
            "image": image.format(role["version"]),
            "command": [*start, *words],
            "environment": environment,
        }
    return yaml.safe_dump({"services": services})


def environment(roles: Roles) -> str:
    """Manifests whose commands take every option from the environment."""
    documents = []
    for number, role in enumerate(roles):
        start, image = STARTS[role["engine"]]
        words, variables = _options(role)
        names = [f"OPTION_{at}" for at in range(len(words))]
        variables |= dict(zip(names, words, strict=True))
        container = {
            "name": "server",
            "image": image.format(role["version"]),
            "command": start,
            "args": [f"$({name})" for name in names],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        }
        documents.append({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"w{number}"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        })  # fmt: skip
    return yaml.safe_dump_all(documents)


def server_info(roles: Roles) -> str:
    """Saved pages, one for each role."""
    pages = []
    for role in roles:
        page = {"engine": role["engine"], "version": role["version"]}
        page |= {name: value for name, value in role["options"].items()
                 if not name.startswith(ENVIRONMENT)}  # fmt: skip
        if role.get("role") in ("prefill", "decode"):
            page["disaggregation_mode"] = role["role"]
        elif "role" in role:
            page["role"] = role["role"]
        pages.append(page | {"status": "ready"})
    return json.dumps(pages)


SPELLINGS = {"args": arguments, "env": environment, "server_info": server_info}


def _options(role: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    variables: dict[str, str] = {}
    if role.get("role") in ("prefill", "decode"):
        words += [f"--disaggregation-mode={role['role']}"]
    for name, value in role["options"].items():
        flag = "--" + name.replace("_", "-")
        if name.startswith(ENVIRONMENT):
            variables[name] = str(value)
        elif value is True:
            words.append(flag)
        elif value is False:
            words += [f"--no-{name.replace('_', '-')}"] if role["engine"] == "vllm" else []
        else:
            words += [f"{flag}={value}"]
    return words, variables


# Hazard, spelling -> why the one can't be written in the other.
UNWRITABLE = {
    ("KVA708", "server_info"): "pages tell nothing of the environment, which decides",
    ("KVA743", "server_info"): "pages tell nothing of the environment, which decides",
    ("KVA782", "args"): "a library is started by no command",
    ("KVA782", "env"): "a library is started by no command",
}
CASES = [
    (hazard_id, spelling)
    for hazard_id in sorted(hazards())
    for spelling in SPELLINGS
    if (hazard_id, spelling) not in UNWRITABLE
]


def judged(text: str) -> Judgement:
    return judge_deployment(assemble(read_text(text, "example")))


def rules(judgement: Judgement) -> set[str]:
    return {finding.evidence.rule_id for finding in judgement.findings}


@pytest.mark.parametrize(("hazard_id", "spelling"), CASES)
def test_a_hazard_fires_on_its_example_and_not_on_the_look_alike(
    hazard_id: str, spelling: str
) -> None:
    hazard, written = hazard_of(hazard_id), SPELLINGS[spelling]
    fired = judged(written(hazard.fires))
    assert hazard_id in rules(fired)
    is_decisive = hazard.severity in (Severity.CRITICAL, Severity.ERROR)
    assert not is_decisive or fired.verdict is Verdict.AT_RISK
    silent = judged(written(hazard.silent))
    assert hazard_id not in rules(silent)
    # Silent because it is known to be no such thing, and not because nothing is known.
    hanging = {held for gap in silent.gaps for held in gap.hazards if gap.fact in ASKED_OUTRIGHT}
    assert hazard_id not in hanging


# Facts that every spelling can tell; a model's name or the environment may stay untold.
ASKED_OUTRIGHT = ("version", "context_length", "page_size", "prefix_cache", "kv_connector")


def test_what_a_page_can_not_tell_leaves_the_hazard_open_and_does_not_clear_it() -> None:
    for hazard_id, spelling in UNWRITABLE:
        if spelling == "server_info":
            hazard = hazard_of(hazard_id)
            (fact,) = (
                held for held in facts_asked(hazard) if held.startswith(("sglang_", "vllm_"))
            )
            judgement = judged(server_info(hazard.fires))
            assert any(gap.fact == fact and hazard_id in gap.hazards for gap in judgement.gaps)


def test_every_hazard_is_tried_in_every_spelling_or_says_why_it_is_not() -> None:
    assert len(CASES) + len(UNWRITABLE) == len(hazards()) * len(SPELLINGS)
    assert {hazard_id for hazard_id, _ in UNWRITABLE} <= set(hazards())
    for hazard_id, hazard in hazards().items():
        assert hazard.fires != hazard.silent, hazard_id


def test_there_are_more_than_forty_public_hazards_beside_the_rules_of_thumb() -> None:
    public = [hazard_id for hazard_id in hazards() if hazard_id >= "KVA720"]
    assert len(public) >= 40


def test_a_weak_source_only_warns() -> None:
    weak = [hazard for hazard in hazards().values() if hazard.solid in WEAK]
    assert weak
    assert {hazard.severity for hazard in weak} <= {Severity.WARNING, Severity.INFO}


def test_no_hazard_is_dated_in_the_future_and_all_cite() -> None:
    for hazard in hazards().values():
        assert hazard.checked <= date(2027, 12, 31)
        assert all(len(source) > 8 for source in hazard.sources)


def test_two_hazards_share_no_name() -> None:
    names = [hazard.name for hazard in hazards().values()]
    assert len(names) == len(set(names))


GOOD = """
name = "x"
summary = "A."
severity = "error"
engines = ["sglang"]
affected = ["<1.0"]
leaks = "B."
fix = "C."
sources = ["sgl-project/sglang#1"]
checked = 2026-11-30
solid = "code"
fires = [{engine = "sglang", version = "0.9", options = {}}]
silent = [{engine = "sglang", version = "1.0", options = {}}]
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ('solid = "code"', 'solid = "list"', "weak source"),
        ('"sgl-project/sglang#1"', "", "cites no source"),
        ('affected = ["<1.0"]', "", "neither versions nor a condition"),
        ('affected = ["<1.0"]', 'affected = ["<new"]', "no range of versions"),
        ('["sglang"]', '["sglong"]', "no known engine"),
        ('leaks = "B."', "", "lacks `leaks`"),
        ('leaks = "B."', 'leak = "B."\nleaks = "B."', "no key of a hazard"),
        ('fix = "C."', 'fix = "C"', "full stop"),
        ('fix = "C."', 'fix = "C."\nwhen = \'exec("x")\'', "can't ask"),
        ('fix = "C."', "fix = 'C.'\nwhen = 'a.b'", "no part of a condition"),
        ("silent = [{", "silent = []\n# [{", "lacks an example"),
    ],
)  # fmt: skip
def test_the_lint_names_what_is_wrong_with_a_hazard_file(right: str, wrong: str, said: str) -> None:
    assert read_hazard(GOOD, "KVA799").name == "x"
    with pytest.raises(KvauditError, match=said):
        read_hazard(GOOD.replace(right, wrong), "KVA799")


def test_every_hazard_is_in_the_reference_and_nothing_else() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for hazard in hazards().values():
        assert f"| {hazard.id} | {hazard.name} | `{hazard.severity.value}` |" in text
    rows = [line for line in text.splitlines() if line.startswith("| KVA")]
    assert len(rows) == len(hazards())
