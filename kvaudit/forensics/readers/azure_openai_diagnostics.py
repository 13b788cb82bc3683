"""Azure OpenAI diagnostic log `RequestResponse`: metadata alone; its `Tenant` is the region."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.fields import first_text, float_of, has_keys, int_of, mapping_of, text_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of, us_after

_CATEGORIES = ("RequestResponse", "Audit", "Trace", "AzureOpenAIRequestUsage")


def _sniff(sample: Sample) -> float:
    if not any(_is_request(item) for item in sample.objects):
        return 0.0
    return sample.share(
        lambda item: item.get("category") in _CATEGORIES and "operationName" in item
    )


def _is_request(data: Mapping[str, Any]) -> bool:
    return data.get("category") == "RequestResponse" and has_keys(
        data, ("correlationId", "operationName")
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        if _is_request(record.data):  # the other categories are no requests
            yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    properties = mapping_of(data.get("properties"))
    start = moment_of(properties.get("requestTime")) or moment_of(data.get("time"))
    end = moment_of(properties.get("responseTime"))
    start_us = start.us if start else None
    duration = float_of(data.get("durationMs"))
    if duration is not None and duration < 0:
        duration = None  # seen in practice
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("correlationId")),
        is_partner=True,
        user_id=text_of(properties.get("objectId")),
        client_address=text_of(data.get("callerIpAddress")),
        start_us=start_us,
        end_us=end.us if end else us_after(start_us, duration / 1000 if duration else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        operation=text_of(data.get("operationName")),
        provider="azure",
        request_model=text_of(properties.get("modelDeploymentName")),
        response_model=first_text(properties.get("modelName")),
        stream=_is_stream(properties.get("streamType")),
        server_address=first_text(data.get("location"), data.get("Tenant")),
        status=int_of(data.get("resultSignature")),
        fields=data,
    )


def _is_stream(value: object) -> bool | None:
    text = text_of(value)
    return None if text is None else text.lower() == "streaming"


FORMAT = Format(
    name="azure-openai-diagnostics",
    title="Azure OpenAI diagnostics, RequestResponse (no text)",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("Tenant", "category", "correlationId", "operationName", "properties",
          "resultSignature"),
)  # fmt: skip
