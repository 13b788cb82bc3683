"""`gen_ai.*` attributes of a span or event, to a LogRow: shared by all OpenTelemetry readers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvaudit.forensics.bodies import finish_of, input_content, output_content
from kvaudit.forensics.content import content_of
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    int_of,
    list_of,
    opened,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.otlp import Signal, attributes, field_of, id_of
from kvaudit.forensics.reader import RawRecord
from kvaudit.forensics.row import ABSENT, Content, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of

_TENANT_KEYS = (
    "tenant.id", "tenant_id", "tenant", "gen_ai.tenant.id", "organization.id", "account.id",
    "enduser.tenant", "traceloop.association.properties.tenant",
    "traceloop.association.properties.tenant_id",
)  # fmt: skip
_PIECES_MAX = 4096


def tenant_of(
    found: Mapping[str, Any], resource: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Return (tenant, attribute that named it): an own attribute, else the service's namespace."""
    for key in _TENANT_KEYS:
        if text_of(found.get(key)):
            return text_of(found[key]), key
    for key in (*_TENANT_KEYS, "service.namespace"):
        if text_of(resource.get(key)):
            return text_of(resource[key]), f"resource.{key}"
    return None, None


def prompt_of(found: Mapping[str, Any]) -> Content:
    """Return the prompt that the attributes hold, structured or as a JSON string."""
    messages = opened(found.get("gen_ai.input.messages"))
    system = opened(found.get("gen_ai.system_instructions"))
    if messages is None and system is None:
        return _numbered(found, "gen_ai.prompt", "llm.prompts", "llm.input_messages")
    made = list(input_content(messages).messages) if messages else []
    if system:
        made = [*input_content({"system": system, "messages": []}).messages, *made]
    return content_of(made) if made else input_content(messages)


def answer_of(found: Mapping[str, Any]) -> Content:
    """Return the answer that the attributes hold."""
    messages = opened(found.get("gen_ai.output.messages"))
    if messages is None:
        return _numbered(found, "gen_ai.completion", "llm.completions", "llm.output_messages")
    return output_content(messages)


def _numbered(found: Mapping[str, Any], *prefixes: str) -> Content:
    """Return the messages of OpenLLMetry's and OpenInference's numbered attributes."""
    for prefix in prefixes:
        groups: dict[int, dict[str, Any]] = {}
        for key, value in list(found.items())[:_PIECES_MAX]:
            if not key.startswith(prefix + "."):
                continue
            number, _, rest = key[len(prefix) + 1 :].partition(".")
            if number.isdecimal() and rest:
                name = rest.removeprefix("message.")
                groups.setdefault(int(number), {})[name] = value
        if groups:
            return input_content([_with_calls(groups[number]) for number in sorted(groups)])
    return ABSENT


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls: dict[str, dict[str, Any]] = {}
    for key, value in message.items():
        pieces = key.split(".")
        if pieces[0] == "tool_calls" and len(pieces) >= 3:
            calls.setdefault(pieces[1], {})[pieces[-1]] = value
    return {**message, "tool_calls": list(calls.values())} if calls else message


def status_of(item: Mapping[str, Any], found: Mapping[str, Any]) -> int | None:
    """Return an HTTP status if one is told: by its own attribute, or as a numeric `error.type`."""
    for key in ("http.response.status_code", "http.status_code", "error.type"):
        number = int_of(found.get(key))
        if number is not None and 100 <= number <= 599:
            return number
    code = field_of(item, "status")
    failed = isinstance(code, Mapping) and str(code.get("code")) in ("2", "STATUS_CODE_ERROR")
    return None if failed or found.get("error.type") else 200


def attribute_row(record: RawRecord, signal: Signal) -> LogRow:
    """Return the row that the attributes alone give, without times and content."""
    found, resource, item = signal.attributes, signal.resource, signal.item
    tenant, tenant_source = tenant_of(found, resource)
    trace_id, span_id = id_of(item, "traceId"), id_of(item, "spanId")
    response_id = first_text(found.get("gen_ai.response.id"), found.get("gen_ai.request.id"))
    status = field_of(item, "status")
    reasons = list_of(found.get("gen_ai.response.finish_reasons"))
    latency = float_of(found.get("gen_ai.latency.time_to_first_token"))
    ttft = float_of(found.get("gen_ai.response.time_to_first_chunk"))
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=trace_id or response_id,
        correlation_ids=other_ids(response_id, trace_id),
        trace_id=trace_id,
        span_id=span_id,
        response_id=response_id,
        conversation_id=first_text(found.get("gen_ai.conversation.id"), found.get("session.id")),
        tenant_id=tenant,
        tenant_id_source=tenant_source,
        user_id=first_text(found.get("user.id"), found.get("enduser.id")),
        client_address=text_of(found.get("client.address")),
        ttft_s=ttft if ttft is not None else latency,
        clock_id=first_text(resource.get("host.name"), resource.get("service.instance.id")),
        operation=text_of(found.get("gen_ai.operation.name")),
        provider=first_text(found.get("gen_ai.provider.name"), found.get("gen_ai.system")),
        request_model=text_of(found.get("gen_ai.request.model")),
        response_model=text_of(found.get("gen_ai.response.model")),
        stream=bool_of(found.get("gen_ai.request.stream")),
        server_address=text_of(found.get("server.address")),
        server_port=int_of(found.get("server.port")),
        replica=text_of(resource.get("service.instance.id")),
        status=status_of(item, found),
        error_type=text_of(found.get("error.type")),
        error_message=text_of(status.get("message")) if isinstance(status, Mapping) else None,
        finish_reasons=tuple(reason for reason in map(finish_of, reasons) if reason),
        input_tokens=_count(found, "input_tokens", "prompt_tokens"),
        output_tokens=_count(found, "output_tokens", "completion_tokens"),
        cached_tokens=_count(found, "cache_read.input_tokens", "cached_tokens"),
        cache_creation_tokens=_count(found, "cache_creation.input_tokens"),
        reasoning_tokens=_count(found, "reasoning.output_tokens"),
        max_tokens=int_of(found.get("gen_ai.request.max_tokens")),
        temperature=float_of(found.get("gen_ai.request.temperature")),
        context=_tools(found),
        fields={**found, "resource": resource},
    )


def span_row(record: RawRecord, signal: Signal) -> LogRow:
    """Return the row of one span, with the content that stands on it or on its events."""
    start = moment_of(field_of(signal.item, "startTimeUnixNano"))
    end = moment_of(field_of(signal.item, "endTimeUnixNano"))
    found = dict(signal.attributes)
    messages: list[Any] = []
    choices: list[Any] = []
    for event in list_of(field_of(signal.item, "events")):
        if isinstance(event, Mapping):
            own = attributes(event.get("attributes"))
            _take_event(text_of(event.get("name")) or "", own, messages, choices)
            for key, value in own.items():
                found.setdefault(key, value)
    if messages:
        found.setdefault("gen_ai.input.messages", messages)
    if choices:
        found.setdefault("gen_ai.output.messages", choices)
    row = attribute_row(record, signal)
    output = answer_of(found)
    return replace(
        row,
        start_us=start.us if start else None,
        end_us=end.us if end else None,
        time_precision_us=start.precision_us if start else None,
        time_basis=TimeBasis.ABSOLUTE if start else TimeBasis.NONE,
        input=prompt_of(found),
        output=output,
        finish_reasons=row.finish_reasons
        or tuple(message.finish_reason for message in output.messages if message.finish_reason),
    )


_EVENT_ROLES = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant", "gen_ai.tool.message": "tool",
}  # fmt: skip


def _take_event(
    name: str, found: Mapping[str, Any], messages: list[Any], choices: list[Any]
) -> None:
    """Take an event that stands on the span: a message each, or (until 1.27) a side each."""
    body = opened(found.get("gen_ai.event.content"))
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else found
    if name in _EVENT_ROLES:
        messages.append({"role": _EVENT_ROLES[name], **fields})
    elif name == "gen_ai.choice":
        inner = opened(fields.get("message"))
        message = inner if isinstance(inner, Mapping) else {"content": inner}
        choices.append({"role": "assistant", "finish_reason": fields.get("finish_reason"),
                        **message})  # fmt: skip
    for key, side in (("gen_ai.prompt", messages), ("gen_ai.completion", choices)):
        value = opened(found.get(key))
        side.extend(value if isinstance(value, list) else [value] if value else [])


def _count(found: Mapping[str, Any], *names: str) -> int | None:
    older = (_OLDER_COUNTS[name] for name in names if name in _OLDER_COUNTS)
    for key in (*(f"gen_ai.usage.{name}" for name in names), *older):
        number = int_of(found.get(key))
        if number is not None:
            return number
    return None


# OpenInference's names.
_OLDER_COUNTS = {
    "input_tokens": "llm.token_count.prompt", "output_tokens": "llm.token_count.completion",
    "cache_read.input_tokens": "llm.token_count.prompt_details.cache_read",
    "reasoning.output_tokens": "llm.token_count.completion_details.reasoning",
}  # fmt: skip


def _tools(found: Mapping[str, Any]) -> str | None:
    value = found.get("gen_ai.tool.definitions")
    return value if isinstance(value, str) else None
