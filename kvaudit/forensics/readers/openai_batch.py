"""OpenAI batch files: input, output and error lines (vLLM's `run-batch` writes the same)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.exchange import exchanged
from kvaudit.forensics.fields import (
    first_text,
    has_keys,
    int_of,
    look_up,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.grouping import GUESSED_FROM_ID
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.times import moment_of

_TENANTS = ("metadata.tenant", "metadata.tenant_id", "metadata.team", "metadata.customer",
            "metadata.org", "user", "safety_identifier")  # fmt: skip
# `tenant-0001`: what stands before the running number, where nothing else names the tenant.
_CUSTOM_ID = re.compile(r"(.+?)[-_/:.]\d+")
# Words that stand before the number and name nobody: one tenant for all would hide every leak.
_NO_TENANTS = frozenset({
    "request", "req", "task", "item", "row", "line", "batch", "custom", "id", "custom-id", "prompt",
    "sample", "test", "job", "msg", "message", "query", "q", "r", "record", "doc", "document",
    "chunk", "example", "eval", "call", "conversation", "chat", "question", "page",
})  # fmt: skip


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            "custom_id" in item
            and (
                "messages" in mapping_of(item.get("body"))
                or has_keys(item, ("url", "body"))
                or "response" in item
                or "error" in item
            )
        )
    )


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        if text_of(record.data.get("custom_id")) is None:
            context.damage("no custom_id")
        elif "body" in record.data:
            yield _request_row(record, record.data)
        else:
            yield _answer_row(record, record.data)


def _request_row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    body = mapping_of(data.get("body"))
    tenant_field = next((path for path in _TENANTS if text_of(look_up(body, path))), None)
    tenant = text_of(look_up(body, tenant_field)) if tenant_field else None
    source = f"body.{tenant_field}" if tenant_field else None
    if tenant is None:
        tenant, source = _tenant_of_id(data)
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=text_of(data.get("custom_id")),
        tenant_id=tenant,
        tenant_id_source=source,
        endpoint=text_of(data.get("url")),
        fields=data,
    )
    return with_fields(row, exchanged(body, None))


def _tenant_of_id(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    match = _CUSTOM_ID.fullmatch(text_of(data.get("custom_id")) or "")
    if match is None or match.group(1).lower().replace("_", "-") in _NO_TENANTS:
        return None, None
    return match.group(1), GUESSED_FROM_ID


def _answer_row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    response, error = mapping_of(data.get("response")), mapping_of(data.get("error"))
    body = response.get("body")
    fields = exchanged(None, body)
    answer = mapping_of(body)
    created = moment_of(answer.get("created")) or moment_of(answer.get("created_at"))
    status = int_of(response.get("status_code"))
    failed = bool(error) or (status is not None and status >= 400)
    tenant, source = _tenant_of_id(data)
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=text_of(data.get("custom_id")),
        correlation_ids=other_ids(
            data.get("id"), response.get("request_id"), fields["response_id"]
        ),
        start_us=created.us if created else None,
        time_precision_us=created.precision_us if created else None,
        time_basis=TimeBasis.INFERRED if created else TimeBasis.NONE,
        tenant_id=tenant,
        tenant_id_source=source,
        status=status,
        fields=data,
    )
    own = {
        "error_type": first_text(error.get("code"), fields["error_type"]),
        "error_message": first_text(error.get("message"), fields["error_message"]),
        "finish_reasons": fields["finish_reasons"] or (("error",) if failed else ()),
    }
    return with_fields(row, fields | own)


FORMAT = Format(
    name="openai-batch",
    title="OpenAI batch input and output",
    shape=Shape.OBJECTS,
    layer=Layer.BATCH,
    sniff=_sniff,
    read=_read,
    keys=("custom_id", "method", "url", "body", "response", "error"),
)
