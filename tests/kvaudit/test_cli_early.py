"""When an audit ends before its plan: after 7, 14, 28, ... blocks, by conviction or by a bound."""

from pathlib import Path

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.cli.early import early_verdict, is_look_due, with_planned_blocks
from kvaudit.cli.progress import Progress
from kvaudit.cli.session import Session, new_folder, new_header
from kvaudit.clock import WallClock
from kvaudit.config import AuditConfig
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import PlannedRequest, Reply, Wave, record_of
from probes.catalog import SCENARIOS
from probes.plan import PlanContext

FACTS = ServerFacts(
    model="m",
    context_tokens=2048,
    prefix_cache=False,
    roles=(RoleFacts(role="unified", pool_tokens=4096, page_size=16, max_input_tokens=2041),),
)
STRATA = ("in-limit", "just-over-the-limit")


def context(**config: object) -> PlanContext:
    return PlanContext(
        config=AuditConfig(**config),  # type: ignore[arg-type]
        facts=FACTS,
        count_tokens=lambda text: len(text.split()),
    )


def test_looks_come_after_seven_blocks_and_each_doubling() -> None:
    probe = SCENARIOS["blocks"]
    ctx = context(blocks=30)
    due = []
    records: list[RequestRecord] = []
    while (wave := probe.next_wave(ctx, records)) is not None:
        if is_look_due(probe, wave):
            due.append(wave.requests[0].block)
        for planned in wave.requests:
            reply = Reply(
                request_id=planned.request_id, outcome=Outcome.ANSWERED,
                output_text=planned.expected or "", prompt_tokens=planned.prompt_tokens_sent,
            )  # fmt: skip
            records.append(record_of(planned, reply, wave=wave.index))
    assert due == [7, 14, 28]
    assert not is_look_due(SCENARIOS["incident"], wave_of("incident", 7))


def wave_of(scenario: str, block: int) -> Wave:
    return Wave(index=9, scenario=scenario, requests=(request("a", "x", block=block),))


def request(tenant: str, name: str, *, block: int = 0, role: Role = Role.TRIGGER) -> PlannedRequest:
    canary = CanaryMint("kvaudit/1").mint(f"{name}/1", tenant)
    return PlannedRequest(
        request_id=f"blocks-{block:04}-{name}-{tenant}",
        tenant=tenant,
        messages=(Message(role="user", content=f"The code is {canary.code_text}. The code is"),),
        scenario="blocks",
        stratum=STRATA[1],
        role=role,
        block=block,
        canaries=(canary,),
        expected=canary.code_text,
    )


@pytest.mark.parametrize("leaks", [True, False])
def test_a_leak_ends_the_run_and_silence_alone_does_not(tmp_path: Path, leaks: bool) -> None:
    clock, ctx = WallClock(), context()
    header = new_header(ctx.config, FACTS, clock)
    session = Session(
        new_folder(tmp_path / "run", header), header, clock, Progress(clock, quiet=True, planned=2)
    )
    victim = request("tenant-1", "fill", role=Role.FILL)
    sink = request("tenant-2", "sink")
    answers = {
        victim.request_id: victim.expected,
        sink.request_id: victim.expected if leaks else sink.expected,
    }
    for planned in (victim, sink):
        session.begin(planned, 0)
        session.end(
            Reply(
                request_id=planned.request_id,
                outcome=Outcome.ANSWERED,
                status=200,
                output_text=f" {answers[planned.request_id]}.",
                finish_reason="stop",
                sent_unix_ns=1_790_000_000_000_000_000,
                ended_unix_ns=1_790_000_000_000_000_009,
            )
        )
    reason = early_verdict(session, ctx, STRATA, FACTS)
    session.close()
    if leaks:
        assert reason is not None
        assert reason.startswith("contaminated: KVA101")
    else:
        assert reason is None


def test_a_target_rate_decides_how_many_blocks_are_planned() -> None:
    config = AuditConfig(target_rate=0.1)
    planned = with_planned_blocks(config, STRATA)
    assert planned.blocks is not None
    assert planned.blocks > 52  # what one stratum alone would need
    assert with_planned_blocks(AuditConfig(target_rate=0.1, replicas=3), STRATA).blocks > (
        2 * planned.blocks
    )
    assert with_planned_blocks(AuditConfig(), STRATA).blocks is None
    assert with_planned_blocks(AuditConfig(target_rate=0.1, blocks=9), STRATA).blocks == 9
    assert with_planned_blocks(AuditConfig(target_rate=0.9), STRATA).blocks == 7
    blocks = SCENARIOS["blocks"]
    assert (
        blocks.cost(context(blocks=14)).requests
        > 1.5 * blocks.cost(context(blocks=7)).requests
        == 1.5 * blocks.cost(context()).requests
    )
