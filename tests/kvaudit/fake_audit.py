"""`kvaudit` with a fake plan and a fake target, quick enough to be killed at any point.

Runs as a process of its own, `python fake_audit.py audit --out DIR`, or inside a test. The plan is
`FAKE_WAVES` waves of three requests. The target writes to the file `FAKE_SENT`, one id a line, what
really left, and takes `FAKE_DELAY` seconds for each. `FAKE_FAILURE` names what else goes wrong.
"""

import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import probes.plan
from kvaudit.config import AuditConfig
from kvaudit.errors import StartRefusedError, TargetError
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import PlannedRequest, Reply, Wave
from probes.plan import PlanContext, PlanCost

IN_A_WAVE = 3


def fake(name: str, default: str) -> str:
    return os.environ.get(f"FAKE_{name}", default)


class FakeProbe:
    """Three requests a wave, none of which is planned again once it has a record."""

    name = "fake"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        return ("in-limit",)

    def cost(self, context: PlanContext) -> PlanCost:
        count = int(fake("WAVES", "4")) * IN_A_WAVE
        return PlanCost(requests=count, prompt_tokens=count * 10, output_tokens=count * 4)

    def next_wave(self, context: PlanContext, records: Sequence[RequestRecord]) -> Wave | None:
        seen = {record.request_id for record in records}
        for index in range(int(fake("WAVES", "4"))):
            requests = tuple(
                planned
                for number in range(IN_A_WAVE)
                for planned in [_planned(index, number)]
                if planned.request_id not in seen
            )
            if requests:
                return Wave(index=index, scenario="fake", requests=requests)
        return None


class FakeTarget:
    """Answers every request, or fails as `FAKE_FAILURE` says."""

    def facts(self) -> ServerFacts:
        role = RoleFacts(role="unified", pool_tokens=1_000, page_size=16, max_input_tokens=900)
        return ServerFacts(kind="fake", model="fake", context_tokens=1_000, roles=(role,))

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def send(self, wave: Wave, departing: Callable[[PlannedRequest], None]) -> Iterator[Reply]:
        for planned in wave.requests:
            departing(planned)
            with Path(os.environ["FAKE_SENT"]).open("a") as sent:
                sent.write(f"{planned.request_id}\n")
            time.sleep(float(fake("DELAY", "0")))
            if fake("FAILURE", "") == "target" and wave.index == 2:
                raise TargetError("connection refused")
            if fake("FAILURE", "") == "bug" and wave.index == 2:
                raise ZeroDivisionError
            yield Reply(
                request_id=planned.request_id,
                outcome=Outcome.ANSWERED,
                status=200,
                output_text=f"fine \x1b[31m{'x' * int(fake('BYTES', '1'))}",
                prompt_tokens=10,
                completion_tokens=4,
                sent_unix_ns=1_790_000_000_000_000_000 + wave.index,
                ended_unix_ns=1_790_000_000_000_000_009 + wave.index,
            )

    def close(self) -> None:
        """Hold nothing."""


def _planned(index: int, number: int) -> PlannedRequest:
    return PlannedRequest(
        request_id=f"fake-{index}-{number}",
        tenant=f"tenant-{number + 1}",
        messages=(Message(role="user", content="ten words " * 5),),
        scenario="fake",
        stratum="in-limit",
        role=Role.CONTROL,
        prompt_tokens_sent=10,
        max_tokens=4,
    )


def reference_target(config: AuditConfig) -> FakeTarget:
    if fake("FAILURE", "") == "start":
        raise StartRefusedError("prefill's pool is smaller than the context")
    return FakeTarget()


def plan_for(config: AuditConfig) -> tuple[FakeProbe, ...]:
    if config.scenarios:
        real_plan_for(config)
    return (FakeProbe(),)


real_plan_for = probes.plan.plan_for


def modules() -> dict[str, types.ModuleType | None]:
    """Return what stands in `sys.modules` instead of the real thing."""
    if fake("FAILURE", "") == "torch":
        return {"torch": None}  # importing it fails as if it were not installed
    target = types.ModuleType("engine.target")
    target.reference_target = reference_target  # type: ignore[attr-defined]
    return {"engine.target": target}


def main() -> None:
    """Put the fakes in place, then go through the real door."""
    sys.modules.update(modules())  # type: ignore[arg-type]
    probes.plan.plan_for = plan_for

    import kvaudit.cli.main

    kvaudit.cli.main.main()


if __name__ == "__main__":
    main()
