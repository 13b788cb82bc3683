"""Every reader against records made from its format's grammar, compared with what went in.

Keys come in any order, optional ones are absent or null, strange ones stand between; requests are
interleaved where the format interleaves them; the last line is cut.
"""

import base64
import json
import random
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvaudit.forensics.content import answer_text, prompt_text, reasoning_text, tool_text
from kvaudit.forensics.formats import records_of, sample_of, sniff
from kvaudit.forensics.reader import ReadContext
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.row import LogRow


def grammar_module() -> ModuleType:
    path = Path(__file__).with_name("log_grammar.py")
    spec = spec_from_file_location("log_grammar", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["log_grammar"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GRAMMAR = grammar_module()
FULL = GRAMMAR.FULL
calls = GRAMMAR.calls
Call = GRAMMAR.Call
# What a format does not tell: no tenant, start to the second, no usage, no start at all.
NO_TENANT = {"azure-llm-log"}
WHOLE_SECONDS = {"openai-stored", "vllm-server"}
NO_START = {"llama-server"}
NO_MADE = {"vllm-server"}
CALM = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def read(name: str, data: bytes) -> tuple[list[LogRow], ReadContext]:
    context = ReadContext("made.log", 1_800_000_000_000_000, 2026)
    found = FORMATS[name]
    return list(found.read(records_of(found.shape, [data], context), context)), context


@pytest.mark.parametrize("name", FULL)
@CALM
@given(found=calls(), seed=st.integers(0, 2**32))
def test_a_reader_gives_back_what_its_grammar_was_made_from(
    name: str, found: list[Any], seed: int
) -> None:
    lines = FULL[name](found, random.Random(seed))
    data = "\n".join(lines).encode() + b"\n"
    sniffed = sniff(sample_of(data))
    assert sniffed.format is FORMATS[name]
    rows, context = read(name, data)
    assert not context.damages
    by_id = {(row.request_id or "").removeprefix("chatcmpl-"): row for row in rows}
    assert sorted(by_id) == sorted(call.id for call in found)
    assert len(rows) == len(found)
    for call in found:
        compare(name, call, by_id[call.id])


def compare(name: str, call: Any, row: LogRow) -> None:
    assert prompt_text(row.input).text == f"{call.system}\n{call.prompt}"
    assert answer_text(row.output).text == call.answer
    assert reasoning_text(row.output) == ""
    assert tool_text(row.output) == ""
    assert row.input_tokens == call.tokens or name == "vllm-server"
    assert row.output_tokens == call.made or name in NO_MADE
    assert row.tenant_id == (None if name in NO_TENANT else call.tenant)
    if name not in NO_START:
        step = 1_000_000 if name in WHOLE_SECONDS else 1
        assert row.start_us is not None
        assert row.start_us // step == call.start_ms * 1000 // step
    assert row.status in (200, None)


@pytest.mark.parametrize("name", FULL)
@CALM
@given(found=calls(), seed=st.integers(0, 2**32), share=st.floats(0.05, 0.95))
def test_a_cut_last_line_costs_at_most_its_own_request(
    name: str, found: list[Any], seed: int, share: float
) -> None:
    lines = FULL[name](found, random.Random(seed))
    assume(len(lines) >= len(found))  # not all of them in one line
    whole, _ = read(name, "\n".join(lines).encode())
    last = lines[-1].encode()
    cut = "\n".join(lines[:-1]).encode() + b"\n" + last[: int(len(last) * share)]
    rows, _ = read(name, cut)
    answers = {row.request_id: answer_text(row.output).text for row in rows}
    kept = sum(answers.get(row.request_id) == answer_text(row.output).text for row in whole)
    assert kept >= len(whole) - 1


@pytest.mark.parametrize("name", FORMATS)
@CALM
@given(data=st.binary(max_size=400), seed=st.integers(0, 2**32))
def test_no_reader_raises_on_what_it_never_expected(name: str, data: bytes, seed: int) -> None:
    pick = random.Random(seed)
    make = FULL.get(name, GRAMMAR.generic_jsonl)
    call = Call("a" * 32, "t", "s", "p", "answer", 9, 9, 1_790_000_000_000, 5, True)
    lines = [line.encode() for line in make([call], pick)]
    for index, line in enumerate(lines):
        position = pick.randrange(len(line) + 1)
        lines[index] = (
            line[:position] + data[: pick.randrange(40)] + line[position + pick.randrange(9) :]
        )
    swapped = [json.dumps(mangled(json.loads(line), pick)).encode()
               for line in make([call], pick)
               if line.startswith("{") and line.endswith("}")]  # fmt: skip
    read(name, b"\n".join([*lines, data, *swapped]))


def mangled(item: Any, pick: random.Random) -> Any:
    """The object with some values of another type."""
    if pick.random() < 0.1:
        odd: list[Any] = [None, 1, -1.5, True, "x", [], {}, [{}], [[]], {"a": [None]}, 10**30, "{"]
        return pick.choice(odd)
    if isinstance(item, dict):
        return {key: mangled(value, pick) for key, value in item.items()}
    return [mangled(value, pick) for value in item] if isinstance(item, list) else item


def test_a_prompt_that_holds_a_fake_log_line_makes_no_request_of_its_own() -> None:
    forged = "[2026-10-05 21:47:34] Finish: obj=GenerateReqInput(rid='evil')"
    fake = f"x'), out={{'text': 'forged'}}\n{forged}"
    call = Call("b" * 32, "t", "s", fake, "a real answer", 9, 9, 1_790_000_000_000, 5, False)
    for name in ("sglang-text", "sglang-json", "vllm-server"):
        rows, _ = read(name, "\n".join(FULL[name]([call], random.Random(1))).encode())
        assert [answer_text(row.output).text for row in rows] == ["a real answer"]


def test_a_picture_is_kept_as_its_digest_and_size_alone() -> None:
    picture = "data:image/png;base64," + base64.b64encode(b"\x00" * 30_000).decode()
    line = json.dumps({"request_id": "r", "tenant": "t", "response": "ok", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "what is this?"},
                                     {"type": "image_url", "image_url": {"url": picture}}]}
    ]})  # fmt: skip
    rows, _ = read("generic-jsonl", line.encode())
    assert prompt_text(rows[0].input).text == "what is this?"
    assert sum(len(part.text) for m in rows[0].input.messages for part in m.parts) < 300


def covered() -> Iterator[str]:
    yield from FULL
    # Half rows and rows without text are compared in test_forensics_partners.py, and the table's
    # own Parquet in test_forensics_ingest.py.
    yield from ("openai-batch", "azure-openai-diagnostics", "envoy-access", "sglang-metrics",
                "sglang-time-stats", "production-stack-router", "chat-dataset",
                "kvaudit-table")  # fmt: skip


def test_every_format_is_compared_somewhere() -> None:
    assert sorted(covered()) == sorted(FORMATS)
