"""What several test files of this folder share: an audit of a fake target, in a folder."""

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).with_name("fake_audit.py")


@dataclass(frozen=True)
class Done:
    """What one command line came to."""

    returncode: int
    stdout: str
    stderr: str


class Place:
    """A folder to audit in, and the ids that really left in all runs there.

    Attributes:
        fake: `fake_audit.py`, the command line with a fake plan and target.
        run: The run folder that tests name with `--out run`.
    """

    fake = FAKE

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root = root
        self.run = root / "run"
        self._sent = root / "sent"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(root)

    def audit(self, *arguments: str, **fakes: str) -> Done:
        """Run in this process, which is quicker than one of its own."""
        return self.command("audit", *arguments, **fakes)

    def command(self, *arguments: str, **fakes: str) -> Done:
        from kvaudit.cli.main import run

        fake = _load_fake()
        with self._monkeypatch.context() as patch:
            for name, value in self.environment(**fakes).items():
                patch.setenv(name, value)
            for name, module in fake.modules().items():
                patch.setitem(sys.modules, name, module)
            if "torch" in fake.modules():
                patch.delitem(sys.modules, "engine.target", raising=False)
            patch.setattr("probes.plan.plan_for", fake.plan_for)
            patch.setattr("kvaudit.cli.audit_run.plan_for", fake.plan_for)
            status = run(arguments)
        captured = self._capsys.readouterr()
        return Done(status, captured.out, captured.err)

    def environment(self, **fakes: str) -> dict[str, str]:
        named = {f"FAKE_{name.upper()}": value for name, value in fakes.items()}
        return {"FAKE_SENT": str(self._sent)} | named

    def start(self, *arguments: str, **fakes: str) -> subprocess.Popen[str]:
        """Run in a process of its own, which can be killed."""
        return subprocess.Popen(
            [sys.executable, str(FAKE), "audit", *arguments],
            cwd=self.root, env=os.environ | self.environment(**fakes),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def sent(self) -> list[str]:
        return self._sent.read_text().split() if self._sent.exists() else []

    def wait_until_sent(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.sent()) < count:
            assert time.monotonic() < deadline, "the fake target was never reached"
            time.sleep(0.005)


@cache
def _load_fake() -> Any:
    spec = importlib.util.spec_from_file_location("fake_audit", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    return Place(tmp_path, monkeypatch, capsys)
