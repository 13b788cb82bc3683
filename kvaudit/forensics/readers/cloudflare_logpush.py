"""Cloudflare AI Gateway, Logpush dataset `ai_gateway_events`, decrypted or not."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.exchange import ENCRYPTED, exchanged, is_encrypted
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    int_of,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.times import moment_of, us_after

TENANT_KEYS = ("tenant", "tenant_id", "tenantId", "team", "team_id", "org", "org_id",
               "organization", "account", "account_id", "customer", "customer_id",
               "workspace")  # fmt: skip
_FIELDS = ("Cached", "Endpoint", "Gateway", "Metadata", "Metrics", "Model", "Provider",
           "RateLimited", "RequestBody", "RequestedModel", "ResponseBody", "StatusCode",
           "Timestamp")  # fmt: skip
ID_KEYS = ("request_id", "requestId", "req_id", "id", "trace_id")


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            # The job chooses the fields; these names are nobody else's.
            sum(key in item for key in _FIELDS) >= 4
            and any(key in item for key in ("RequestBody", "ResponseBody", "StatusCode", "Cached"))
        )
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    request, answer = data.get("RequestBody"), data.get("ResponseBody")
    fields = exchanged(
        None if is_encrypted(request) else request, None if is_encrypted(answer) else answer
    )
    if is_encrypted(request):
        fields["input"] = ENCRYPTED
    if is_encrypted(answer):
        fields["output"] = ENCRYPTED
    metadata = mapping_of(data.get("Metadata"))
    tenant_key = next((key for key in TENANT_KEYS if text_of(metadata.get(key))), None)
    start = moment_of(data.get("Timestamp"), naive_is_utc=True)
    start_us = start.us if start else None
    duration = float_of(mapping_of(data.get("Metrics")).get("durationMs"))
    status = int_of(data.get("StatusCode"))
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=first_text(*(metadata.get(key) for key in ID_KEYS), fields["response_id"]),
        correlation_ids=other_ids(fields["response_id"], data.get("RoutingDecisionID") or None),
        tenant_id=text_of(metadata.get(tenant_key)) if tenant_key else None,
        tenant_id_source=f"Metadata.{tenant_key}" if tenant_key else None,
        start_us=start_us,
        end_us=us_after(start_us, duration / 1000 if duration is not None else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        provider=text_of(data.get("Provider")),
        endpoint=text_of(data.get("Endpoint")),
        server_address=text_of(data.get("Gateway")),
        status=status,
        cache_hit_response=bool_of(data.get("Cached")),
        fields=data,
    )
    own = {
        "user_id": first_text(metadata.get("user"), metadata.get("user_id"), fields["user_id"]),
        "request_model": first_text(data.get("RequestedModel"), fields["request_model"]),
        "response_model": first_text(data.get("Model"), fields["response_model"]),
    }
    return with_fields(row, fields | own)


FORMAT = Format(
    name="cloudflare-logpush",
    title="Cloudflare AI Gateway, Logpush",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("Cached", "Endpoint", "Gateway", "Metadata", "Metrics", "Model", "RequestBody",
          "ResponseBody", "StatusCode", "Timestamp"),
)  # fmt: skip
