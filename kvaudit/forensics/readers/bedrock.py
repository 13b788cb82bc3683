"""AWS Bedrock model invocation logs: S3 objects and CloudWatch messages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.exchange import EXTERNAL, exchanged
from kvaudit.forensics.fields import (
    first_text,
    float_of,
    has_keys,
    int_of,
    mapping_of,
    other_ids,
    text_of,
)
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.times import moment_of, us_after

_ROLE = re.compile(r":(?:assumed-role|role)/([^/]+)(?:/(.+))?$")
_USER = re.compile(r":user/(.+)$")
_ROLE_SUFFIX = re.compile(r"[-_](?:app|role|service|svc|prod|lambda|task)$", re.IGNORECASE)
_TENANT_KEYS = ("tenant", "tenant_id", "tenantId", "team", "customer", "org", "account")
_STATUSES = {
    "ThrottlingException": 429, "ServiceQuotaExceededException": 429, "ValidationException": 400,
    "AccessDeniedException": 403, "ResourceNotFoundException": 404, "ModelTimeoutException": 408,
    "ModelErrorException": 424, "ModelNotReadyException": 429, "InternalServerException": 500,
    "ServiceUnavailableException": 503,
}  # fmt: skip


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            item.get("schemaType") == "ModelInvocationLog"
            or has_keys(item, ("requestId", "modelId", "operation", "input"))
        )
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, record.data)


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    given, made = mapping_of(data.get("input")), mapping_of(data.get("output"))
    answer = made.get("outputBodyJson")
    fields = exchanged(given.get("inputBodyJson"), answer)
    if given.get("inputBodyS3Path") and given.get("inputBodyJson") is None:
        fields["input"] = EXTERNAL
    if made.get("outputBodyS3Path") and answer is None:
        fields["output"] = EXTERNAL
    arn = text_of(mapping_of(data.get("identity")).get("arn"))
    metadata = mapping_of(data.get("requestMetadata"))
    tenant, tenant_source, user = _identity(arn, metadata)
    start = moment_of(data.get("timestamp"), naive_is_utc=True)
    start_us = start.us if start else None
    latency = _latency_ms(answer)
    error = text_of(data.get("errorCode"))
    model = text_of(data.get("modelId"))
    row = LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("requestId")),
        correlation_ids=other_ids(fields["response_id"], *_ids(metadata)),
        tenant_id=tenant,
        tenant_id_source=tenant_source,
        organisation=None,
        start_us=start_us,
        end_us=us_after(start_us, latency / 1000 if latency is not None else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        operation=text_of(data.get("operation")),
        provider="aws.bedrock",
        server_address=first_text(data.get("inferenceRegion"), data.get("region")),
        status=_STATUSES.get(error, 500) if error else 200,
        fields=data,
    )
    operation = row.operation or ""
    own = {
        "user_id": user or fields["user_id"],
        "request_model": model,
        "response_model": first_text(fields["response_model"], model),
        "stream": operation.endswith(("Stream", "ResponseStream")),
        "input_tokens": _with_cached(given, fields["input_tokens"]),
        "output_tokens": _or(int_of(made.get("outputTokenCount")), fields["output_tokens"]),
        "cached_tokens": _or(
            int_of(given.get("cacheReadInputTokenCount")), fields["cached_tokens"]
        ),
        "cache_creation_tokens": _or(
            int_of(given.get("cacheWriteInputTokenCount")), fields["cache_creation_tokens"]
        ),
        "error_type": error or fields["error_type"],
        "finish_reasons": fields["finish_reasons"] or (("error",) if error else ()),
    }
    return with_fields(row, fields | own)


def _identity(
    arn: str | None, metadata: Mapping[str, Any]
) -> tuple[str | None, str | None, str | None]:
    """Return (tenant, where it came from, user) of a role, a session or the request's metadata."""
    role = _ROLE.search(arn) if arn else None
    user = _USER.search(arn) if arn else None
    session = role.group(2) if role else user.group(1) if user else None
    for key in _TENANT_KEYS:
        if text_of(metadata.get(key)):
            return text_of(metadata[key]), f"requestMetadata.{key}", session
    if role is not None:
        return _ROLE_SUFFIX.sub("", role.group(1)), "identity.arn", session
    return session or arn, "identity.arn" if arn else None, session


def _ids(metadata: Mapping[str, Any]) -> list[Any]:
    return [value for key, value in metadata.items() if key.lower().replace("_", "").endswith("id")
            and key not in _TENANT_KEYS and "tenant" not in key.lower()]  # fmt: skip


def _latency_ms(answer: object) -> float | None:
    body = mapping_of(answer)
    found = float_of(mapping_of(body.get("metrics")).get("latencyMs"))
    if found is not None or not isinstance(answer, list):
        return found
    for event in reversed(answer[-3:]):
        metrics = mapping_of(mapping_of(event).get("amazon-bedrock-invocationMetrics"))
        found = float_of(metrics.get("invocationLatency"))
        if found is not None:
            return found
    return None


def _with_cached(given: Mapping[str, Any], usage: int | None) -> int | None:
    """Return the prompt tokens with cached ones, which Bedrock counts apart."""
    count = int_of(given.get("inputTokenCount"))
    if count is None:
        return usage
    return count + sum(
        int_of(given.get(key)) or 0
        for key in ("cacheReadInputTokenCount", "cacheWriteInputTokenCount")
    )


def _or(first: int | None, second: int | None) -> int | None:
    return first if first is not None else second


FORMAT = Format(
    name="bedrock",
    title="AWS Bedrock model invocation log",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("schemaType", "timestamp", "accountId", "identity", "requestId", "operation", "modelId",
          "input", "output"),
)  # fmt: skip
