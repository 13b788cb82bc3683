"""The demo tells what its records hold, and its exit status says whether both halves came true."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvaudit.cli import demo
from kvaudit.findings import (
    AuditRun,
    Bound,
    Evidence,
    Finding,
    Kind,
    Severity,
    Side,
    Source,
    Verdict,
)
from kvaudit.records import Message, Outcome, RequestRecord, Role

FOREIGN = "of the silver heron is WXYZ-2345-ABCD-EFGH"


def record(request_id: str, tenant: str, prompt: str, **more: object) -> RequestRecord:
    values: dict[str, object] = {
        "outcome": Outcome.ANSWERED, "status": 200, "prompt_tokens_sent": 1400,
        "prompt_tokens": 1400, "completion_tokens": 48, "finish_reason": "length",
        "role": Role.TRIGGER,
    }  # fmt: skip
    return RequestRecord(
        request_id=request_id,
        tenant=tenant,
        messages=(Message(role="user", content=prompt),),
        **(values | more),  # type: ignore[arg-type]
    )


FILL = record("fill-1", "tenant-1", f"Once. The gate number {FOREIGN}. More.", role=Role.FILL)
SINK = record(
    "edge-7",
    "tenant-2",
    "Twice.\nThe door key of the amber falcon is",
    expected="K7QX-2MNP-ABCD-EFGH",
    output_text=f" The gate number {FOREIGN}.",
)
EVIDENCE = Evidence(
    rule_id="KVA101",
    sink_request_id="edge-7",
    sink_tenant="tenant-2",
    source=Source(request_id="fill-1", tenant="tenant-1", side=Side.PROMPT),
    excerpt="WXYZ-2345-ABCD-EFGH",
    chance=1e-20,
)


def chapter(verdict: Verdict, records: list[RequestRecord], *evidence: Evidence) -> object:
    run = AuditRun(
        run_id="a-run", command="audit", version="0", verdict=verdict, reasons=("because",),
        repeat="kvaudit audit --seed 1",
        findings=tuple(
            Finding(evidence=item, kind=Kind.EXPOSURE, severity=Severity.CRITICAL)
            for item in evidence
        ),
        bounds=(
            Bound(stratum="over", requests=7, detections=0, sensitivity=0.9, confidence=0.95,
                  upper=0.5),
        ),
    )  # fmt: skip
    held = {item.request_id: item for item in records}
    return demo.Chapter(path=Path("runs/x"), run=run, records=held)


def told(red: object, green: object) -> str:
    return "\n".join(demo.story(red, green))


RED = chapter(Verdict.CONTAMINATED, [FILL, SINK], EVIDENCE)
REFUSED = replace(
    SINK, outcome=Outcome.REFUSED, status=400, output_text=None, error_message="prompt too long"
)
GREEN = chapter(Verdict.CLEAN, [FILL, REFUSED])


def test_the_story_tells_question_answer_owner_oracle_and_the_fixed_twin() -> None:
    text = told(RED, GREEN)
    assert "What tenant-2 asked (edge-7, 1,400 tokens)" in text
    assert "The door key of the amber falcon is" in text
    assert "`K7QX-2MNP-ABCD-EFGH`, which is not in the reply" in text
    assert "Whose text that is (tenant-1, prompt of fill-1)" in text
    assert text.count(FOREIGN) == 2, "once as it came back, once where it came from"
    assert "KVA101 foreign-canary: chance of accident under 1 in 10^20" in text
    assert "The same request edge-7 is now refused with 400: prompt too long" in text
    assert "1 of 1 prompts over the first limit were answered" in text
    assert "Verdict: contaminated, exit status 1" in text
    assert "Verdict: clean, exit status 0" in text
    assert "at most 50 % of such requests leak" in text


def test_a_red_run_that_shows_nothing_is_told_as_such() -> None:
    text = told(chapter(Verdict.CLEAN, [FILL, SINK]), GREEN)
    assert "No answer shows another tenant's text" in text
    assert "where contaminated was to be shown" in text


def test_the_answer_with_most_rules_on_it_is_told() -> None:
    other = replace(SINK, request_id="edge-2")
    weaker = replace(EVIDENCE, sink_request_id="edge-2", chance=1e-40)
    second = replace(EVIDENCE, rule_id="KVA201", chance=1e-7)
    red = chapter(Verdict.CONTAMINATED, [FILL, SINK, other], weaker, EVIDENCE, second)
    assert demo.strongest(red).evidence.sink_request_id == "edge-7"


def test_text_of_an_answer_cannot_move_the_cursor() -> None:
    hostile = replace(SINK, output_text=f"\x1b[2J\u202e {FOREIGN}")
    text = told(chapter(Verdict.CONTAMINATED, [FILL, hostile], EVIDENCE), GREEN)
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("red", "green", "status"),
    [
        (Verdict.CONTAMINATED, Verdict.CLEAN, 0),
        (Verdict.CLEAN, Verdict.CLEAN, 1),
        (Verdict.CONTAMINATED, Verdict.CONTAMINATED, 1),
        (Verdict.CONTAMINATED, Verdict.INCONCLUSIVE, 3),
        (Verdict.INCONCLUSIVE, Verdict.CLEAN, 3),
    ],
)
def test_only_a_red_and_a_green_half_together_end_in_0(
    red: Verdict, green: Verdict, status: int
) -> None:
    assert demo.status_of(red, green) == status
