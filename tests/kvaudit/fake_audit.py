"""`kvaudit` with a fake plan and a fake target, quick enough to be killed at any point.

Runs as a process of its own: `python fake_audit.py audit --out DIR`. The plan is `FAKE_WAVES` waves of
three requests. The target says on the file `FAKE_SENT`, one id a line, what really left, and takes
`FAKE_DELAY` seconds for each request. `FAKE_FAILURE` names what else goes wrong.
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

WAVES = int(os.environ.get("FAKE_WAVES", "4"))
IN_A_WAVE = 3
DELAY_S = float(os.environ.get("FAKE_DELAY", "0"))
FAILURE = os.environ.get("FAKE_FAILURE", "")


class FakeProbe:
    """Three requests a wave, none of which is planned again once it has a record."""

    name = "fake"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        return ("in-limit",)

    def cost(self, context: PlanContext) -> PlanCost:
        count = WAVES * IN_A_WAVE
        return PlanCost(requests=count, prompt_tokens=count * 10, output_tokens=count * 4)

    def next_wave(self, context: PlanContext, records: Sequence[RequestRecord]) -> Wave | None:
        seen = {record.request_id for record in records}
        for index in range(WAVES):
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
            time.sleep(DELAY_S)
            if FAILURE == "target" and wave.index == 2:
                raise TargetError("connection refused")
            if FAILURE == "bug" and wave.index == 2:
                raise ZeroDivisionError
            yield Reply(
                request_id=planned.request_id,
                outcome=Outcome.ANSWERED,
                status=200,
                output_text=f"fine \x1b[31m{'x' * int(os.environ.get('FAKE_BYTES', '1'))}",
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


def _reference_target(config: AuditConfig) -> FakeTarget:
    if FAILURE == "start":
        raise StartRefusedError("prefill's pool is smaller than the context")
    if FAILURE == "torch":
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return FakeTarget()


def main() -> None:
    """Put the fakes in place, then go through the real door."""
    target = types.ModuleType("engine.target")
    target.reference_target = _reference_target  # type: ignore[attr-defined]
    sys.modules["engine.target"] = target
    if FAILURE != "names":
        probes.plan.plan_for = lambda config: (FakeProbe(),)

    import kvaudit.cli.main

    kvaudit.cli.main.main()


if __name__ == "__main__":
    main()
