"""What `kvaudit serve` says before it serves."""

import sys
import types
from typing import Any

import pytest

from kvaudit.cli.main import run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations of the servers that were asked for; none of them is built."""
    asked: list[Any] = []

    def server(config: Any, **_: Any) -> object:
        asked.append(config)
        return object()

    fake = types.ModuleType("engine.server")
    vars(fake).update(
        ReferenceServer=server, is_loopback_host=lambda _: True, serve_until=lambda *_: None
    )
    monkeypatch.setitem(sys.modules, "engine.server", fake)
    return asked


@pytest.mark.parametrize(
    ("arguments", "warnings"),
    [
        (
            ["--context-tokens", "4096", "--decode-pool-tokens", "4096"],
            ["the prefill pool of 1,328 tokens is smaller than the context of 4,096:"
             " prefill refuses prompts of 1,322 tokens or more"],
        ),
        (
            ["--prefill-pool-tokens", "2048", "--decode-pool-tokens", "1024"],
            ["the decode pool of 1,024 tokens is smaller than the context of 2,048:"
             " decode refuses prompts of 1,018 tokens or more"],
        ),
        (["--context-tokens", "1024"], []),
        ([], []),  # the default deployment is the incident's, and documented so
        (["--context-tokens", "4096", "--quiet"], []),
    ],
)  # fmt: skip
def test_a_pool_below_the_context_is_told_with_what_it_refuses(
    served: list[Any],
    arguments: list[str],
    warnings: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--port", "0", *arguments]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "pool" in line]
    assert len(served) == 1
    assert len(lines) == len(warnings), lines
    for line, warning in zip(lines, warnings, strict=True):
        assert f"warning: {warning}" in line
