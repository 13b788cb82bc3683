"""LiteLLM proxy: rows of the table `LiteLLM_SpendLogs`, as JSON or CSV."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.bodies import input_content
from kvaudit.forensics.exchange import exchanged
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    has_keys,
    int_of,
    look_up,
    mapping_of,
    opened,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.times import moment_of

_KEYS = ("request_id", "call_type", "api_key", "spend", "startTime", "endTime", "model_group",
         "proxy_server_request", "team_id", "cache_hit")  # fmt: skip
_TENANTS = ("team_id", "metadata.user_api_key_team_id", "api_key")


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            has_keys(item, ("request_id", "startTime"))
            and ("api_key" in item or "team_id" in item)
            and ("spend" in item or "proxy_server_request" in item or "call_type" in item)
        )
    )


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        if text_of(record.data.get("request_id")) is None:
            context.damage("no request_id")
            continue
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    metadata = mapping_of(data.get("metadata"))
    error = mapping_of(metadata.get("error_information"))
    request = mapping_of(data.get("proxy_server_request"))
    body = mapping_of(request.get("body")) or request
    fields = exchanged(body or None, opened(data.get("response")))
    if not fields["input"].messages and opened(data.get("messages")):
        fields["input"] = input_content(data.get("messages"))
    start = moment_of(data.get("startTime"), naive_is_utc=True)
    end = moment_of(data.get("endTime"), naive_is_utc=True)
    first = moment_of(data.get("completionStartTime"), naive_is_utc=True)
    tenant_field = next((path for path in _TENANTS if text_of(look_up(data, path))), None)
    failed = first_text(data.get("status"), metadata.get("status")) == "failure"
    is_stream = fields["stream"]
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("request_id")),
        correlation_ids=other_ids(data.get("litellm_call_id"), fields["response_id"]),
        conversation_id=text_of(data.get("session_id")),
        tenant_id=text_of(look_up(data, tenant_field)) if tenant_field else None,
        tenant_id_source=tenant_field,
        organisation=text_of(data.get("organization_id")),
        api_key_hash=text_of(data.get("api_key")),
        client_address=text_of(data.get("requester_ip_address")),
        start_us=start.us if start else None,
        end_us=end.us if end else None,
        ttft_s=(first.us - start.us) / 1e6 if first and start and is_stream else None,
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        operation=text_of(data.get("call_type")),
        provider=text_of(data.get("custom_llm_provider")),
        server_address=text_of(data.get("api_base")),
        replica=text_of(data.get("api_base")),
        status=int_of(error.get("error_code")) or (None if failed else 200),
        cache_hit_response=bool_of(data.get("cache_hit")),
        fields=data,
    )
    return with_fields(row, fields | _named(data, fields, error, failed=failed))


def _named(
    data: Mapping[str, Any], fields: Mapping[str, Any], error: Mapping[str, Any], *, failed: bool
) -> dict[str, Any]:
    """Return what the row's own columns tell better than the bodies."""
    counts = {}
    for name, key in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        found = int_of(data.get(key))
        counts[name] = fields[name] if found is None or (failed and found == 0) else found
    return {
        **counts,
        "user_id": first_text(data.get("user"), data.get("end_user"), fields["user_id"]),
        "request_model": first_text(
            data.get("model_group"), data.get("model"), fields["request_model"]
        ),
        "response_model": first_text(fields["response_model"], data.get("model")),
        "error_type": first_text(error.get("error_class"), fields["error_type"]),
        "error_message": first_text(error.get("error_message"), fields["error_message"]),
        "finish_reasons": fields["finish_reasons"] or (("error",) if failed else ()),
    }


FORMAT = Format(
    name="litellm-spendlogs",
    title="LiteLLM_SpendLogs",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=_KEYS,
)
