"""Generic input: JSON lines or any table, one request a record; what no other format fits.

Keys are those of the project's own request objects, the canonical table's column names, and the
usual synonyms. `--map column=canonical` renames what is called otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from kvaudit.forensics.bodies import (
    Usage,
    context_of,
    error_of,
    finish_of,
    finish_reasons,
    input_content,
    output_content,
    request_facts,
    usage_of,
)  # fmt: skip
from kvaudit.forensics.content import content_of, text_part
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    int_of,
    list_of,
    mapping_of,
    opened,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import (
    ABSENT,
    Content,
    Layer,
    LoggedMessage,
    LogRow,
    PartKind,
    TimeBasis,
)  # fmt: skip
from kvaudit.forensics.streams import assembled, is_sse, sse_events
from kvaudit.forensics.times import Moment, moment_of, us_after

_ID = ("request_id", "requestId", "rid", "req_id", "x_request_id", "id", "trace_id", "call_id")
_OTHER_IDS = ("x_request_id", "trace_id", "correlation_id", "correlationId", "response_id",
              "completion_id", "gen_ai_response_id", "chat_id")  # fmt: skip
_TENANT = ("tenant_id", "tenant", "tenantId", "organization_id", "org_id", "team_id", "account_id",
           "account", "customer_id", "customer", "workspace_id", "project_id", "api_key_hash",
           "org", "organisation")  # fmt: skip
_ORGANISATION = ("organisation", "org", "organization", "org_id", "organization_id")
_START = ("start_time", "ts_start", "startTime", "started_at", "request_time", "timestamp", "ts",
          "time", "created_at", "datetime", "date", "created")  # fmt: skip
_END = ("end_time", "ts_end", "endTime", "ended_at", "finished_at", "response_time_utc",
        "completed_at")  # fmt: skip
_INPUT = ("messages", "input_text", "prompt", "input", "request", "request_body", "query",
          "question", "gen_ai_input_messages", "instruction")  # fmt: skip
_OUTPUT = ("response", "output_text", "completion", "output", "answer", "response_body", "reply",
           "response_text", "generated_text", "gen_ai_output_messages", "choices")  # fmt: skip
_MODEL = ("model", "gen_ai_request_model", "request_model", "model_name", "deployment")
_SESSION = ("session", "session_id", "conversation_id", "gen_ai_conversation_id", "thread_id",
            "chat_session")  # fmt: skip
_REPLICA = ("service_instance_id", "replica", "instance", "worker", "upstream_host", "backend",
            "pod", "node", "host")  # fmt: skip
_STATUS = ("http_response_status_code", "status_code", "status", "http_status", "response_code")


def _sniff(sample: Sample) -> float:
    return 0.5 * sample.share(lambda item: _fits(item) or _is_case(item))


def _is_case(item: Mapping[str, Any]) -> bool:
    return "case_id" in item and isinstance(item.get("requests"), list)


def _fits(item: Mapping[str, Any]) -> bool:
    has_text = any(key in item for key in (*_INPUT, *_OUTPUT, "system"))
    has_count = any(key in item for key in ("usage", "prompt_tokens", "input_tokens",
                                            "gen_ai_usage_input_tokens"))  # fmt: skip
    has_ending = any(key in item for key in _STATUS) and any(key in item for key in _MODEL)
    named = any(key in item for key in (*_ID, *_TENANT))
    return named and (has_text or has_count or has_ending)


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        if _is_case(record.data):
            for item in record.data["requests"]:
                yield from _checked(record, mapping_of(item), context)
        else:
            yield from _checked(record, record.data, context)


def _checked(record: RawRecord, data: Mapping[str, Any], context: ReadContext) -> Iterator[LogRow]:
    if not _fits(data):
        context.damage("no id, tenant and text under any known key")
        return
    yield _row(record, data)


def _first(data: Mapping[str, Any], keys: Iterable[str]) -> tuple[str | None, Any]:
    for key in keys:
        if data.get(key) is not None:
            return key, data[key]
    return None, None


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    tenant_key, tenant = _first(data, _TENANT)
    prompt, request = _prompt(data)
    output, usage, response = _answer(data)
    facts = request_facts({**request, **_plain(data)})
    told = _timing(data) | _ending(data, output, response) | _usage(data, usage) | _serving(data)
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(_first(data, _ID)[1]),
        correlation_ids=other_ids(*(data.get(key) for key in _OTHER_IDS), response.get("id")),
        trace_id=text_of(data.get("trace_id")),
        response_id=first_text(data.get("response_id"), response.get("id")),
        conversation_id=text_of(_first(data, _SESSION)[1]),
        attempt=int_of(data.get("attempt")) or 1,
        tenant_id=text_of(tenant),
        tenant_id_source=tenant_key if text_of(tenant) else None,
        organisation=text_of(_first(data, _ORGANISATION)[1]),
        user_id=first_text(data.get("user_id"), data.get("user"), facts.user),
        api_key_hash=text_of(data.get("api_key_hash")),
        client_address=first_text(data.get("client_address"), data.get("client_ip")),
        stream=facts.stream,
        cache_salt=facts.cache_salt,
        max_tokens=facts.max_tokens,
        temperature=facts.temperature,
        request_model=first_text(_first(data, _MODEL)[1], facts.model),
        response_model=first_text(data.get("gen_ai_response_model"), response.get("model")),
        input=prompt,
        output=output,
        context=_context(data, request),
        retrieved=_retrieved(data),
        fields=data,
        **told,
    )


def _timing(data: Mapping[str, Any]) -> dict[str, Any]:
    start, end = _moment(data, _START), _moment(data, _END)
    start_us = start.us if start else None
    duration = _seconds(data, "duration", "latency", "elapsed")
    return {
        "start_us": start_us,
        "end_us": end.us if end else us_after(start_us, duration),
        "ttft_s": _seconds(data, "ttft", "time_to_first_token", "first_token_latency",
                           "gen_ai_response_time_to_first_chunk"),
        "time_precision_us": start.precision_us if start else None,
        "time_basis": start.basis if start else TimeBasis.NONE,
        "clock_id": text_of(data.get("clock_id")),
    }  # fmt: skip


def _ending(
    data: Mapping[str, Any], output: Content, response: Mapping[str, Any]
) -> dict[str, Any]:
    error_type, error_message = error_of(data)
    response_error = error_of(response)
    reason = finish_of(data.get("finish_reason"))
    reasons = tuple(
        filter(None, map(finish_of, list_of(data.get("gen_ai_response_finish_reasons"))))
    )
    return {
        "status": int_of(_first(data, _STATUS)[1]),
        "error_type": first_text(data.get("error_type"), error_type, response_error[0]),
        "error_message": first_text(data.get("error_message"), error_message, response_error[1]),
        "finish_reasons": reasons or ((reason,) if reason else finish_reasons(output)),
    }


def _usage(data: Mapping[str, Any], usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": _count(data, usage.input_tokens, "gen_ai_usage_input_tokens",
                               "prompt_tokens", "input_tokens"),
        "output_tokens": _count(data, usage.output_tokens, "gen_ai_usage_output_tokens",
                                "completion_tokens", "output_tokens"),
        "cached_tokens": _count(data, usage.cached_tokens,
                                "gen_ai_usage_cache_read_input_tokens", "cached_tokens"),
        "cache_creation_tokens": _count(data, usage.cache_creation_tokens,
                                        "gen_ai_usage_cache_creation_input_tokens"),
        "reasoning_tokens": _count(data, usage.reasoning_tokens,
                                   "gen_ai_usage_reasoning_output_tokens", "reasoning_tokens"),
        "client_prompt_tokens": int_of(data.get("client_prompt_tokens")),
    }  # fmt: skip


def _serving(data: Mapping[str, Any]) -> dict[str, Any]:
    headers = mapping_of(data.get("response_headers"))
    return {
        "operation": first_text(data.get("gen_ai_operation_name"), data.get("operation")),
        "provider": first_text(data.get("gen_ai_provider_name"), data.get("provider")),
        "endpoint": first_text(data.get("endpoint"), data.get("path"), data.get("url")),
        "replica": text_of(_first(data, _REPLICA)[1]),
        "engine_slot": int_of(data.get("engine_slot", data.get("slot"))),
        "lora_name": first_text(data.get("lora_name"), data.get("adapter")),
        "cache_hit_response": bool_of(
            _first(data, ("cache_hit_response", "cache_hit", "cached"))[1]
        ),
        "response_headers": {str(key).lower(): str(value) for key, value in headers.items()},
        "sample_rate": float_of(data.get("sample_rate")),
        "leg": text_of(data.get("disaggregation_role", data.get("leg"))),
        "room": text_of(data.get("bootstrap_room", data.get("room"))),
        "transfer_bytes": int_of(data.get("kv_transfer_bytes", data.get("transfer_bytes"))),
    }


def _retrieved(data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (owner, text) of the retrieved items that name their owner."""
    found = []
    for item in list_of(data.get("retrieved")):
        fields = mapping_of(item)
        owner = first_text(fields.get("owner_org"), fields.get("owner"), fields.get("tenant"))
        if owner is not None:
            found.append((owner, text_of(fields.get("text")) or ""))
    return tuple(found)


_BODY_KEYS = ("model", "stream", "max_tokens", "max_completion_tokens", "temperature", "user",
              "cache_salt")  # fmt: skip


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in _BODY_KEYS if data.get(key) is not None}


# What tells a body from JSON that a user wrote, or a model answered with.
_PROMPT_BODY = frozenset(("messages", "prompt", "input", "system", "contents", "chat_history",
                          "inputText", "message", "role", "parts"))  # fmt: skip
_ANSWER_BODY = frozenset(("choices", "output", "outputs", "results", "candidates", "message",
                          "role", "delta", "parts", "generation", "completion", "output_text",
                          "generated_text", "stop_reason", "finish_reason", "usage"))  # fmt: skip


def _opened_body(value: Any, keys: frozenset[str]) -> Any:
    """Return the value, with a string that holds a body replaced by it; other JSON stays text."""
    inner = opened(value)
    if inner is value:
        return value
    first = inner[0] if isinstance(inner, list) and inner else inner
    return inner if isinstance(first, Mapping) and keys & first.keys() else value


def _plain_text(text: str, role: str) -> Content:
    return content_of([LoggedMessage(role, (text_part(text),))]) if text else ABSENT


def _prompt(data: Mapping[str, Any]) -> tuple[Content, Mapping[str, Any]]:
    """Return the prompt and the request body that it came from, if there was one."""
    key, value = _first(data, _INPUT)
    value = _opened_body(value, _PROMPT_BODY)
    request: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    content = _plain_text(value, "user") if isinstance(value, str) else (
        input_content(value) if key is not None else ABSENT
    )  # fmt: skip
    system = data.get("system", data.get("gen_ai_system_instructions"))
    if system:
        before = input_content({"system": opened(system), "messages": []}).messages
        content = content_of([*before, *content.messages])
    return content, request


def _answer(data: Mapping[str, Any]) -> tuple[Content, Usage, Mapping[str, Any]]:
    """Return the answer, its usage and its body."""
    key, value = _first(data, _OUTPUT)
    if key == "choices":
        value = data
    value = value if isinstance(value, str) and is_sse(value) else _opened_body(value, _ANSWER_BODY)
    usage = usage_of(data)
    body: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    if isinstance(value, str) and is_sse(value):
        streamed = assembled(sse_events(value))
        content, own = streamed.content(), streamed.usage
    elif isinstance(value, list) and any("delta" in str(item)[:400] for item in value[:3]):
        streamed = assembled(mapping_of(item) for item in value)
        content, own = streamed.content(), streamed.usage
    elif isinstance(value, str):
        content, own = _plain_text(value, "assistant"), usage_of({})
    else:
        content, own = output_content(value), usage_of(body)
    merged = Usage(*(a if a is not None else b for a, b in zip(usage, own, strict=True)))
    return _with_extras(content, data), merged, body


def _with_extras(content: Content, data: Mapping[str, Any]) -> Content:
    """Add reasoning and tool calls that stand beside the answer's text."""
    reasoning = first_text(data.get("reasoning"), data.get("reasoning_content"),
                           data.get("output_reasoning_text"))  # fmt: skip
    tools = text_of(data.get("output_tool_text"))
    calls = list_of(data.get("tool_calls"))
    extras = [text_part(reasoning, PartKind.REASONING)] if reasoning else []
    extras += [text_part(tools, PartKind.TOOL_CALL)] if tools else []
    if calls:
        made = output_content({"role": "assistant", "tool_calls": calls})
        extras += [part for message in made.messages for part in message.parts]
    if not extras:
        return content
    return content_of([*content.messages, LoggedMessage("assistant", tuple(extras))])


def _context(data: Mapping[str, Any], request: Mapping[str, Any]) -> str | None:
    pieces = [text_of(data.get("context_text")), context_of(request), context_of(data)]
    for item in list_of(data.get("attachments")):
        fields = mapping_of(item)
        pieces.append(first_text(fields.get("ocr_text"), fields.get("text"), item))
    pieces.extend(
        first_text(mapping_of(item).get("text"), item) for item in list_of(data.get("retrieved"))
    )
    kept = list(dict.fromkeys(piece for piece in pieces if piece))
    return "\n".join(kept) or None


def _moment(data: Mapping[str, Any], keys: Iterable[str]) -> Moment | None:
    for key in keys:
        value = data.get(key)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            basis = TimeBasis.ABSOLUTE if value.tzinfo else TimeBasis.NAIVE
            return Moment(round(aware.timestamp() * 1e6), 1, basis)
        found = moment_of(value) if value is not None else None
        if found is not None:
            return found
    return None


def _seconds(data: Mapping[str, Any], *names: str) -> float | None:
    """Return a duration in seconds from `NAME_ms`, `NAME_s`, `NAME_us` or `NAME`."""
    for name in names:
        for suffix, scale in (("_ms", 1e-3), ("_s", 1.0), ("_us", 1e-6), ("", 1.0)):
            found = float_of(data.get(name + suffix))
            if found is not None:
                return found * scale
    return None


def _count(data: Mapping[str, Any], usage: int | None, *keys: str) -> int | None:
    for key in keys:
        found = int_of(data.get(key))
        if found is not None:
            return found
    return usage


FORMAT = Format(
    name="generic-jsonl",
    title="Generic JSON lines or table, one request a record",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("request_id", "tenant", "prompt", "response", "messages", "usage", "status", "model"),
)
