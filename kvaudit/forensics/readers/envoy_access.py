"""Envoy AI Gateway access log, JSON: metadata alone, with keys that the operator chose."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.fields import float_of, int_of, text_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of, us_after

_TENANTS = ("tenant", "tenant_id", "x-tenant-id", "x-tenant", "x-org-id", "x-organization-id",
            "x-team-id", "x-ai-eg-tenant", "x-user-id")  # fmt: skip


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            "start_time" in item
            and "response_code" in item
            and any(
                key in item
                for key in (
                    "x-request-id",
                    "upstream_host",
                    "response_flags",
                    "gen_ai.request.model",
                    "x-envoy-origin-path",
                    "upstream_cluster",
                    "bytes_sent",
                )
            )
        )
    )


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        yield _row(record, {str(key).lower(): value for key, value in record.data.items()})


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    start = moment_of(data.get("start_time"), naive_is_utc=True)
    start_us = start.us if start else None
    duration = float_of(data.get("duration"))
    status = int_of(data.get("response_code")) or None  # 0: the client left before an answer
    tenant_key = next((key for key in _TENANTS if text_of(data.get(key)) not in (None, "-")), None)
    flags = text_of(data.get("response_flags"))
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset,
        request_id=_named(data, "x-request-id"),
        is_partner=True,
        tenant_id=text_of(data.get(tenant_key)) if tenant_key else None,
        tenant_id_source=tenant_key,
        client_address=_named(data, "downstream_remote_address") or _named(data, "x-forwarded-for"),
        start_us=start_us,
        end_us=us_after(start_us, duration / 1000 if duration is not None else None),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        provider=_named(data, "gen_ai.provider.name"),
        endpoint=_named(data, "x-envoy-origin-path"),
        request_model=_named(data, "gen_ai.request.model"),
        response_model=_named(data, "gen_ai.response.model"),
        server_address=_named(data, "upstream_cluster"),
        replica=_named(data, "upstream_host"),
        status=status,
        error_type=flags if flags not in (None, "-") and (status or 599) >= 400 else None,
        input_tokens=int_of(data.get("gen_ai.usage.input_tokens")),
        output_tokens=int_of(data.get("gen_ai.usage.output_tokens")),
        fields=data,
    )


def _named(data: Mapping[str, Any], key: str) -> str | None:
    """Return a value; Envoy writes `-` for none."""
    found = text_of(data.get(key))
    return None if found == "-" else found


FORMAT = Format(
    name="envoy-access",
    title="Envoy AI Gateway access log (no text)",
    shape=Shape.OBJECTS,
    layer=Layer.ROUTER,
    sniff=_sniff,
    read=_read,
    keys=("start_time", "x-request-id", "response_code", "response_flags", "upstream_host",
          "gen_ai.request.model"),
)  # fmt: skip
