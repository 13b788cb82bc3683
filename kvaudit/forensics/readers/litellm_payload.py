"""LiteLLM proxy: StandardLoggingPayload, as S3, GCS and callbacks write it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.bodies import (
    context_of,
    finish_reasons,
    input_content,
    output_content,
    request_facts,
    usage_of,
)  # fmt: skip
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    int_of,
    look_up,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of

_KEYS = ("id", "call_type", "startTime", "endTime", "messages", "response", "metadata",
         "model_group", "litellm_call_id", "hidden_params")  # fmt: skip
_TENANT_FIELDS = ("metadata.user_api_key_team_id", "metadata.team_id", "metadata.user_api_key_hash")


def _sniff(sample: Sample) -> float:
    return sample.share(lambda item: _is_payload(_payload_of(item)))


def _is_payload(item: Mapping[str, Any]) -> bool:
    return (
        "startTime" in item
        and "id" in item
        and ("call_type" in item or "model_group" in item)
        and (isinstance(item["startTime"], int | float) or "request_id" not in item)
    )


def _payload_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the payload, which some callbacks log among the call's other arguments."""
    return mapping_of(item.get("standard_logging_object")) or item


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        data = _payload_of(record.data)
        if "id" not in data and "startTime" not in data:
            context.damage("no LiteLLM payload")
            continue
        yield _row(record, data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    metadata = mapping_of(data.get("metadata"))
    parameters = mapping_of(data.get("model_parameters"))
    response = mapping_of(data.get("response"))
    error = mapping_of(data.get("error_information"))
    output = output_content(data.get("response"))
    usage = usage_of(response)
    facts = request_facts(parameters)
    start, end = moment_of(data.get("startTime")), moment_of(data.get("endTime"))
    first = moment_of(data.get("completionStartTime"))
    tenant_field = next((path for path in _TENANT_FIELDS if text_of(look_up(data, path))), None)
    failed = data.get("status") == "failure"
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=text_of(data.get("id")),
        correlation_ids=other_ids(
            data.get("trace_id"), data.get("litellm_call_id"), response.get("id")
        ),
        trace_id=text_of(data.get("trace_id")),
        response_id=text_of(response.get("id")),
        conversation_id=text_of(data.get("session_id")),
        tenant_id=text_of(look_up(data, tenant_field)) if tenant_field else None,
        tenant_id_source=tenant_field,
        organisation=text_of(metadata.get("user_api_key_org_id")),
        user_id=first_text(metadata.get("user_api_key_user_id"), data.get("end_user")),
        api_key_hash=text_of(metadata.get("user_api_key_hash")),
        client_address=first_text(
            data.get("requester_ip_address"), metadata.get("requester_ip_address")
        ),
        start_us=start.us if start else None,
        end_us=end.us if end else None,
        ttft_s=(first.us - start.us) / 1e6 if first and start and data.get("stream") else None,
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        operation=text_of(data.get("call_type")),
        provider=text_of(data.get("custom_llm_provider")),
        request_model=first_text(data.get("model_group"), data.get("model")),
        response_model=first_text(response.get("model"), data.get("model")),
        stream=bool_of(data.get("stream")),
        server_address=text_of(data.get("api_base")),
        replica=text_of(data.get("api_base")),
        status=int_of(error.get("error_code")) or (None if failed else 200),
        error_type=text_of(error.get("error_class")),
        error_message=first_text(data.get("error_str"), error.get("error_message")),
        finish_reasons=finish_reasons(output) or (("error",) if failed else ()),
        input_tokens=_count(data, "prompt_tokens", usage.input_tokens, failed=failed),
        output_tokens=_count(data, "completion_tokens", usage.output_tokens, failed=failed),
        cached_tokens=usage.cached_tokens,
        cache_creation_tokens=usage.cache_creation_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        max_tokens=facts.max_tokens,
        temperature=facts.temperature,
        cache_salt=facts.cache_salt,
        input=input_content(data.get("messages")),
        output=output,
        context=context_of(parameters),
        cache_hit_response=bool_of(data.get("cache_hit")),
        fields=data,
    )


def _count(data: Mapping[str, Any], key: str, usage: int | None, *, failed: bool) -> int | None:
    """Return a token count; the zeros that a failed call carries are no counts."""
    found = int_of(data.get(key))
    return usage if found is None or (failed and found == 0) else found


FORMAT = Format(
    name="litellm-payload",
    title="LiteLLM StandardLoggingPayload",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=_KEYS,
)
