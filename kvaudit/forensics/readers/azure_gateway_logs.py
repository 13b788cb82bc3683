"""Azure API Management, `ApiManagementGatewayLogs`: Log Analytics rows and storage envelopes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.exchange import cut, exchanged, mended_body
from kvaudit.forensics.fields import (
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

_BODY_BYTES_MAX = 8_192  # what diagnostics keep of a body


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            _lower(item).get("correlationid") is not None
            and any(
                key in _lower(item)
                for key in ("apimsubscriptionid", "responsecode", "backendresponsecode")
            )
            and "SequenceNumber" not in item
            and item.get("category") != "GatewayLlmLogs"
        )
    )


def _lower(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns, the envelope's properties too, under lower-case names."""
    found = {str(key).lower(): value for key, value in item.items()}
    found |= {str(k).lower(): v for k, v in mapping_of(item.get("properties")).items()}
    return found


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        data = _lower(record.data)
        if text_of(data.get("correlationid")) is None:
            context.damage("row without correlationId")
            continue
        yield _row(record, data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    request = first_text(data.get("requestbody"), data.get("backendrequestbody"))
    answer = first_text(data.get("responsebody"), data.get("backendresponsebody"))
    whole_request, whole_answer = mended_body(request), mended_body(answer)
    fields = exchanged(whole_request, whole_answer)
    if _is_cut(request) or whole_request is not request:
        fields["input"] = cut(fields["input"])
    if _is_cut(answer) or whole_answer is not answer:
        fields["output"] = cut(fields["output"])
    start = moment_of(first_text(data.get("timegenerated"), data.get("time")), naive_is_utc=True)
    start_us = start.us if start else None
    duration = float_of(data.get("totaltime", data.get("durationms")))
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("correlationid")),
        correlation_ids=other_ids(fields["response_id"]),
        is_partner=request is None and answer is None,
        tenant_id=text_of(data.get("apimsubscriptionid")),
        tenant_id_source="apimSubscriptionId" if data.get("apimsubscriptionid") else None,
        client_address=text_of(data.get("calleripaddress")),
        start_us=start_us,
        end_us=us_after(start_us, duration / 1000 if duration is not None else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        provider="azure",
        endpoint=first_text(data.get("url"), data.get("operationid")),
        server_address=first_text(data.get("backendurl"), data.get("backendid")),
        replica=text_of(data.get("backendid")),
        status=int_of(data.get("responsecode")),
        cache_hit_response=True if str(data.get("cache")).lower() == "hit" else None,
        fields=record.data,
    )
    own = {
        "error_type": first_text(data.get("lasterrorreason"), fields["error_type"]),
        "error_message": first_text(data.get("lasterrormessage"), fields["error_message"]),
    }
    return with_fields(row, fields | own)


def _is_cut(body: str | None) -> bool:
    """Whether a body reached the limit; it counts bytes."""
    return body is not None and (
        len(body) >= _BODY_BYTES_MAX or len(body.encode("utf-8", "replace")) >= _BODY_BYTES_MAX
    )


FORMAT = Format(
    name="azure-gateway-logs",
    title="Azure API Management, ApiManagementGatewayLogs",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("correlationId", "apimSubscriptionId", "responseCode", "requestBody", "responseBody",
          "TimeGenerated", "CorrelationId", "ApimSubscriptionId", "ResponseCode"),
)  # fmt: skip
