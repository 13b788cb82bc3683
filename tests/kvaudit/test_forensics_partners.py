"""Half rows and rows without text against what their logs were made from.

Batch files, metrics exports, routers, access logs, diagnostics and data sets: other logs complete
them, so that each has its own list of what it tells.
"""

import json
import random
import sys
from datetime import UTC, datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit.forensics.content import answer_text, prompt_text
from kvaudit.forensics.formats import records_of, sample_of, sniff
from kvaudit.forensics.reader import ReadContext
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.row import ContentState, LogRow, TimeBasis


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
calls, iso, with_noise = GRAMMAR.calls, GRAMMAR.iso, GRAMMAR.with_noise
CALM = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
SEEDS = st.integers(0, 2**32)


def read(name: str, text: str) -> list[LogRow]:
    """Read what sniffing takes for the format."""
    data = text.encode()
    assert sniff(sample_of(data)).format is FORMATS[name]
    context = ReadContext("made.log", 1_800_000_000_000_000, 2026)
    rows = list(FORMATS[name].read(records_of(FORMATS[name].shape, [data], context), context))
    assert not context.damages
    return rows


def as_file(items: list[str], pick: random.Random) -> str:
    """JSON lines, or an envelope with `records`."""
    if pick.random() < 0.7:
        return "\n".join(items)
    indent = pick.choice([None, 1])
    return json.dumps({"records": [json.loads(item) for item in items]}, indent=indent)


@CALM
@given(found=calls(), seed=SEEDS)
def test_a_batchs_input_and_output_give_its_two_halves(found: list[Any], seed: int) -> None:
    pick = random.Random(seed)
    asked = [with_noise({
        "custom_id": c.id, "method": "POST", "url": "/v1/chat/completions",
        "body": {**c.body, "metadata": {"tenant": c.tenant}},
    }, pick) for c in found]  # fmt: skip
    answers = [with_noise({
        "id": f"batch_req_{c.id}", "custom_id": c.id, "error": None,
        "response": {"status_code": 200, "request_id": "r", "body": batch_body(c, pick)},
    }, pick, "error") for c in found]  # fmt: skip
    error = {"code": "batch_expired", "message": "too late"}
    failed = with_noise({"id": "x", "custom_id": "late", "response": None, "error": error}, pick)
    pick.shuffle(answers)
    prompts = {row.request_id: row for row in read("openai-batch", "\n".join(asked))}
    replies = {row.request_id: row for row in read("openai-batch", "\n".join([*answers, failed]))}
    late = replies.pop("late")
    assert (late.error_type, late.error_message) == ("batch_expired", "too late")
    assert late.status is None
    for c in found:
        prompt, reply = prompts[c.id], replies[c.id]
        assert prompt_text(prompt.input).text == f"{c.system}\n{c.prompt}"
        assert (prompt.tenant_id, prompt.output.state) == (c.tenant, ContentState.ABSENT)
        assert answer_text(reply.output).text == c.answer
        assert (reply.input_tokens, reply.output_tokens, reply.status) == (c.tokens, c.made, 200)
        assert (reply.start_us, reply.time_basis) == (c.end_ms // 1000 * 10**6, TimeBasis.INFERRED)
    assert len(prompts) == len(replies) == len(found)


def batch_body(c: Any, pick: random.Random) -> Any:
    """A chat completion, or an answer of the Responses API."""
    if pick.random() < 0.5:
        return c.completion
    return {"id": f"resp_{c.id}", "object": "response", "created_at": c.end_ms // 1000,
            "status": "completed", "model": "m", "output": [
                {"type": "message", "role": "assistant",
                 "content": [{"type": "output_text", "text": c.answer}]}],
            "usage": {"input_tokens": c.tokens, "output_tokens": c.made}}  # fmt: skip


@CALM
@given(found=calls(), seed=SEEDS)
def test_a_metrics_export_gives_prompts_and_numbers_and_never_an_answer(
    found: list[Any], seed: int
) -> None:
    pick = random.Random(seed)
    lines = []
    for c in found:
        parameters = {"rid": c.id, "text": GRAMMAR.templated(c), "routing_key": c.tenant,
                      "sampling_params": {"max_new_tokens": 9}}  # fmt: skip
        lines.append(with_noise({
            "request_parameters": json.dumps(parameters), **GRAMMAR._sglang_out(c)["meta_info"],
            "e2e_latency": c.took_ms / 1000, "dp_rank": 1,
        }, pick, "dp_rank"))  # fmt: skip
    rows = {row.request_id: row for row in read("sglang-metrics", "\n".join(lines))}
    for c in found:
        row = rows[c.id]
        assert prompt_text(row.input).text == f"{c.system}\n{c.prompt}"
        assert row.output.state is ContentState.ABSENT
        assert (row.input_tokens, row.output_tokens) == (c.tokens, c.made)
        assert (row.start_us, row.end_us) == (c.start_ms * 1000, c.end_ms * 1000)
        assert (row.tenant_id, row.status) == (c.tenant, 200)


@CALM
@given(found=calls(), seed=SEEDS)
def test_time_stats_give_each_legs_length_durations_room_and_bytes(
    found: list[Any], seed: int
) -> None:
    pick = random.Random(seed)
    lines, told = ["[2026-09-06 10:14:01] Prefill batch. #new-seq: 1"], {}
    for number, c in enumerate(found):
        leg = pick.choice(["prefill", "decode", "unified"])
        room = None if leg == "unified" else 2**62 + number
        old = pick.random() < 0.3 and leg != "decode"
        queue_ms, forward_ms = pick.randrange(1, 900) / 100, pick.randrange(1, 90_000) / 10
        megabytes = pick.randrange(1, 10**5) / 4 if leg == "prefill" else None
        head = {"rid": c.id, "bootstrap_room": room, "input_len": c.tokens,
                "output_len": 1 if leg == "prefill" else c.made, "type": leg}  # fmt: skip
        names = [f"{key.replace('_len', ' len') if old else key}={value}"
                 for key, value in head.items() if value is not None]  # fmt: skip
        tail = [f"queue_duration={queue_ms:.2f}ms", f"forward_duration={forward_ms:.2f}ms",
                f"{'start' if old else 'entry'}_time={c.start_ms / 1000:.3f}"]  # fmt: skip
        if megabytes is not None:
            tail += ["transfer_speed=1.25 GB/s", f"transfer_total={megabytes:.2f} MB"]
        mark = "Req Time Stats" if old else "ReqTimeStats"
        stamp = pick.choice(["[2026-09-06 10:14:02] ", "[2026-09-06 10:14:02 TP0] ", ""])
        lines.append(f"{stamp}{mark}({', '.join(names)}): {', '.join(tail)}")
        told[c.id] = (leg, room, queue_ms + forward_ms, megabytes)
    rows = {row.request_id: row for row in read("sglang-time-stats", "\n".join(lines))}
    for c in found:
        leg, room, spent_ms, megabytes = told[c.id]
        row = rows[c.id]
        assert (row.input_tokens, row.leg) == (c.tokens, leg)
        assert row.room == (None if room is None else str(room))
        assert row.output_tokens == (1 if leg == "prefill" else c.made)
        assert row.start_us == c.start_ms * 1000
        assert row.end_us == pytest.approx(c.start_ms * 1000 + spent_ms * 1000, abs=1)
        assert row.ttft_s == (pytest.approx(spent_ms / 1000) if leg == "prefill" else None)
        assert row.transfer_bytes == (None if megabytes is None else round(megabytes * 2**20))


@CALM
@given(found=calls(), seed=SEEDS)
def test_a_routers_log_gives_who_went_where_and_when(found: list[Any], seed: int) -> None:
    pick = random.Random(seed)
    as_json, zone_ms = pick.random() < 0.5, pick.choice([0, 2, -5]) * 3_600_000
    lines, retried = [], set()
    for c in found:
        session = f" with session id {c.tenant}" if pick.random() < 0.8 else ""
        at = f" at {c.start_ms / 1000:.6f}, process time = 0.0011"
        lines.append((c.start_ms, f"Routing request {c.id}{session} to http://a:8000{at}"))
        if pick.random() < 0.5:
            retried.add(c.id)
            lines.append((c.start_ms, f"Routing request {c.id} to http://b:8000 (attempt 2/3)"))
    made = [router_line(ms + zone_ms, message, as_json=as_json) for ms, message in lines]
    other = router_line(1_790_000_000_000, "Scraping metrics", as_json=as_json)
    rows = read("production-stack-router", "\n".join([other, *made, other]))
    by_id = {(row.request_id, row.attempt): row for row in rows}
    assert len(by_id) == len(rows) == len(found) + len(retried)
    for (ms, message), row in zip(lines, rows, strict=True):
        assert row.start_us == pytest.approx(ms * 1000, abs=1)
        assert row.time_basis is TimeBasis.ABSOLUTE
        assert row.is_partner
        assert row.replica == ("http://b:8000" if "attempt" in message else "http://a:8000")
        named = next((c.tenant for c in found if f"session id {c.tenant} " in message), None)
        assert row.tenant_id == named


def router_line(ms: int, message: str, *, as_json: bool) -> str:
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S},{ms % 1000:03}"
    if as_json:
        return json.dumps({"timestamp": stamp, "level": "INFO", "logger": "l", "message": message,
                           "filename": "request.py", "lineno": 600})  # fmt: skip
    return f"\x1b[32;20m[{stamp}] INFO:\x1b[0m {message} \x1b[3m(request.py:600:vllm_router)\x1b[0m"


@CALM
@given(found=calls(), seed=SEEDS)
def test_an_access_log_gives_numbers_whatever_keys_its_operator_chose(
    found: list[Any], seed: int
) -> None:
    pick = random.Random(seed)
    key = pick.choice(["x-tenant-id", "X-Tenant-ID", "x-org-id"])
    kept = pick.sample(["upstream_host", "response_flags", "duration", "x-forwarded-for"], 2)
    lines = []
    for c in found:
        chosen = {"upstream_host": "10.8.2.1:30000", "response_flags": "-",
                  "duration": c.took_ms, "x-forwarded-for": "10.8.9.3"}  # fmt: skip
        lines.append(with_noise({
            "start_time": iso(c.start_ms), "response_code": 200, "x-request-id": c.id,
            key: c.tenant, "gen_ai.usage.input_tokens": c.tokens,
            "gen_ai.usage.output_tokens": str(c.made),
            "gen_ai.request.model": "m", "gen_ai.response.model": "-",
            **{name: chosen[name] for name in kept},
        }, pick))  # fmt: skip
    rows = {row.request_id: row for row in read("envoy-access", "\n".join(lines))}
    for c in found:
        row = rows[c.id]
        assert (row.tenant_id, row.status, row.is_partner) == (c.tenant, 200, True)
        assert (row.input_tokens, row.output_tokens) == (c.tokens, c.made)
        assert (row.start_us, row.response_model) == (c.start_ms * 1000, None)
        assert row.end_us == (c.end_ms * 1000 if "duration" in kept else None)
        assert row.replica == ("10.8.2.1:30000" if "upstream_host" in kept else None)


@CALM
@given(found=calls(), seed=SEEDS)
def test_azure_diagnostics_give_times_from_ticks_and_no_text(found: list[Any], seed: int) -> None:
    pick = random.Random(seed)
    lines = []
    for c in found:
        properties = {
            "requestTime": ticks(c.start_ms), "responseTime": ticks(c.end_ms), "objectId": "",
            "streamType": "Streaming" if c.stream else "Non-Streaming", "modelName": "m",
        }  # fmt: skip
        lines.append(with_noise({
            "Tenant": "westmark", "category": "RequestResponse", "correlationId": c.id,
            "operationName": "ChatCompletions_Create", "durationMs": pick.choice([c.took_ms, -3]),
            "properties": json.dumps(properties) if pick.random() < 0.5 else properties,
            "resultSignature": "200", "time": iso(c.start_ms + 5),
        }, pick, "durationMs"))  # fmt: skip
    rows = {row.request_id: row for row in read("azure-openai-diagnostics", as_file(lines, pick))}
    for c in found:
        row = rows[c.id]
        assert (row.start_us, row.end_us) == (c.start_ms * 1000, c.end_ms * 1000)
        assert (row.tenant_id, row.status, row.stream) == (None, 200, c.stream)
        assert row.is_partner


def ticks(ms: int) -> int:
    return (62_135_596_800_000 + ms) * 10_000


@CALM
@given(found=calls(), seed=SEEDS)
def test_gateway_rows_without_bodies_give_tenant_time_and_status(
    found: list[Any], seed: int
) -> None:
    pick = random.Random(seed)
    in_envelope = pick.random() < 0.5
    lines = []
    for c in found:
        if in_envelope:
            properties = {"apimSubscriptionId": c.tenant, "responseCode": 200, "cache": "none"}
            item: dict[str, Any] = {
                "time": iso(c.start_ms)[:-1] + "0000Z", "category": "GatewayLogs",
                "correlationId": c.id, "durationMs": c.took_ms,
                "properties": json.dumps(properties) if pick.random() < 0.5 else properties,
            }  # fmt: skip
        else:
            item = {"TimeGenerated": iso(c.start_ms), "CorrelationId": c.id, "ResponseCode": "200",
                    "TotalTime": str(c.took_ms), "ApimSubscriptionId": c.tenant}  # fmt: skip
        lines.append(with_noise(item, pick))
    rows = {row.request_id: row for row in read("azure-gateway-logs", as_file(lines, pick))}
    for c in found:
        row = rows[c.id]
        assert (row.tenant_id, row.status, row.is_partner) == (c.tenant, 200, True)
        assert (row.start_us, row.end_us) == (c.start_ms * 1000, c.end_ms * 1000)


@CALM
@given(found=calls(), shape=st.sampled_from(["wildchat", "lmsys", "sharegpt"]), seed=SEEDS)
def test_a_data_set_gives_a_row_for_every_answer_with_its_history(
    found: list[Any], shape: str, seed: int
) -> None:
    pick = random.Random(seed)
    lines, told = [], {}
    for c in found:
        turns = pick.randrange(1, 4)
        texts = [(f"{c.prompt} {n}", f"{c.answer} {n}") for n in range(turns)]
        told[c.id] = texts
        lines.append(with_noise(DATASETS[shape](c, texts), pick))
    text = "\n".join(lines) if pick.random() < 0.6 else f"[{', '.join(lines)}]"
    rows = read("chat-dataset", text)
    assert len(rows) == sum(map(len, told.values()))
    by_id = {row.request_id: row for row in rows}
    for c in found:
        history: list[str] = []
        for number, (prompt, answer) in enumerate(told[c.id], 1):
            row = by_id[c.id + (f"#{number}" if number > 1 else "")]
            history.append(prompt)
            assert prompt_text(row.input).text == "\n".join(history)
            assert answer_text(row.output).text == answer
            assert row.conversation_id == c.id
            assert row.tenant_id == (c.tenant if shape == "wildchat" else c.id)
            is_timed = shape == "wildchat"
            assert row.start_us == (c.end_ms // 1000 * 10**6 if is_timed else None)
            history.append(answer)


def wildchat(c: Any, texts: list[tuple[str, str]]) -> dict[str, Any]:
    stamp = iso(c.end_ms // 1000 * 1000)
    turns = []
    for prompt, answer in texts:
        turns.append({"role": "user", "content": prompt, "timestamp": None})
        turns.append({"role": "assistant", "content": answer, "timestamp": stamp})
    return {"conversation_hash": c.id, "model": "m", "timestamp": stamp, "hashed_ip": c.tenant,
            "conversation": [{**turn, "hashed_ip": c.tenant} for turn in turns]}  # fmt: skip


def lmsys(c: Any, texts: list[tuple[str, str]]) -> dict[str, Any]:
    turns = [{"role": role, "content": text} for role, text in spoken(texts, "user", "assistant")]
    return {"conversation_id": c.id, "model": "m", "conversation": turns, "turn": len(texts)}


def sharegpt(c: Any, texts: list[tuple[str, str]]) -> dict[str, Any]:
    turns = [{"from": role, "value": text} for role, text in spoken(texts, "human", "gpt")]
    return {"id": c.id, "conversations": turns}


def spoken(texts: list[tuple[str, str]], *roles: str) -> list[tuple[str, str]]:
    return [turn for pair in texts for turn in zip(roles, pair, strict=True)]


DATASETS = {"wildchat": wildchat, "lmsys": lmsys, "sharegpt": sharegpt}
