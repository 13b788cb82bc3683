"""The canonical table `requests`: its columns, and rows to polars frames.

Names are OpenTelemetry's with dots turned into underscores where one exists. Times are
`timestamp[us, UTC]`. One row per observed attempt in one source.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from kvaudit.forensics.content import (
    answer_text,
    mended,
    messages_json,
    prompt_text,
    reasoning_text,
    tool_text,
)  # fmt: skip
from kvaudit.forensics.row import ABSENT, Content, ContentState, LoggedMessage, LogRow

SCHEMA_VERSION = 1
_TIME = pl.Datetime("us", "UTC")

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "record_id": pl.String,
    "source_format": pl.String,
    "source_file": pl.String,
    "source_row": pl.Int64,
    "source_byte_offset": pl.Int64,
    "source_layer": pl.String,
    "is_partner": pl.Boolean,
    "request_id": pl.String,
    "correlation_ids": pl.List(pl.String),
    "trace_id": pl.String,
    "span_id": pl.String,
    "gen_ai_response_id": pl.String,
    "gen_ai_conversation_id": pl.String,
    "attempt": pl.Int16,
    "tenant_id": pl.String,
    "tenant_id_source": pl.String,
    "organisation": pl.String,
    "user_id": pl.String,
    "api_key_hash": pl.String,
    "client_address": pl.String,
    "start_time": _TIME,
    "end_time": _TIME,
    "gen_ai_response_time_to_first_chunk": pl.Float64,
    "time_precision_us": pl.Int64,
    "time_basis": pl.String,
    "clock_id": pl.String,
    "order_key": pl.Int64,
    "gen_ai_operation_name": pl.String,
    "gen_ai_provider_name": pl.String,
    "endpoint": pl.String,
    "gen_ai_request_model": pl.String,
    "gen_ai_response_model": pl.String,
    "gen_ai_request_stream": pl.Boolean,
    "server_address": pl.String,
    "server_port": pl.Int32,
    "service_instance_id": pl.String,
    "engine_slot": pl.Int32,
    "cache_salt": pl.String,
    "lora_name": pl.String,
    "http_response_status_code": pl.Int16,
    "error_type": pl.String,
    "error_message": pl.String,
    "gen_ai_response_finish_reasons": pl.List(pl.String),
    "gen_ai_usage_input_tokens": pl.Int64,
    "gen_ai_usage_output_tokens": pl.Int64,
    "gen_ai_usage_cache_read_input_tokens": pl.Int64,
    "gen_ai_usage_cache_creation_input_tokens": pl.Int64,
    "gen_ai_usage_reasoning_output_tokens": pl.Int64,
    "client_prompt_tokens": pl.Int64,
    "max_tokens": pl.Int64,
    "temperature": pl.Float64,
    "gen_ai_system_instructions": pl.String,
    "gen_ai_input_messages": pl.String,
    "gen_ai_output_messages": pl.String,
    "input_text": pl.String,
    "output_text": pl.String,
    "output_reasoning_text": pl.String,
    "output_tool_text": pl.String,
    "context_text": pl.String,
    "retrieved_items": pl.String,
    "input_content_state": pl.String,
    "output_content_state": pl.String,
    "input_gaps": pl.List(pl.Int32),
    "output_gaps": pl.List(pl.Int32),
    "input_raw_map": pl.List(pl.Int32),
    "output_raw_map": pl.List(pl.Int32),
    "input_digest": pl.String,
    "output_digest": pl.String,
    "input_chars": pl.Int64,
    "output_chars": pl.Int64,
    "input_block_hashes": pl.List(pl.Int64),
    "input_block_size": pl.Int32,
    "cache_hit_response": pl.Boolean,
    "response_headers": pl.String,
    "sample_rate": pl.Float64,
    "disaggregation_role": pl.String,
    "bootstrap_room": pl.String,
    "kv_transfer_bytes": pl.Int64,
    "dedup_group": pl.String,
    "is_primary": pl.Boolean,
}

# The columns that may hold megabytes: everything else fits in memory for millions of rows.
TEXT_COLUMNS = (
    "gen_ai_system_instructions", "gen_ai_input_messages", "gen_ai_output_messages", "input_text",
    "output_text", "output_reasoning_text", "output_tool_text", "context_text",
    "retrieved_items",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of one batch come from."""

    source_format: str
    source_file: str
    source_layer: str


def frame_of(rows: Iterable[LogRow], origin: Origin) -> pl.DataFrame:
    """Return the rows as one frame of the canonical schema, in the given order."""
    ordinals: dict[int, int] = {}
    made: list[tuple[Any, ...]] = []
    for row in rows:
        ordinal = ordinals.get(row.source_row, 0)
        ordinals[row.source_row] = ordinal + 1
        made.append(values_of(row, origin, ordinal))
    return frame_of_values(made)


def frame_of_values(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    """Return rows that `values_of` made as one frame of the canonical schema."""
    columns = zip(*rows, strict=True) if rows else (() for _ in SCHEMA)
    # Instants come as whole numbers, which Polars takes in many times faster than datetimes.
    frame = pl.DataFrame(
        [
            pl.Series(name, column, dtype=pl.Int64 if kind == _TIME else kind, strict=False)
            for (name, kind), column in zip(SCHEMA.items(), columns, strict=True)
        ]
    )
    return frame.cast({name: kind for name, kind in SCHEMA.items() if kind == _TIME})


def record_id(source_file: str, source_row: int, ordinal: int) -> str:
    """Return the id of the row: blake2b-128 of where it stands, the same on every ingest."""
    key = f"{source_file}\0{source_row}\0{ordinal}".encode("utf-8", "replace")
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def values_of(row: LogRow, origin: Origin, ordinal: int) -> tuple[Any, ...]:
    """Return the row's values in the order of `SCHEMA`; `ordinal` is its number in its record."""
    values = _values(row, origin, ordinal)
    return tuple(map(values.__getitem__, SCHEMA))


def _values(row: LogRow, origin: Origin, ordinal: int) -> dict[str, Any]:
    return {
        "record_id": record_id(origin.source_file, row.source_row, ordinal),
        "source_format": origin.source_format,
        "source_file": origin.source_file,
        "source_row": row.source_row,
        "source_byte_offset": row.source_byte_offset,
        "source_layer": origin.source_layer,
        "is_partner": row.is_partner,
        **_identity(row),
        **_times(row, origin, ordinal),
        **_serving(row),
        **_numbers(row),
        **_texts(row),
        "dedup_group": None,
        "is_primary": True,
    }


def _clean(text: str | None) -> str | None:
    return mended(text) if text else None


def _identity(row: LogRow) -> dict[str, Any]:
    return {
        "request_id": _clean(row.request_id),
        "correlation_ids": [mended(found) for found in row.correlation_ids],
        "trace_id": _clean(row.trace_id),
        "span_id": _clean(row.span_id),
        "gen_ai_response_id": _clean(row.response_id),
        "gen_ai_conversation_id": _clean(row.conversation_id),
        "attempt": max(1, min(row.attempt, 32_000)),
        "tenant_id": _clean(row.tenant_id),
        "tenant_id_source": _clean(row.tenant_id_source),
        "organisation": _clean(row.organisation),
        "user_id": _clean(row.user_id),
        "api_key_hash": _clean(row.api_key_hash),
        "client_address": _clean(row.client_address),
    }


def _times(row: LogRow, origin: Origin, ordinal: int) -> dict[str, Any]:
    return {
        "start_time": _instant(row.start_us),
        "end_time": _instant(row.end_us),
        "gen_ai_response_time_to_first_chunk": row.ttft_s,
        "time_precision_us": row.time_precision_us,
        "time_basis": row.time_basis.value,
        "clock_id": _clean(row.clock_id) or origin.source_file,
        "order_key": row.source_row * 1024 + min(ordinal, 1023),
    }


# 1900 to 2200: relative times count from 1970, naive years may be wrong, anything else is damage.
_US_MIN, _US_MAX = -2_208_988_800_000_000, 7_258_118_400_000_000


def _instant(us: int | None) -> int | None:
    return None if us is None or not _US_MIN <= us <= _US_MAX else us


def _serving(row: LogRow) -> dict[str, Any]:
    headers = {mended(str(key)): mended(str(value)) for key, value in row.response_headers.items()}
    return {
        "gen_ai_operation_name": _clean(row.operation),
        "gen_ai_provider_name": _clean(row.provider),
        "endpoint": _clean(row.endpoint),
        "gen_ai_request_model": _clean(row.request_model),
        "gen_ai_response_model": _clean(row.response_model),
        "gen_ai_request_stream": row.stream,
        "server_address": _clean(row.server_address),
        "server_port": _within(row.server_port, 65_535),
        "service_instance_id": _clean(row.replica),
        "engine_slot": _within(row.engine_slot, 2**31 - 1),
        "cache_salt": _clean(row.cache_salt),
        "lora_name": _clean(row.lora_name),
        "http_response_status_code": _within(row.status, 999),
        "error_type": _clean(row.error_type),
        "error_message": _clean(row.error_message),
        "gen_ai_response_finish_reasons": [mended(reason) for reason in row.finish_reasons] or None,
        "cache_hit_response": row.cache_hit_response,
        "response_headers": json.dumps(headers, sort_keys=True) if headers else None,
        "sample_rate": row.sample_rate,
        "disaggregation_role": _clean(row.leg),
        "bootstrap_room": _clean(row.room),
        "kv_transfer_bytes": row.transfer_bytes,
    }


def _within(value: int | None, limit: int) -> int | None:
    return value if value is not None and abs(value) <= limit else None


def _numbers(row: LogRow) -> dict[str, Any]:
    return {
        "gen_ai_usage_input_tokens": row.input_tokens,
        "gen_ai_usage_output_tokens": row.output_tokens,
        "gen_ai_usage_cache_read_input_tokens": row.cached_tokens,
        "gen_ai_usage_cache_creation_input_tokens": row.cache_creation_tokens,
        "gen_ai_usage_reasoning_output_tokens": row.reasoning_tokens,
        "client_prompt_tokens": row.client_prompt_tokens,
        "max_tokens": row.max_tokens,
        "temperature": row.temperature,
        "input_block_hashes": list(row.block_hashes) or None,
        "input_block_size": row.block_size,
    }


_NO_TEXTS: dict[str, Any] = dict.fromkeys((
    "gen_ai_system_instructions", "gen_ai_input_messages", "gen_ai_output_messages", "input_text",
    "output_text", "output_reasoning_text", "output_tool_text", "context_text", "retrieved_items",
    "input_content_state", "output_content_state", "input_gaps", "output_gaps", "input_raw_map",
    "output_raw_map", "input_digest", "output_digest", "input_chars", "output_chars",
))  # fmt: skip


def _texts(row: LogRow) -> dict[str, Any]:
    if row.input is ABSENT and row.output is ABSENT and not row.retrieved:
        state = ContentState.ABSENT.value
        return _NO_TEXTS | {"context_text": _clean(row.context), "input_content_state": state,
                            "output_content_state": state}  # fmt: skip
    prompt, answer = prompt_text(row.input), answer_text(row.output)
    reasoning, tools = reasoning_text(row.output), tool_text(row.output)
    system, others = _system_apart(row.input)
    shown = "\n".join(text for text in (answer.text, reasoning, tools) if text)
    return {
        "gen_ai_system_instructions": messages_json(system),
        "gen_ai_input_messages": messages_json(others),
        "gen_ai_output_messages": messages_json(row.output),
        "input_text": prompt.text or None,
        "output_text": answer.text or None,
        "output_reasoning_text": reasoning or None,
        "output_tool_text": tools or None,
        "context_text": _clean(row.context),
        "retrieved_items": _retrieved_json(row),
        "input_content_state": row.input.state.value,
        "output_content_state": row.output.state.value,
        "input_gaps": list(prompt.gaps) or None,
        "output_gaps": list(answer.gaps) or None,
        "input_raw_map": list(prompt.raw_map) or None,
        "output_raw_map": list(answer.raw_map) or None,
        "input_digest": _digest(prompt.text),
        "output_digest": _digest(shown),
        "input_chars": len(prompt.text) if row.input.state is not ContentState.ABSENT else None,
        "output_chars": len(shown) if row.output.state is not ContentState.ABSENT else None,
    }


def _retrieved_json(row: LogRow) -> str | None:
    if not row.retrieved:
        return None
    items = [{"owner": mended(owner), "text": mended(text)} for owner, text in row.retrieved]
    return json.dumps(items, ensure_ascii=False)


def _digest(text: str) -> str | None:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if text else None


def _system_apart(content: Content) -> tuple[Content, Content]:
    system: list[LoggedMessage] = []
    others: list[LoggedMessage] = []
    for message in content.messages:
        (system if message.role in ("system", "developer") else others).append(message)
    return Content(tuple(system), content.state), Content(tuple(others), content.state)
