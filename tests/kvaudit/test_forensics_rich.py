"""What the plain grammar leaves out: reasoning, tool calls, cuts of partner logs, the own table.

Answers with reasoning and tool calls go through every format that carries an OpenAI body, whole
and streamed; partner logs are cut at any byte; a table comes back whatever its column order.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit.forensics.containers import canonical_frames
from kvaudit.forensics.content import answer_text, prompt_text, reasoning_text, tool_text
from kvaudit.forensics.formats import records_of
from kvaudit.forensics.reader import RawRecord, ReadContext
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.row import LogRow
from kvaudit.forensics.table import Origin, frame_of


def grammar_module() -> ModuleType:
    path = Path(__file__).with_name("log_grammar.py")
    spec = spec_from_file_location("log_grammar", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault("log_grammar", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GRAMMAR = grammar_module()
DATA = Path(__file__).parents[1] / "data" / "logs"
CALM = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
SEEDS = st.integers(0, 2**32)
OPENAI_BODIES = (
    "litellm-payload", "litellm-spendlogs", "helicone", "cloudflare-logpush", "cloudflare-api",
    "azure-gateway-logs", "openai-stored", "generic-chunks", "llama-server",
)  # fmt: skip


def read(name: str, data: bytes) -> list[LogRow]:
    context = ReadContext("made.log", 1_800_000_000_000_000, 2026)
    return list(FORMATS[name].read(records_of(FORMATS[name].shape, [data], context), context))


@dataclass(frozen=True)
class RichCall:
    """A request whose answer reasons and calls a tool; all else is the plain one's."""

    plain: Any
    reasoning: str
    reasoning_key: str
    tool: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    @property
    def arguments(self) -> str:
        return json.dumps({"note": self.tool, "more": {"n": 7, "list": [self.tool, None]}})

    @property
    def completion(self) -> dict[str, Any]:
        call = {"id": "call_1", "type": "function",
                "function": {"name": "file_note", "arguments": self.arguments}}  # fmt: skip
        message = {"role": "assistant", "content": self.plain.answer, "tool_calls": [call],
                   self.reasoning_key: self.reasoning}  # fmt: skip
        choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
        return {**self.plain.completion, "choices": [choice]}

    def chunks(self, pick: random.Random) -> list[dict[str, Any]]:
        plain = self.plain.chunks(pick)
        first, *_, last, usage = plain
        heads = [{"id": "call_1", "type": "function", "index": 0,
                  "function": {"name": "file_note", "arguments": ""}}]  # fmt: skip
        pieces = [{"index": 0, "function": {"arguments": piece}}
                  for piece in GRAMMAR.cut_up(self.arguments, pick)]  # fmt: skip
        deltas = [{self.reasoning_key: piece} for piece in GRAMMAR.cut_up(self.reasoning, pick)]
        deltas += [chunk["choices"][0]["delta"] for chunk in plain[1:-2]]
        deltas += [{"tool_calls": [call]} for call in (*heads, *pieces)]
        made = [{**first, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        last["choices"][0]["finish_reason"] = "tool_calls"
        return [first, *made, last, usage]


@pytest.mark.parametrize("name", OPENAI_BODIES)
@CALM
@given(found=GRAMMAR.calls(), texts=st.tuples(GRAMMAR.TEXT, GRAMMAR.TEXT), seed=SEEDS)
def test_reasoning_and_tool_calls_are_kept_apart_from_the_answer(
    name: str, found: list[Any], texts: tuple[str, str], seed: int
) -> None:
    pick = random.Random(seed)
    key = pick.choice(["reasoning_content", "reasoning"])
    rich = [RichCall(call, texts[0], key, texts[1]) for call in found]
    data = "\n".join(GRAMMAR.FULL[name](rich, pick)).encode()
    rows = {(row.request_id or "").removeprefix("chatcmpl-"): row for row in read(name, data)}
    assert len(rows) == len(rich)
    for call in rich:
        row = rows[call.plain.id]
        assert answer_text(row.output).text == call.plain.answer
        assert reasoning_text(row.output) == texts[0]
        assert tool_text(row.output) == f"file_note\n{texts[1]}\n7\n{texts[1]}"
        assert row.finish_reasons == ("tool_calls",)


# Logs of one record a line, each a row of its own.
PARTNERS = {
    "openai-batch-input.jsonl": "openai-batch", "openai-batch-output.jsonl": "openai-batch",
    "azure-openai-requestresponse.json": "azure-openai-diagnostics",
    "azure-apim-gatewaylogs.jsonl": "azure-gateway-logs",
    "envoy-ai-gateway-access.jsonl": "envoy-access",
    "sglang-request-metrics-20261004_05.log": "sglang-metrics",
    "sglang-time-stats.log": "sglang-time-stats",
    "vllm-production-stack-router.log": "production-stack-router",
    "wildchat-schema.jsonl": "chat-dataset",
}  # fmt: skip


def told(row: LogRow) -> tuple[Any, ...]:
    return (
        row.request_id, row.tenant_id, row.start_us, row.end_us, row.input_tokens,
        row.output_tokens, row.status, prompt_text(row.input).text, answer_text(row.output).text,
    )  # fmt: skip


@pytest.mark.parametrize("sample", PARTNERS)
@CALM
@given(share=st.floats(0.02, 0.99))
def test_a_partners_log_cut_at_any_byte_keeps_every_row_before_the_cut(
    sample: str, share: float
) -> None:
    data = (DATA / sample).read_bytes()
    whole = [told(row) for row in read(PARTNERS[sample], data)]
    head = data[: int(len(data) * share)]
    kept = [told(row) for row in read(PARTNERS[sample], head)]
    complete = [told(row) for row in read(PARTNERS[sample], head[: head.rfind(b"\n") + 1])]
    assert complete == whole[: len(complete)]
    assert kept[: len(complete)] == complete
    assert len(kept) <= len(complete) + 1


@pytest.mark.parametrize("name", ["litellm-payload", "vllm-server", "generic-chunks"])
@CALM
@given(found=GRAMMAR.calls(), seed=SEEDS)
def test_the_own_table_comes_back_in_any_column_order(
    name: str, found: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pick = random.Random(seed)
    data = "\n".join(GRAMMAR.FULL[name](found, pick)).encode()
    frame = frame_of(read(name, data), Origin(name, "made.log", "engine"))
    path = tmp_path_factory.mktemp("table") / "requests.parquet"
    order = [*frame.columns, "x_unknown"]
    pick.shuffle(order)
    frame.with_columns(x_unknown=pl.lit(1)).select(order).write_parquet(path)
    frames = canonical_frames(path)
    assert frames is not None
    assert pl.concat(frames).equals(frame)


def chunk_lines(number: int, order: list[int], first: int) -> list[str]:
    texts = [f"{number}-{piece} " for piece in range(len(order))]
    ends = [*({"delta": {"content": text}} for text in texts[:-1]),
            {"delta": {"content": texts[-1]}, "finish_reason": "stop"}]  # fmt: skip
    request = {"rid": f"r{number}", "kind": "request", "tenant": "t", "ts": 1_790_000_000_000,
               "data": {"messages": [{"role": "user", "content": "q"}]}}  # fmt: skip
    chunks = [{"rid": f"r{number}", "kind": "chunk", "seq": first + n, "ts": 1_790_000_000_000 + n,
               "data": {"choices": [{"index": 0, **ends[n]}]}} for n in order]  # fmt: skip
    return [json.dumps(item) for item in (request, *chunks)]


@CALM
@given(seed=SEEDS, first=st.integers(0, 1))
def test_chunks_out_of_order_and_twice_give_the_answer_once(seed: int, first: int) -> None:
    pick = random.Random(seed)
    order = list(range(pick.randrange(2, 90)))
    for _ in range(pick.randrange(9)):
        at = pick.randrange(len(order) - 1)
        order[at], order[at + 1] = order[at + 1], order[at]
    lines = chunk_lines(1, order, first)
    lines.insert(pick.randrange(2, len(lines)), lines[1])  # one of them once more
    (row,) = read("generic-chunks", "\n".join(lines).encode())
    assert answer_text(row.output).text == "".join(f"1-{n} " for n in range(len(order)))


def test_a_complete_stream_is_handed_out_before_the_file_ends() -> None:
    lines = [line for number in range(900) for line in chunk_lines(number, [0, 1, 2], 0)]
    taken = 0

    def records() -> Iterator[RawRecord]:
        nonlocal taken
        for record in records_of(FORMATS["generic-chunks"].shape, ["\n".join(lines).encode()],
                                 ReadContext()):  # fmt: skip
            taken = record.row
            yield record

    rows = FORMATS["generic-chunks"].read(records(), ReadContext())
    assert next(rows).request_id == "r0"
    assert taken < 2_100
    assert len([*rows]) == 899
