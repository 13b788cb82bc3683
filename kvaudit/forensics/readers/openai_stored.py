"""OpenAI stored chat completions, with the page of their messages beside the object."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvaudit.forensics.bodies import input_content
from kvaudit.forensics.exchange import exchanged
from kvaudit.forensics.fields import (
    first_text,
    has_keys,
    list_of,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import ABSENT, Layer, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of

_TENANT_KEYS = ("tenant", "tenant_id", "team", "org", "organization", "customer", "account")
_OBJECTS = ("chat.completion", "text_completion", "response")


def _sniff(sample: Sample) -> float:
    return 0.8 * sample.share(
        lambda item: (
            item.get("object") in _OBJECTS
            and (has_keys(item, ("id", "choices")) or has_keys(item, ("id", "output")))
            and "tenant" not in item
        )
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    fields = exchanged(None, data)
    page = data.get("messages_page", data.get("messages", data.get("input")))
    messages = list_of(mapping_of(page).get("data")) or list_of(page)
    prompt = [_with_parts(mapping_of(item)) for item in messages]
    metadata = mapping_of(data.get("metadata"))
    tenant_key = next((key for key in _TENANT_KEYS if text_of(metadata.get(key))), None)
    created = moment_of(data.get("created", data.get("created_at")))
    request = {key: data.get(key) for key in ("tools", "response_format")}
    told = exchanged(request, None)
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=text_of(data.get("id")),
        correlation_ids=other_ids(data.get("id"), data.get("request_id")),
        tenant_id=text_of(metadata.get(tenant_key)) if tenant_key else None,
        tenant_id_source=f"metadata.{tenant_key}" if tenant_key else None,
        start_us=created.us if created else None,
        time_precision_us=created.precision_us if created else None,
        time_basis=TimeBasis.INFERRED if created else TimeBasis.NONE,
        provider="openai",
        status=200,  # failures are not stored
        fields=data,
    )
    own = {
        "user_id": first_text(metadata.get("user"), data.get("input_user"), data.get("user")),
        "request_model": text_of(data.get("model")),
        "input": input_content(prompt) if prompt else ABSENT,
        "context": told["context"],
    }
    return replace(row, **(fields | own))


def _with_parts(item: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = list_of(item.get("content_parts"))
    return {**item, "content": parts} if parts else item


FORMAT = Format(
    name="openai-stored",
    title="OpenAI stored completions",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("id", "object", "created", "model", "choices", "usage", "metadata", "messages_page"),
)
