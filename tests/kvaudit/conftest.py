"""What several test files of this folder share: an audit of a fake target, in a folder."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kvaudit
from kvaudit.canary import Canary, CanaryMint
from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Reply

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


@pytest.fixture(scope="session")
def leaky_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged run of hand-made records, two of whose answers hold another tenant's canary."""
    return _leaky_run(tmp_path_factory.mktemp("leaky") / "run")


@pytest.fixture
def leaky(leaky_original: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be damaged."""
    return Path(shutil.copytree(leaky_original, tmp_path / "leaky"))


LEAKS = 2
SOLO = 10


def _leaky_run(path: Path) -> Path:
    from kvaudit.audit import judge_journal
    from kvaudit.cli.audit_run import write_reports
    from kvaudit.clock import SimulatedClock
    from kvaudit.config import AuditConfig
    from kvaudit.serverfacts import RoleFacts, ServerFacts
    from kvaudit.store.database import RecordStore
    from kvaudit.store.folder import RunFolder
    from kvaudit.store.journal import Closing, Journal, JournalHeader, read_journal

    clock = SimulatedClock()
    folder = RunFolder.create(path)
    role = RoleFacts(role="unified", pool_tokens=1_000, page_size=16, max_input_tokens=900)
    facts = ServerFacts(kind="fake", model="fake", context_tokens=1_000, roles=(role,))
    header = JournalHeader(
        run_id="leaky-run", command="audit", version=kvaudit.__version__,
        config=asdict(AuditConfig()),
        started_unix_ns=clock.unix_ns(), seed=1, repeat="kvaudit audit reference --seed 1",
        facts=facts, secret="a secret of this run",
    )  # fmt: skip
    journal = Journal.start(folder.journal_path, header, clock)
    for planned, answer in _leaky_requests():
        journal.begin(planned, 0)
        clock.advance(1_000_000)
        journal.end(
            Reply(
                request_id=planned.request_id, outcome=Outcome.ANSWERED, status=200,
                output_text=answer, prompt_tokens=planned.prompt_tokens_sent, completion_tokens=9,
                sent_unix_ns=clock.unix_ns() - 900_000, ended_unix_ns=clock.unix_ns(),
                finish_reason="stop",
            )
        )  # fmt: skip
    journal.closing(
        Closing(strata=("over-limit",), config=asdict(AuditConfig()), facts=facts,
                ended_unix_ns=clock.unix_ns())
    )  # fmt: skip
    journal.close()
    contents = read_journal(folder.journal_path)
    RecordStore(folder, clock).finish(judge_journal(contents))
    write_reports(folder)
    return path


def _leaky_requests() -> Iterator[tuple[PlannedRequest, str]]:
    mint = CanaryMint("leaky")
    for index in range(SOLO):
        own = mint.mint(f"solo-{index}", f"tenant-{index % 2 + 1}")
        yield _leaky_planned(f"solo-{index}", own, Role.CALIBRATION, "in-limit"), own.code_text
    for index in range(LEAKS):
        secret = mint.mint(f"fill-{index}", "tenant-1")
        yield _leaky_planned(f"fill-{index}", secret, Role.FILL, "fill"), secret.code_text
        own = mint.mint(f"trigger-{index}", "tenant-2")
        answer = f"The project phrase is {secret.phrase}. Its code is {secret.code_text}."
        yield _leaky_planned(f"trigger-{index}", own, Role.TRIGGER, "over-limit"), answer


def _leaky_planned(request_id: str, own: Canary, role: Role, stratum: str) -> PlannedRequest:
    prompt = f"The project phrase is {own.phrase}. Its code is {own.code_text}. Its code is"
    return PlannedRequest(
        request_id=request_id, tenant=own.tenant, role=role, stratum=stratum, scenario="leaky",
        messages=(Message(role="user", content=prompt),), canaries=(own,), expected=own.code_text,
        prompt_tokens_sent=60, model="fake",
    )  # fmt: skip
