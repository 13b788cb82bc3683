"""Stock configurations of the engines' public documentation raise no error."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaudit.cli.preflight_run import read_deployment
from kvaudit.findings import Severity, Verdict
from kvaudit.preflight.judging import judge_deployment

DATA = Path(__file__).resolve().parents[1] / "data" / "healthy.yaml"
HEALTHY: dict[str, dict[str, str]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
SUFFIXES = {"config file": ".yaml", "server_info": ".json"}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_stock_configuration_is_not_at_risk(name: str, tmp_path: Path) -> None:
    held = HEALTHY[name]
    path = tmp_path / f"source{SUFFIXES.get(held['way'], '')}"
    path.write_text(held["text"], encoding="utf-8")
    versions = [held["version"]] if "version" in held else []
    deployment = read_deployment([str(path)], versions)
    judgement = judge_deployment(deployment)
    severities = {finding.severity for finding in judgement.findings}
    assert not severities & {Severity.CRITICAL, Severity.ERROR}, judgement.reasons
    if "open" in held:
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert f"`{held['open']}`" in " ".join(judgement.reasons)
    else:
        assert judgement.verdict is Verdict.CLEAN, judgement.reasons
    engine = name.split()[0].replace("trtllm", "tensorrt-llm")
    assert engine in {role.engine for role in deployment.roles}
    assert not [text for text in deployment.notes if "not known here" in text]


def test_the_stock_configurations_are_fifty_of_every_engine_and_way() -> None:
    assert len(HEALTHY) >= 50
    by_engine = Counter(name.split()[0] for name in HEALTHY)
    assert {"sglang", "vllm", "trtllm", "tgi", "llama.cpp", "ollama", "lmcache", "mooncake"} <= set(
        by_engine
    )
    assert min(by_engine[name] for name in ("sglang", "vllm", "trtllm", "tgi", "ollama")) >= 4
    ways: dict[str, Any] = Counter(held["way"] for held in HEALTHY.values())
    assert set(ways) == {
        "command", "docker run", "compose", "Deployment", "StatefulSet", "LeaderWorkerSet",
        "server_info", "config file",
    }  # fmt: skip
