"""Helicone request export, JSON lines with bodies."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.bodies import finish_reasons
from kvaudit.forensics.exchange import EXTERNAL, exchanged
from kvaudit.forensics.fields import (
    first_text,
    float_of,
    has_keys,
    int_of,
    list_of,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import ABSENT, Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.streams import assembled, is_sse, sse_events
from kvaudit.forensics.times import moment_of, us_after

_TENANTS = ("tenant", "organization", "org", "team", "customer", "account")
_PROPERTY_PREFIX = "helicone-property-"


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: has_keys(item, ("request_id", "request_created_at"))
        and any(key in item for key in ("helicone_user", "response_status", "request_properties",
                                        "signed_body_url"))
    )  # fmt: skip


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    answer = data.get("response_body")
    fields = exchanged(data.get("request_body"), answer)
    streamed = mapping_of(answer).get("streamed_data")
    if not fields["output"].messages and streamed and not fields["error_message"]:
        # The consolidated answer wins where there is one; it repeats these chunks.
        fields |= _streamed(streamed)
    if data.get("signed_body_url") and not answer and not data.get("request_body"):
        fields |= {"input": EXTERNAL, "output": EXTERNAL}
    start, end = (
        moment_of(data.get("request_created_at")),
        moment_of(data.get("response_created_at")),
    )
    start_us = start.us if start else None
    delay = float_of(data.get("delay_ms"))
    status = int_of(data.get("response_status"))
    properties = mapping_of(data.get("request_properties")) or mapping_of(data.get("properties"))
    tenant, tenant_field = _tenant(data, properties)
    ttft_ms = float_of(data.get("time_to_first_token"))
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("request_id")),
        correlation_ids=other_ids(fields["response_id"], data.get("response_id")),
        conversation_id=text_of(properties.get("Helicone-Session-Id")),
        tenant_id=tenant,
        tenant_id_source=tenant_field,
        start_us=start_us,
        end_us=end.us if end else us_after(start_us, delay / 1000 if delay is not None else None),
        ttft_s=ttft_ms / 1000 if ttft_ms is not None else None,
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        provider=text_of(data.get("provider")),
        endpoint=text_of(data.get("request_path")),
        server_address=text_of(data.get("target_url")),
        cache_hit_response=True if _is_cached(data) else None,
        fields=data,
    )
    own = {
        # Below 0 are Helicone's own: pending, cancelled.
        "status": status if status is not None and status > 0 else None,
        "user_id": first_text(data.get("request_user_id"), data.get("helicone_user")),
        "request_model": first_text(data.get("request_model"), fields["request_model"]),
        "response_model": first_text(data.get("response_model"), fields["response_model"]),
        "input_tokens": _or(int_of(data.get("prompt_tokens")), fields["input_tokens"]),
        "output_tokens": _or(int_of(data.get("completion_tokens")), fields["output_tokens"]),
        "cached_tokens": _or(
            int_of(data.get("prompt_cache_read_tokens")), fields["cached_tokens"]
        ) if status is not None and status < 400 else None,
        "finish_reasons": fields["finish_reasons"]
        or (("abort",) if status is not None and status < 0 else ()),
    }  # fmt: skip
    if status is not None and status >= 400 and not fields["error_message"]:
        own["output"] = ABSENT
    return with_fields(row, fields | own)


def _streamed(value: object) -> dict[str, Any]:
    """Return what the chunks tell, a list or raw server-sent events."""
    if isinstance(value, str) and is_sse(value):
        held = assembled(sse_events(value))
    else:
        held = assembled(mapping_of(item) for item in list_of(value))
    output, usage = held.content(), held.usage
    return {
        "output": output, "response_id": held.response_id, "response_model": held.model,
        "finish_reasons": finish_reasons(output), "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens, "cached_tokens": usage.cached_tokens, "stream": True,
    }  # fmt: skip


def _tenant(
    data: Mapping[str, Any], properties: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Return the tenant and the field that named it: a custom property, else the user."""
    named = {_spelled(str(key)): key for key in properties}
    for name in _TENANTS:
        key = named.get(name, named.get(f"{name}id", ""))
        tenant = text_of(properties.get(key))
        if tenant is not None:
            source = "request_properties" if data.get("request_properties") else "properties"
            return tenant, f"{source}.{key}"
    for key in ("helicone_user", "request_user_id"):
        if text_of(data.get(key)):
            return text_of(data[key]), key
    return None, None


def _spelled(key: str) -> str:
    """Return a property's name without its prefix, as `tenant_id`, `TenantId` and `tenant-id`."""
    return key.lower().removeprefix(_PROPERTY_PREFIX).replace("-", "").replace("_", "")


def _is_cached(data: Mapping[str, Any]) -> bool:
    """Whether an earlier answer was replayed: the reference names the request that made it."""
    reference = text_of(data.get("cache_reference_id"))
    return reference is not None and bool(reference.strip("0-"))


def _or(first: int | None, second: int | None) -> int | None:
    return first if first is not None else second


FORMAT = Format(
    name="helicone",
    title="Helicone export",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("request_id", "request_created_at", "request_body", "response_body", "response_status",
          "helicone_user", "delay_ms"),
)  # fmt: skip
