"""Log files made from each format's grammar, for the tests of the readers.

Keys come in any order, optional ones are absent or null, strange ones stand between; requests are
interleaved where the format interleaves them.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Call:
    """One request, as it really was."""

    id: str
    tenant: str
    system: str
    prompt: str
    answer: str
    tokens: int
    made: int
    start_ms: int
    took_ms: int
    stream: bool

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.took_ms

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.prompt},
        ]

    @property
    def usage(self) -> dict[str, Any]:
        return {"prompt_tokens": self.tokens, "completion_tokens": self.made}

    @property
    def body(self) -> dict[str, Any]:
        return {"model": "m", "messages": self.messages, "max_tokens": 99, "stream": self.stream}

    @property
    def completion(self) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.id}", "object": "chat.completion", "model": "m",
                "created": self.end_ms // 1000,
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": self.answer}}],
                "usage": self.usage}  # fmt: skip

    def chunks(self, pick: random.Random) -> list[dict[str, Any]]:
        pieces = cut_up(self.answer, pick)
        made: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
        made += [{"delta": {"content": piece}} for piece in pieces]
        made += [{"delta": {}, "finish_reason": "stop"}]
        chunks = [{"id": f"chatcmpl-{self.id}", "object": "chat.completion.chunk", "model": "m",
                   "choices": [{"index": 0, **choice}]} for choice in made]  # fmt: skip
        return [*chunks, {**chunks[0], "choices": [], "usage": self.usage}]


def cut_up(text: str, pick: random.Random) -> list[str]:
    edges = sorted(pick.sample(range(1, len(text)), min(len(text) - 1, pick.randrange(6))))
    return [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]


def iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def space_iso(ms: int) -> str:
    return iso(ms).replace("T", " ").rstrip("Z")


# No markers of chat templates, no outer white space: an engine's log can't tell those apart.
LETTERS = st.characters(
    codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="<>[]\uff5c|",
    include_characters="\n\t\"'\\",
)  # fmt: skip
TEXT = st.text(LETTERS, min_size=2, max_size=60).map(lambda t: f"a{t.strip()}z")


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    count = draw(st.integers(1, 4))
    ids = draw(st.lists(st.uuids(version=4), min_size=count, max_size=count, unique=True))
    return [
        Call(
            id=found.hex, tenant=draw(st.sampled_from(["orchid", "pebble", "quill"])),
            system=draw(TEXT), prompt=draw(TEXT), answer=draw(TEXT),
            tokens=draw(st.integers(20, 5_000)), made=draw(st.integers(2, 900)),
            start_ms=1_790_000_000_000 + draw(st.integers(0, 10**8)),
            took_ms=draw(st.integers(1, 90_000)), stream=draw(st.booleans()),
        )
        for found in ids
    ]  # fmt: skip


def shaken(item: Any, pick: random.Random) -> Any:
    """The same object with its keys in another order and a strange key among them."""
    if isinstance(item, dict):
        keys = [*item]
        pick.shuffle(keys)
        return {key: shaken(item[key], pick) for key in keys}
    return [shaken(value, pick) for value in item] if isinstance(item, list) else item


def with_noise(item: dict[str, Any], pick: random.Random, *optional: str) -> str:
    """One JSON line: shaken, with a strange key, and each optional key kept, null or absent."""
    made = {**item, "x_unknown": pick.choice([None, 1, {"a": []}])}
    for key in optional:
        fate = pick.randrange(3)
        if fate == 1:
            made[key] = None
        elif fate == 2:
            made.pop(key, None)
    return json.dumps(shaken(made, pick), ensure_ascii=pick.random() < 0.5)


Lines = list[str]
Make = Callable[[list[Call], random.Random], Lines]


def litellm_payload(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "id": f"chatcmpl-{c.id}", "call_type": "acompletion", "model_group": "m",
        "status": "success",
        "startTime": c.start_ms / 1000, "endTime": c.end_ms / 1000, "messages": c.messages,
        "prompt_tokens": c.tokens, "completion_tokens": c.made, "stream": c.stream,
        "response": json.dumps(c.completion) if pick.random() < 0.3 else c.completion,
        "metadata": {"user_api_key_team_id": c.tenant}, "trace_id": "t", "model_parameters": {},
    }, pick, "trace_id", "model_parameters", "stream") for c in found]  # fmt: skip


def litellm_spendlogs(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "request_id": f"chatcmpl-{c.id}", "api_key": "h" * 64, "spend": 0.1, "team_id": c.tenant,
        "startTime": iso(c.start_ms).rstrip("Z"), "endTime": iso(c.end_ms).rstrip("Z"),
        "prompt_tokens": c.tokens, "completion_tokens": c.made, "cache_hit": "False",
        "messages": {}, "response": c.completion, "status": "success", "metadata": {},
        "proxy_server_request": json.dumps(c.body) if pick.random() < 0.3 else c.body,
    }, pick, "metadata", "cache_hit") for c in found]  # fmt: skip


def langfuse(found: list[Call], pick: random.Random) -> Lines:
    lines = []
    for c in found:
        item = {
            "id": c.id, "trace_id": f"{c.id}-trace", "type": "GENERATION", "level": "DEFAULT",
            "project_id": "p", "metadata": {"tenant": c.tenant},
            "start_time": space_iso(c.start_ms),
            "end_time": space_iso(c.end_ms), "input": json.dumps(c.messages),
            "output": json.dumps({"role": "assistant", "content": c.answer}),
            "usage_details": {"input": str(c.tokens), "output": c.made},
            "updated_at": space_iso(c.end_ms), "parent_observation_id": "x",
        }  # fmt: skip
        if pick.random() < 0.5:
            older = {**item, "output": None, "updated_at": space_iso(c.start_ms)}
            lines.append(with_noise(older, pick))
        if pick.random() < 0.5:
            lines.append(with_noise({**item, "type": "SPAN", "id": f"{c.id}-parent"}, pick))
        lines.append(with_noise(item, pick))
    return lines


def helicone(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "request_id": c.id, "request_created_at": iso(c.start_ms),
        "response_created_at": iso(c.end_ms), "request_body": c.body, "response_status": 200,
        "response_body": {**c.completion, "streamed_data": c.chunks(pick)} if c.stream
        else c.completion, "request_properties": {"tenant": c.tenant}, "helicone_user": "u",
        "delay_ms": c.took_ms, "prompt_tokens": c.tokens, "completion_tokens": c.made,
        "time_to_first_token": 3,
    }, pick, "time_to_first_token", "delay_ms") for c in found]  # fmt: skip


def sse(c: Call, pick: random.Random) -> str:
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in c.chunks(pick)]
    return "".join([*events, "data: [DONE]\n\n"])


def cloudflare_logpush(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "Timestamp": pick.choice([iso(c.start_ms), c.start_ms * 1_000_000]), "Gateway": "g",
        "StatusCode": 200, "Cached": False, "Metadata": {"tenant": c.tenant, "request_id": c.id},
        "Metrics": {"durationMs": c.took_ms}, "RequestBody": json.dumps(c.body),
        "ResponseBody": sse(c, pick) if c.stream else json.dumps(c.completion), "Model": "m",
    }, pick, "Model") for c in found]  # fmt: skip


def cloudflare_api(found: list[Call], pick: random.Random) -> Lines:
    items = [json.loads(with_noise({
        "id": c.id, "created_at": iso(c.start_ms), "provider": "p", "duration": c.took_ms,
        "status_code": 200, "success": True, "cached": False, "tokens_in": c.tokens,
        "tokens_out": c.made, "metadata": json.dumps({"tenant": c.tenant}),
        "request_head": json.dumps(c.body), "request_head_complete": True,
        "response_head": json.dumps(c.completion), "response_head_complete": True,
    }, pick, "success")) for c in found]  # fmt: skip
    return json.dumps({"success": True, "result": items}, indent=pick.choice([None, 2])).split("\n")


def bedrock(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "schemaType": "ModelInvocationLog", "timestamp": iso(c.start_ms), "requestId": c.id,
        "operation": "InvokeModelWithResponseStream" if c.stream else "Converse", "modelId": "m",
        "identity": {"arn": f"arn:aws:sts::1:assumed-role/{c.tenant}-app/u"},
        "input": {"inputTokenCount": c.tokens, "inputBodyJson": {
            "system": [{"text": c.system}], "messages": [
                {"role": "user", "content": [{"text": c.prompt}]}]}},
        "output": {"outputTokenCount": c.made, "outputBodyJson": _anthropic(c, pick) if c.stream
                   else {"output": {"message": {"role": "assistant",
                                                "content": [{"text": c.answer}]}},
                         "stopReason": "end_turn", "metrics": {"latencyMs": c.took_ms}}},
    }, pick) for c in found]  # fmt: skip


def _anthropic(c: Call, pick: random.Random) -> list[dict[str, Any]]:
    return [
        {"type": "message_start", "message": {"id": "msg", "usage": {"input_tokens": c.tokens}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}}
          for p in cut_up(c.answer, pick)),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]  # fmt: skip


def azure_llm_log(found: list[Call], pick: random.Random) -> Lines:
    lines = []
    for c in found:
        head = {"TimeGenerated": iso(c.start_ms), "CorrelationId": c.id, "RequestId": "r"}
        half = len(c.answer) // 2
        rows: list[dict[str, Any]] = [
            {"SequenceNumber": 0, "PromptTokens": c.tokens, "CompletionTokens": c.made,
             "TotalTokens": c.tokens + c.made, "RequestMessages": None, "ResponseMessages": None},
            {"SequenceNumber": 1, "RequestMessages": c.messages, "ResponseMessages": None},
            *({"SequenceNumber": n, "RequestMessages": None, "ResponseMessages":
               [{"role": "assistant", "content": text}]}
              for n, text in ((2, c.answer[:half]), (3, c.answer[half:]))),
        ]  # fmt: skip
        for row in rows:
            if pick.random() < 0.3:  # CSV and Event Hub exports hold them as strings
                row["RequestMessages"] = row["RequestMessages"] and json.dumps(
                    row["RequestMessages"]
                )
        lines += [with_noise({**head, **row}, pick) for row in rows]
    pick.shuffle(lines)
    return lines


def azure_gateway_logs(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "correlationId": c.id, "time": iso(c.start_ms), "durationMs": c.took_ms, "properties": {
            "apimSubscriptionId": c.tenant, "responseCode": 200, "requestBody": json.dumps(c.body),
            "responseBody": json.dumps(c.completion),
            "backendResponseBody": json.dumps(c.completion),
        },
    }, pick) for c in found]  # fmt: skip


def openai_stored(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        **c.completion, "id": c.id, "created": c.start_ms // 1000, "metadata": {"tenant": c.tenant},
        "messages_page": {"object": "list", "data": [{**m, "name": None} for m in c.messages]},
    }, pick) for c in found]  # fmt: skip


def otel_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otel_value(item) for item in value]}}
    return {"kvlistValue": {"values": otel_attributes(value)}}


def otel_attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": otel_value(value)} for key, value in values.items()]


def _parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]}
            for m in messages]  # fmt: skip


def _exchange(c: Call, pick: random.Random) -> dict[str, Any]:
    prompt, answer = _parts(c.messages), _parts([{"role": "assistant", "content": c.answer}])
    as_string = pick.random() < 0.5
    return {
        "tenant.id": c.tenant, "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": c.tokens,
        "gen_ai.usage.output_tokens": c.made, "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.input.messages": json.dumps(prompt) if as_string else prompt,
        "gen_ai.output.messages": json.dumps(answer) if as_string else answer,
    }  # fmt: skip


def _otlp(kind: str, items: list[dict[str, Any]], pick: random.Random) -> str:
    outer, middle, inner = {
        "spans": ("resourceSpans", "scopeSpans", "spans"),
        "logs": ("resourceLogs", "scopeLogs", "logRecords"),
    }[kind]
    resource = {"attributes": otel_attributes({"service.name": "s"})}
    return with_noise({outer: [{"resource": resource, middle: [{inner: items}]}]}, pick)


def otel_span(found: list[Call], pick: random.Random) -> Lines:
    return [_otlp("spans", [{
        "traceId": c.id, "spanId": c.id[:16], "startTimeUnixNano": str(c.start_ms * 1_000_000),
        "endTimeUnixNano": str(c.end_ms * 1_000_000),
        "attributes": otel_attributes(_exchange(c, pick)),
    }], pick) for c in found]  # fmt: skip


def otel_event(found: list[Call], pick: random.Random) -> Lines:
    """Either one event a request, or one a message with the span before or after."""
    if pick.random() < 0.5:
        return [_otlp("logs", [{
            "traceId": c.id, "spanId": c.id[:16], "timeUnixNano": str(c.start_ms * 1_000_000),
            "eventName": "gen_ai.client.inference.operation.details",
            "attributes": otel_attributes(_exchange(c, pick)),
        }], pick) for c in found]  # fmt: skip
    lines = []
    for c in found:
        ids = {"traceId": c.id, "spanId": c.id[:16]}
        attributes = {
            key: value for key, value in _exchange(c, pick).items() if "messages" not in key
        }
        span = {**ids, "startTimeUnixNano": str(c.start_ms * 1_000_000),
                "endTimeUnixNano": str(c.end_ms * 1_000_000),
                "attributes": otel_attributes(attributes)}  # fmt: skip
        events = [{**ids, "timeUnixNano": str(c.start_ms * 1_000_000), "eventName": name,
                   "body": otel_value({"content": text})}
                  for name, text in (("gen_ai.system.message", c.system),
                                     ("gen_ai.user.message", c.prompt))]  # fmt: skip
        events += [{**ids, "timeUnixNano": str(c.end_ms * 1_000_000), "eventName": "gen_ai.choice",
                    "body": otel_value({"index": 0, "finish_reason": "stop", "message": {
                        "role": "assistant", "content": c.answer}})}]  # fmt: skip
        both = [_otlp("logs", events, pick), _otlp("spans", [span], pick)]
        pick.shuffle(both)
        lines += both
    return lines


def generic_jsonl(found: list[Call], pick: random.Random) -> Lines:
    return [with_noise({
        "request_id": c.id, "tenant": c.tenant, "ts_start": iso(c.start_ms),
        "ts_end": iso(c.end_ms),
        "system": c.system, "prompt": c.prompt, "response": c.answer, "status": 200,
        "usage": c.usage, "model": "m", "finish_reason": "stop", "attachments": [], "tools": [],
    }, pick, "attachments", "tools", "finish_reason", "model") for c in found]  # fmt: skip


def generic_chunks(found: list[Call], pick: random.Random) -> Lines:
    streams = []
    for c in found:
        lines = [
            {"ts": c.start_ms, "rid": c.id, "tenant": c.tenant, "kind": "request", "data": c.body}
        ]
        lines += [{"ts": c.end_ms, "rid": c.id, "kind": "chunk", "seq": n, "data": chunk}
                  for n, chunk in enumerate(c.chunks(pick))]  # fmt: skip
        streams.append([with_noise(line, pick) for line in lines])
    return interleaved(streams, pick)


def interleaved(streams: list[list[str]], pick: random.Random) -> Lines:
    made = []
    held = [list(stream) for stream in streams]
    while any(held):
        stream = pick.choice([stream for stream in held if stream])
        made.append(stream.pop(0))
    return made


def templated(c: Call) -> str:
    return (f"<|im_start|>system\n{c.system}<|im_end|>\n<|im_start|>user\n{c.prompt}<|im_end|>\n"
            "<|im_start|>assistant\n")  # fmt: skip


def vllm_server(found: list[Call], pick: random.Random) -> Lines:
    streams = []
    for c in found:

        def line(level: str, message: str, c: Call = c) -> str:
            moment = datetime.fromtimestamp(c.start_ms // 1000, tz=UTC)
            return f"(APIServer pid=1) {level} {moment:%m-%d %H:%M:%S} [a/b.py:1] {message}"

        rid, ids = f"chatcmpl-{c.id}", "1, " * (c.tokens - 1) + "1"
        params = (
            f"SamplingParams(n=1, stop=[], extra_args={{'tenant': {c.tenant!r}}}, max_tokens=9)"
        )
        lines = [
            line("DEBUG", f"Request {rid} details: prompt: {templated(c)!r}, prompt_token_ids:"
                          f" [{ids}], prompt_embeds shape: None."),
            line("INFO", f"Received request {rid}: params: {params}, lora_request: None."),
        ]  # fmt: skip
        if c.stream:
            lines += [line("INFO", f"Generated response {rid} (streaming delta): output: {piece!r},"
                                   " finish_reason: None")
                      for piece in cut_up(c.answer, pick)]  # fmt: skip
            if pick.random() < 0.5:
                lines.append(line("INFO", f"Generated response {rid} (streaming complete): output:"
                                          f" {c.answer!r}, finish_reason: streaming_complete")
                )  # fmt: skip
        else:
            lines.append(line("INFO", f"Generated response {rid}: output: {c.answer!r},"
                                      " finish_reason: stop"))  # fmt: skip
        streams.append([*lines, 'INFO:     10.0.0.1:9 - "POST /v1/chat/completions HTTP/1.1" 200'])
    return interleaved(streams, pick)


def _sglang(c: Call, *, done: bool) -> dict[str, Any]:
    return {"rid": c.id, "text": templated(c) if done else None, "stream": c.stream,
           "sampling_params": {"max_new_tokens": 9, "stop": []}, "routing_key": c.tenant,
           "bootstrap_room": None, "cache_salt": None}  # fmt: skip


def _sglang_out(c: Call) -> dict[str, Any]:
    return {"text": c.answer, "output_ids": [1, 2], "meta_info": {
        "id": c.id, "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": c.tokens,
        "completion_tokens": c.made, "cached_tokens": 0,
        "request_received_ts": c.start_ms / 1000,
        "request_finished_ts": c.end_ms / 1000}}  # fmt: skip


def sglang_text(found: list[Call], pick: random.Random) -> Lines:
    def obj(c: Call, *, done: bool) -> str:
        fields = list(_sglang(c, done=done).items())
        pick.shuffle(fields)
        return "GenerateReqInput(" + ", ".join(f"{k}={v!r}" for k, v in fields) + ")"

    return interleaved([[
        f"[2026-10-05 21:47:33] Receive: obj={obj(c, done=False)}",
        f"[2026-10-05 21:47:34] Finish: obj={obj(c, done=True)}, out={_sglang_out(c)!r}",
    ] for c in found], pick)  # fmt: skip


def sglang_json(found: list[Call], pick: random.Random) -> Lines:
    def event(c: Call, name: str, **more: Any) -> str:
        item = {"timestamp": iso(c.start_ms).rstrip("Z"), "event": f"request.{name}", "rid": c.id,
                "obj": shaken(_sglang(c, done=name == "finished"), pick), **more}  # fmt: skip
        return f"[2026-10-05 21:47:33] {json.dumps(item)}"

    return interleaved(
        [[event(c, "received"), event(c, "finished", out=_sglang_out(c))] for c in found], pick
    )


def llama_server(found: list[Call], pick: random.Random) -> Lines:
    lines: Lines = ["0.00.001.000 I srv  llama_server: initializing ..."]
    for n, c in enumerate(found):
        t = f"{n}.10.000.000"
        body = json.dumps({**c.body, "user": c.tenant})
        lines += [f"{t} I slot launch_slot_: id  {n % 4} | task {n} | processing task"]
        if c.stream:
            lines += [f"{t} D srv    operator(): http: streamed chunk: data: {json.dumps(chunk)}"
                      for chunk in c.chunks(pick)]  # fmt: skip
        lines += [
            f"{t} I slot print_timing: id  {n % 4} | task {n} | ",
            f"prompt eval time =     122.64 ms /    {c.tokens} tokens (    1.46 ms per token)",
            f"       eval time =     492.00 ms /    {c.made} tokens (   20.50 ms per token)",
            f"{t} I slot      release: id  {n % 4} | task {n} | stop processing: n_tokens = 9",
            f"{t} I srv  log_server_r: done request: POST /v1/chat/completions 10.8.3.2 200",
            f"{t} D srv  log_server_r: request:  {body}",
            f"{t} D srv  log_server_r: response: {'' if c.stream else json.dumps(c.completion)}",
        ]  # fmt: skip
    return lines


FULL: dict[str, Make] = {
    "litellm-payload": litellm_payload, "litellm-spendlogs": litellm_spendlogs,
    "langfuse": langfuse, "helicone": helicone, "cloudflare-logpush": cloudflare_logpush,
    "cloudflare-api": cloudflare_api, "bedrock": bedrock, "azure-llm-log": azure_llm_log,
    "azure-gateway-logs": azure_gateway_logs, "openai-stored": openai_stored,
    "otel-span": otel_span, "otel-event": otel_event, "generic-jsonl": generic_jsonl,
    "generic-chunks": generic_chunks, "vllm-server": vllm_server, "sglang-text": sglang_text,
    "sglang-json": sglang_json, "llama-server": llama_server,
}  # fmt: skip
