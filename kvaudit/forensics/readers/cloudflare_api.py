"""Cloudflare AI Gateway, answers of its log API: list and detail."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.exchange import cut, exchanged, mended_body
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    has_keys,
    int_of,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.readers.cloudflare_logpush import TENANT_KEYS
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.times import moment_of, us_after

_TELLING = ("provider", "duration", "cached", "tokens_in", "tokens_out", "status_code",
            "model_type", "request_head", "response_head", "request_content_type")  # fmt: skip
_TELLING_MIN = 4


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            has_keys(item, ("id", "created_at"))
            and sum(key in item for key in _TELLING) >= _TELLING_MIN
        )
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    fields = exchanged(
        mended_body(data.get("request_head")), mended_body(data.get("response_head"))
    )
    if data.get("request_head_complete") is False:
        fields["input"] = cut(fields["input"])
    if data.get("response_head_complete") is False:
        fields["output"] = cut(fields["output"])
    metadata = mapping_of(data.get("metadata"))
    tenant_key = next((key for key in TENANT_KEYS if text_of(metadata.get(key))), None)
    start = moment_of(data.get("created_at"), naive_is_utc=True)
    start_us = start.us if start else None
    duration = float_of(data.get("duration"))
    status = int_of(data.get("status_code"))
    failed = data.get("success") is False
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("id")),
        correlation_ids=other_ids(fields["response_id"]),
        tenant_id=text_of(metadata.get(tenant_key)) if tenant_key else None,
        tenant_id_source=f"metadata.{tenant_key}" if tenant_key else None,
        start_us=start_us,
        end_us=us_after(start_us, duration / 1000 if duration is not None else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        provider=text_of(data.get("provider")),
        endpoint=text_of(data.get("path")),
        status=status,
        cache_hit_response=bool_of(data.get("cached")),
        attempt=(int_of(data.get("step")) or 0) + 1,
        fields=data,
    )
    own = {
        "user_id": first_text(metadata.get("user"), metadata.get("user_id"), fields["user_id"]),
        "request_model": first_text(fields["request_model"], data.get("model")),
        "response_model": first_text(data.get("model"), fields["response_model"]),
        "input_tokens": _count(data.get("tokens_in"), fields["input_tokens"], failed=failed),
        "output_tokens": _count(data.get("tokens_out"), fields["output_tokens"], failed=failed),
    }
    return with_fields(row, fields | own)


def _count(value: object, usage: int | None, *, failed: bool) -> int | None:
    """Return a token count; the zeros of a failed call are no counts."""
    found = int_of(value)
    return usage if found is None or (failed and found == 0) else found


FORMAT = Format(
    name="cloudflare-api",
    title="Cloudflare AI Gateway, log API",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("id", "created_at", "provider", "model", "duration", "status_code", "request_head",
          "response_head", "tokens_in", "tokens_out"),
)  # fmt: skip
