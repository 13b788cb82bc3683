"""Shapes that the samples do not show: older and newer field names, other encodings, cuts."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.forensics.content import answer_text, prompt_text, reasoning_text, tool_text
from kvaudit.forensics.fields import salvaged
from kvaudit.forensics.formats import read_file, records_of, sample_of, sniff
from kvaudit.forensics.load import ingest
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.reader import ReadContext
from kvaudit.forensics.row import LogRow, TimeBasis
from kvaudit.forensics.source import find_files
from kvaudit.forensics.times import US, moment_of

MESSAGES = [{"role": "system", "content": "sys"}, {"role": "user", "content": "hello"}]
ANSWER = {"role": "assistant", "content": "goodbye"}
BODY = {"model": "m", "messages": MESSAGES}
COMPLETION = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000,
              "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": ANSWER}],
              "usage": {"prompt_tokens": 9, "completion_tokens": 4}}  # fmt: skip


def rows_of(text: str) -> tuple[str, list[LogRow]]:
    """Return what sniffing takes it for, and its rows."""
    found = sniff(sample_of(text.encode())).format
    assert found is not None, "nobody knows it"
    context = ReadContext("made.log", 1_800_000_000_000_000, 2026)
    rows = list(found.read(records_of(found.shape, [text.encode()], context), context))
    return found.name, rows


def row_of(text: str, name: str) -> LogRow:
    found, rows = rows_of(text)
    assert found == name
    assert len(rows) == 1
    return rows[0]


def texts(row: LogRow) -> tuple[str, str]:
    return prompt_text(row.input).text, answer_text(row.output).text


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


SPAN = {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "1790000000000000000"}


def exported(span: dict[str, Any], scope: str = "scopeSpans") -> str:
    return json.dumps({"resourceSpans": [{scope: [{"spans": [span]}]}]})


def test_protobufs_base64_ids_become_the_hexadecimal_ones_of_other_exporters() -> None:
    span = {"trace_id": "q6urq6urq6urq6urq6urqw==", "span_id": "zc3Nzc3NzM0=",
            "start_time_unix_nano": "1790000000000000000",
            "attributes": attributes({"gen_ai.request.model": "m"})}  # fmt: skip
    row = row_of(exported(span), "otel-span")
    assert (row.trace_id, row.span_id) == ("ab" * 16, "cdcdcdcdcdcdcccd")


@pytest.mark.parametrize("events", [
    [{"name": "gen_ai.content.prompt",
      "attributes": attributes({"gen_ai.prompt": json.dumps(MESSAGES)})},
     {"name": "gen_ai.content.completion",
      "attributes": attributes({"gen_ai.completion": json.dumps([ANSWER])})}],
    [{"name": f"gen_ai.{m['role']}.message",
      "attributes": attributes({"gen_ai.event.content": json.dumps(m)})} for m in MESSAGES]
    + [{"name": "gen_ai.choice", "attributes": attributes(
        {"gen_ai.event.content": json.dumps({"finish_reason": "stop", "message": ANSWER})})}],
])  # fmt: skip
def test_texts_on_a_spans_own_events_are_read(events: list[dict[str, Any]]) -> None:
    span = {**SPAN, "attributes": attributes({"gen_ai.system": "openai"}), "events": events}
    assert texts(row_of(exported(span), "otel-span")) == ("sys\nhello", "goodbye")


def test_numbered_attributes_under_the_older_scope_name_are_read() -> None:
    found = {"gen_ai.system": "openai", "gen_ai.prompt.0.role": "user",
             "gen_ai.prompt.0.content": "hello", "gen_ai.completion.0.content": "goodbye",
             "traceloop.association.properties.tenant": "fern"}  # fmt: skip
    span = {**SPAN, "attributes": attributes(found)}
    row = row_of(exported(span, "instrumentationLibrarySpans"), "otel-span")
    assert texts(row) == ("hello", "goodbye")
    assert row.tenant_id == "fern"


BEDROCK = {
    "schemaType": "ModelInvocationLog",
    "timestamp": "2026-02-09T15:02:04Z",
    "requestId": "q",
    "operation": "InvokeModelWithResponseStream",
    "modelId": "m",
}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "llama": [{"generation": "good"}, {"generation": "bye", "stop_reason": "stop"}],
    "titan": [{"outputText": "good"}, {"outputText": "bye", "completionReason": "FINISH"}],
    "mistral": [{"outputs": [{"text": "good", "stop_reason": None}]},
                {"outputs": [{"text": "bye", "stop_reason": "stop"}]}],
    "claude-2": [{"completion": "good"}, {"completion": "bye", "stop_reason": "stop_sequence"}],
    "nova": [{"messageStart": {"role": "assistant"}},
             {"contentBlockDelta": {"delta": {"text": "good"}, "contentBlockIndex": 0}},
             {"contentBlockDelta": {"delta": {"text": "bye"}, "contentBlockIndex": 0}},
             {"messageStop": {"stopReason": "end_turn"}}],
}  # fmt: skip


@pytest.mark.parametrize("model", STREAMS)
def test_the_event_streams_of_bedrocks_models_are_put_together(model: str) -> None:
    line = {**BEDROCK, "input": {"inputBodyJson": {"prompt": "hello"}},
            "output": {"outputBodyJson": STREAMS[model]}}  # fmt: skip
    row = row_of(json.dumps(line), "bedrock")
    assert texts(row) == ("hello", "goodbye")
    assert row.finish_reasons == ("stop",)


def test_heliconess_custom_properties_name_the_tenant_in_any_spelling() -> None:
    item = {"request_id": "r", "request_created_at": "2026-06-20T19:04:50Z", "response_status": 200,
            "request_body": BODY, "response_body": {"streamed_data": (
                'data: {"choices":[{"index":0,"delta":{"content":"goodbye"}}]}\n\ndata: [DONE]\n\n'
            )}, "request_properties": {"Helicone-Property-Tenant": "fern"}}  # fmt: skip
    row = row_of(json.dumps({"data": [item], "error": None}), "helicone")
    assert row.tenant_id == "fern"
    assert texts(row) == ("sys\nhello", "goodbye")


def test_a_logpush_job_may_leave_fields_out() -> None:
    item = {"Timestamp": "2026-07-03T02:15:41Z", "StatusCode": 200, "Provider": "p",
            "RequestBody": json.dumps(BODY), "ResponseBody": json.dumps(COMPLETION)}  # fmt: skip
    assert texts(row_of(json.dumps(item), "cloudflare-logpush")) == ("sys\nhello", "goodbye")


def test_a_single_log_of_cloudflares_api_stands_under_result() -> None:
    item = {"id": "01A", "created_at": "2026-07-03T10:44:50Z", "provider": "p", "duration": 684,
            "tokens_in": 9, "request_head": json.dumps(BODY), "request_head_complete": True,
            "response_head": json.dumps(COMPLETION)[:190],
            "response_head_complete": False}  # fmt: skip
    row = row_of(json.dumps({"success": True, "result": item, "errors": []}), "cloudflare-api")
    prompt, answer = texts(row)
    assert prompt == "sys\nhello"
    assert "goodbye".startswith(answer)
    assert answer
    assert row.output.state == "truncated"


def test_a_body_that_the_gateway_cut_is_decoded_as_far_as_it_goes() -> None:
    long = 'line "one"\n' * 2_000
    body = {"model": "m", "messages": [{"role": "user", "content": long}]}
    item = {"correlationId": "c", "time": "2026-08-14T13:25:57.2410000Z", "properties": {
        "apimSubscriptionId": "s", "responseCode": 200, "requestBody": json.dumps(body)[:8_192],
        "responseBody": json.dumps(COMPLETION)}}  # fmt: skip
    row = row_of(json.dumps(item), "azure-gateway-logs")
    prompt, answer = texts(row)
    assert long.startswith(prompt)
    assert len(prompt) > 6_000
    assert (row.input.state, row.output.state, answer) == ("truncated", "full", "goodbye")


@pytest.mark.parametrize(("text", "left"), [
    ('{"a": "b\\u00', {"a": "b"}), ('{"a": "b\\', {"a": "b"}), ('{"a": [1, 2', {"a": [1, 2]}),
    ('{"a": 1, "b', {"a": 1}), ('{"a": {"b": "c"}, "d": ', {"a": {"b": "c"}}), ("[", []),
    ("[" * 500, None), ('"', None),
])  # fmt: skip
def test_json_without_its_end_keeps_what_was_whole(text: str, left: Any) -> None:
    found = salvaged(text)
    assert found == left or (text == '"' and found == "")


def test_azure_llm_rows_come_from_event_hub_and_in_pieces() -> None:
    long = "x" * 31_000
    pieces = [{"requestMessages": json.dumps([{"role": "user", "content": long}])},
              {"requestMessages": json.dumps([{"role": "user", "content": "end"}])},
              {"responseMessages": json.dumps([ANSWER])}]  # fmt: skip
    items = [{"time": "2026-08-14T13:25:57.2410000Z", "category": "GatewayLlmLogs",
              "correlationId": "c", "properties": {"sequenceNumber": number, **piece}}
             for number, piece in enumerate(pieces, 1)]  # fmt: skip
    row = row_of(json.dumps({"records": items}), "azure-llm-log")
    assert texts(row) == (long + "end", "goodbye")
    assert row.start_us == 1_786_713_957_241_000


def test_the_ticks_of_our_days_are_no_nanoseconds() -> None:
    found = moment_of(639_200_000_000_000_000)
    assert found is not None
    assert found.us == (639_200_000_000_000_000 - 621_355_968_000_000_000) // 10
    nanoseconds = moment_of(1_790_000_000_123_456_789)
    assert nanoseconds is not None
    assert nanoseconds.us == 1_790_000_000_123_456


def test_a_running_number_behind_a_common_word_names_no_tenant() -> None:
    lines = [json.dumps({"custom_id": name, "method": "POST", "url": "/v1/x", "body": BODY})
             for name in ("request-1", "fern-0002", "task_3")]  # fmt: skip
    _, rows = rows_of("\n".join(lines))
    assert [row.tenant_id for row in rows] == [None, "fern", None]


def vllm(message: str) -> str:
    return f"INFO 06-18 07:30:13 [logger.py:39] {message}"


GENERATED = "Generated response chatcmpl-a: output: 'goodbye', finish_reason: stop"


@pytest.mark.parametrize("line", [
    vllm(GENERATED), f"(APIServer pid=1) {vllm(GENERATED)}", f"prod-7 {vllm(GENERATED)}",
    f"\x1b[1;36m(APIServer pid=12)\x1b[0;0m {vllm(GENERATED)}",
    vllm(GENERATED).replace("[logger", "logger"),
    f"2026-06-18T07:30:13.123456789Z stdout F {vllm(GENERATED)}",
    json.dumps({"log": vllm(GENERATED) + "\n", "stream": "stdout", "time": "t"},
               separators=(",", ":")),
    json.dumps({"timestamp": "2026-06-18T07:30:13", "level": "INFO", "message": GENERATED}),
])  # fmt: skip
def test_a_vllm_line_is_known_behind_what_shippers_put_before_it(line: str) -> None:
    row = row_of(line, "vllm-server")
    assert (row.request_id, texts(row)[1]) == ("chatcmpl-a", "goodbye")
    assert (row.start_us, row.time_basis) == (1_781_767_813_000_000, TimeBasis.NAIVE)


def test_a_quoted_line_inside_another_line_is_no_request() -> None:
    lines = [vllm(GENERATED), f"other logger says '{vllm(GENERATED.replace('-a', '-b'))}'"]
    assert len(rows_of("\n".join(lines))[1]) == 1


def test_a_delta_may_hold_text_reasoning_and_calls_at_once() -> None:
    deltas = ["[reasoning: think", "[reasoning: more]", "good [reasoning: late]", "bye",
              '[tool_calls: {"a": "b"}]']  # fmt: skip
    lines = [vllm(f"Generated response chatcmpl-a (streaming delta): output: {text!r},"
                  " finish_reason: None") for text in deltas]  # fmt: skip
    row = row_of("\n".join(lines), "vllm-server")
    assert texts(row)[1] == "[reasoning: thinkgoodbye"
    assert reasoning_text(row.output) == "morelate"
    assert tool_text(row.output) == "b"


def test_a_native_batch_of_sglang_is_as_many_requests() -> None:
    out = [{"text": text, "meta_info": {"finish_reason": {"type": "stop"}}} for text in ("x", "y")]
    obj = {"rid": ["r1", "r2"], "text": ["p", "q"]}
    as_json = json.dumps({"event": "request.finished", "rid": ["r1", "r2"], "obj": obj, "out": out})
    as_text = f"[2026-10-05 21:47:33] Finish: obj=GenerateReqInput(rid={obj['rid']!r}, " \
              f"text={obj['text']!r}), out={out!r}"  # fmt: skip
    for line in (as_json, as_text):
        _, rows = rows_of(line)
        assert [(row.request_id, *texts(row)) for row in rows] == [
            ("r1", "p", "x"), ("r2", "q", "y"),
        ]  # fmt: skip


def test_sglangs_headers_of_the_openai_line_belong_to_the_request() -> None:
    lines = [
        "[2026-10-05 21:47:33] Receive OpenAI: obj={'model': 'm', 'rid': 'r'},"
        " headers={'x-tenant-id': 'fern', 'x-request-id': 'q'}",
        "[2026-10-05 21:47:33] Receive: obj=GenerateReqInput(rid='r', text=None)",
        "[2026-10-05 21:47:34] Finish: obj=GenerateReqInput(rid='r', text='hi'),"
        " out={'text': 'yo', 'meta_info': {'finish_reason': {'type': 'stop'}}}",
    ]
    row = row_of("\n".join(lines), "sglang-text")
    assert (row.tenant_id, row.correlation_ids) == ("fern", ("r", "q"))


def test_a_cut_router_line_takes_its_time_from_the_stamp_and_the_lines_before() -> None:
    lines = [
        "[2026-09-21 20:59:39,430] INFO: Routing request a to http://v:8000 at 1790017179.430",
        "[2026-09-21 20:59:40,430] INFO: Routing request b to http://v:8000 at 1790",
    ]
    _, rows = rows_of("\n".join(lines))
    assert [row.start_us for row in rows] == [1_790_017_179_430_000, 1_790_017_180_430_000]
    assert rows[1].time_basis is TimeBasis.ABSOLUTE


LANGFUSE = {"id": "o1", "trace_id": "t1", "type": "GENERATION", "project_id": "fern",
            "start_time": "2026-10-05 10:00:00.000000", "input": json.dumps(MESSAGES),
            "output": json.dumps(ANSWER)}  # fmt: skip
CAMEL = {"id": "o1", "traceId": "t1", "type": "GENERATION", "projectId": "fern",
         "startTime": "2026-10-05T10:00:00.000Z", "input": {"messages": MESSAGES},
         "output": "goodbye", "model": "m"}  # fmt: skip


@pytest.mark.parametrize("item", [LANGFUSE, CAMEL, {"data": [CAMEL], "meta": {"page": 1}}])
def test_langfuses_export_may_leave_out_level_and_parent(item: dict[str, Any]) -> None:
    row = row_of(json.dumps(item), "langfuse")
    assert texts(row) == ("sys\nhello", "goodbye")
    assert row.tenant_id == "fern"


def test_a_litellm_payload_may_stand_among_the_calls_other_arguments() -> None:
    payload = {"id": "chatcmpl-1", "call_type": "acompletion", "startTime": 1_790_000_000.5,
               "messages": MESSAGES, "response": COMPLETION}  # fmt: skip
    row = row_of(json.dumps({"standard_logging_object": payload, "kwargs": {}}), "litellm-payload")
    assert texts(row) == ("sys\nhello", "goodbye")


@pytest.mark.parametrize("key", ["spend", "call_type", "proxy_server_request"])
def test_one_column_of_the_spend_logs_may_be_missing(key: str) -> None:
    item = {"request_id": "r", "team_id": "fern", "startTime": "2026-10-05 10:00:00.123",
            "spend": 0.1, "call_type": "acompletion", "messages": MESSAGES, "response": COMPLETION,
            "proxy_server_request": BODY}  # fmt: skip
    del item[key]
    assert texts(row_of(json.dumps(item), "litellm-spendlogs")) == ("sys\nhello", "goodbye")


@pytest.mark.parametrize("key", ["provider", "duration", "cached", "tokens_in", "status_code"])
def test_one_field_of_cloudflares_api_may_be_missing(key: str) -> None:
    item = {"id": "01A", "created_at": "2026-07-03T10:44:50Z", "provider": "p", "duration": 684,
            "cached": False, "tokens_in": 9, "status_code": 200, "metadata": '{"tenant": "fern"}',
            "request_head": json.dumps(BODY), "response_head": json.dumps(COMPLETION)}  # fmt: skip
    del item[key]
    assert texts(row_of(json.dumps(item), "cloudflare-api")) == ("sys\nhello", "goodbye")


@pytest.mark.parametrize("key", ["CustomerId", "customer", "Helicone-Property-customer-id"])
def test_heliconess_properties_name_the_tenant_with_or_without_id(key: str) -> None:
    item = {"request_id": "r", "request_created_at": "2026-06-20T19:04:50Z", "response_status": 200,
            "request_body": BODY, "response_body": COMPLETION, "helicone_user": "someone",
            "properties": {key: "fern"}}  # fmt: skip
    assert row_of(json.dumps(item), "helicone").tenant_id == "fern"


def test_a_batchs_answers_alone_take_the_tenant_from_their_ids() -> None:
    answer = {"id": "batch_req_1", "custom_id": "fern-0007", "error": None,
              "response": {"status_code": 200, "request_id": "x", "body": COMPLETION}}  # fmt: skip
    row = row_of(json.dumps(answer), "openai-batch")
    assert (row.tenant_id, row.tenant_id_source, texts(row)[1]) == ("fern", "custom_id", "goodbye")


def test_a_tenant_that_the_batchs_input_names_goes_before_the_ids_shape(tmp_path: Path) -> None:
    prompt = {"custom_id": "night-0007", "method": "POST", "url": "/v1/chat/completions",
              "body": {**BODY, "metadata": {"tenant": "fern"}}}  # fmt: skip
    answer = {"id": "batch_req_1", "custom_id": "night-0007", "error": None,
              "response": {"status_code": 200, "request_id": "x", "body": COMPLETION}}  # fmt: skip
    (tmp_path / "in.jsonl").write_text(json.dumps(prompt))
    (tmp_path / "out.jsonl").write_text(json.dumps(answer))
    files = find_files([str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")])
    table = pl.read_parquet(ingest(files, IngestOptions(), tmp_path, SimulatedClock()).table)
    assert table["tenant_id"].to_list() == ["fern", "fern"]


def test_openinferences_token_counts_are_read() -> None:
    found = {"gen_ai.system": "p", "gen_ai.completion.0.content": "goodbye"}
    counts = [{"key": f"llm.token_count.{name}", "value": {"intValue": str(number)}}
              for name, number in (("prompt", 9), ("completion", 4))]  # fmt: skip
    row = row_of(exported({**SPAN, "attributes": attributes(found) + counts}), "otel-span")
    assert (row.input_tokens, row.output_tokens) == (9, 4)


def test_vllms_ids_of_an_answer_are_counted() -> None:
    message = ("Generated response chatcmpl-a: output: 'goodbye', output_token_ids: [4, 5, 6],"
               " finish_reason: stop")  # fmt: skip
    assert row_of(vllm(message), "vllm-server").output_tokens == 3


FINISH = ("Finish: obj=GenerateReqInput(rid='r', text='hello'),"
          " out={'text': 'goodbye', 'meta_info': {'finish_reason': {'type': 'stop'}}}")  # fmt: skip


@pytest.mark.parametrize("line", [
    f"[2026-10-05 21:47:33] {FINISH}", f"[2026-10-05 21:47:33,123] {FINISH}",
    f"[2026-10-05 21:47:33 DP1 TP0] {FINISH}",
    json.dumps({"log": f"[2026-10-05 21:47:33] {FINISH}\n", "stream": "stderr"}),
])  # fmt: skip
def test_an_sglang_line_is_known_behind_any_stamp_and_shipper(line: str) -> None:
    row = row_of(line, "sglang-text")
    assert texts(row) == ("hello", "goodbye")
    assert row.end_us is not None
    assert row.end_us // US == 1_791_236_853


DATA = Path(__file__).parents[1] / "data" / "logs"
WRAPPINGS: dict[str, Callable[[str], bytes]] = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "big-endian UTF-16": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "carriage returns": lambda text: text.replace("\n", "\r\n").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "empty lines": lambda text: text.replace("\n", "\n\n").encode(),
    "gzip of UTF-16": lambda text: gzip.compress(text.encode("utf-16")),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name", [
    "vllm-server.log", "llama-server.log", "sglang-log-requests.text.log",
    "generic-proxy-chunks.jsonl", "cloudflare-aig-api-logs.json",
])  # fmt: skip
def test_a_samples_rows_are_the_same_in_another_encoding(
    tmp_path: Path, name: str, wrapping: str
) -> None:
    log = tmp_path / name
    log.write_bytes(WRAPPINGS[wrapping]((DATA / name).read_text("utf-8")))
    os.utime(log, (DATA / name).stat()[7:9])
    expected, _ = read_file(DATA / name)
    rows, context = read_file(log)
    assert not context.damages
    assert [(row.request_id, row.start_us, *texts(row)) for row in rows] == [
        (row.request_id, row.start_us, *texts(row)) for row in expected
    ]
