"""Single records of every sample, field by field, against what the raw file says."""

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvaudit.forensics.content import answer_text, prompt_text, reasoning_text, tool_text
from kvaudit.forensics.formats import read_file
from kvaudit.forensics.row import LogRow, TimeBasis

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "expected-rows.json").read_text("utf-8"))
ROWS: list[dict[str, Any]] = EXPECTED["rows"]


@cache
def rows_of(file: str) -> tuple[LogRow, ...]:
    return tuple(read_file(DATA / file)[0])


def shown_time(us: int | None, expected: object) -> object:
    """The time in the shape in which the expectation tells it."""
    if us is None or isinstance(expected, int):
        return us if us is None else us / 1000
    if isinstance(expected, float):
        return pytest.approx(us / 1000, abs=0.002)
    moment = datetime.fromtimestamp(us // 1_000_000, tz=UTC).replace(microsecond=us % 1_000_000)
    text = moment.replace(tzinfo=None).isoformat()
    assert isinstance(expected, str)
    if expected[2] == "-":  # the log has no year
        return text[5:]
    return datetime.fromisoformat(text) == datetime.fromisoformat(expected) and expected


@pytest.mark.parametrize("told", ROWS, ids=lambda told: f"{told['file']}:{told['id'][:12]}")
def test_a_record_reads_as_it_stands_in_the_file(told: dict[str, Any]) -> None:
    row = next(
        row for row in rows_of(told["file"]) if row.request_id == told["id"] and row.attempt == 1
    )
    assert row.tenant_id == told["tenant"]
    assert row.user_id == told.get("user")
    assert shown_time(row.start_us, told["start"]) == told["start"]
    assert shown_time(row.end_us, told["end"]) == told["end"]
    assert [row.input_tokens, row.output_tokens, row.cached_tokens] == told["tokens"]
    assert list(row.finish_reasons) == told["finish"]
    assert row.status == told["status"]
    assert row.is_partner == told.get("partner", False)
    assert row.error_message == told.get("error")
    if "ttft" in told:
        assert row.ttft_s == pytest.approx(told["ttft"])
    compare_texts(row, told)


def compare_texts(row: LogRow, told: dict[str, Any]) -> None:
    prompt = told["prompt"]
    if prompt is not None and told.get("system", True):
        prompt = f"{EXPECTED['system']}\n{prompt}"
    assert prompt_text(row.input).text == (prompt or "")
    assert answer_text(row.output).text == (told["answer"] or "")
    assert reasoning_text(row.output) == told.get("reasoning", "")
    if "tool_start" in told:
        assert tool_text(row.output).startswith(told["tool_start"])
    else:
        assert tool_text(row.output) == told.get("tool", "")
    states = [row.input.state.value, row.output.state.value]
    assert states == told.get(
        "states", [side_state(told["prompt"]), side_state(told["answer"])]
    )  # fmt: skip


def side_state(text: str | None) -> str:
    return "absent" if text is None else "full"


def test_a_time_without_a_zone_is_marked_and_one_that_is_counted_too() -> None:
    basis = {told["file"]: rows_of(told["file"])[0].time_basis for told in ROWS}
    assert basis["logs/vllm-server.log"] is TimeBasis.NAIVE
    assert basis["logs/llama-server.log"] is TimeBasis.RELATIVE
    assert basis["logs/openai-stored-completions.jsonl"] is TimeBasis.INFERRED
    assert basis["logs/openai-batch-input.jsonl"] is TimeBasis.NONE
    assert basis["logs/sglang-log-requests.json.log"] is TimeBasis.ABSOLUTE


def test_every_sample_has_a_record_that_was_read_by_eye() -> None:
    files = {path.name for folder in ("logs", "real-logs") for path in (DATA / folder).iterdir()}
    assert {told["file"].split("/")[1] for told in ROWS} == files - {"TRUTH.json"}
