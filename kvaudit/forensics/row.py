"""What a reader makes of one record: LogRow, the canonical row before it becomes a column batch.

One row per *observed attempt in one source*. Column names follow OpenTelemetry's `gen_ai.*`
attributes where one exists; `kvaudit.forensics.table` holds the mapping. `None` means "the log
does not say"; an empty string never stands for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any


class Layer(StrEnum):
    """Where in the serving path a source stands."""

    CLIENT = "client"
    GATEWAY = "gateway"
    ROUTER = "router"
    ENGINE = "engine"
    BATCH = "batch"
    DATASET = "dataset"


class TimeBasis(StrEnum):
    """How a row's start time was got."""

    ABSOLUTE = "absolute"
    NAIVE = "naive"  # wall time without a zone, or without a year: corrected after the joins
    RELATIVE = "relative"  # microseconds since the server's start: corrected by `--server-start`
    INFERRED = "inferred"  # from another field than the request's own start
    NONE = "none"


class ContentState(StrEnum):
    """What is left of a text; drives what counts as not examinable."""

    FULL = "full"
    TRUNCATED = "truncated"  # a part is missing; `gaps` say where
    REDACTED = "redacted"
    HASHED = "hashed"
    ENCRYPTED = "encrypted"
    EXTERNAL = "external"  # in another object that was not read
    ABSENT = "absent"


class PartKind(StrEnum):
    """What one part of a message holds."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_RESPONSE = "tool_call_response"
    BLOB = "blob"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message.

    Attributes:
        kind: What it holds.
        text: The text; of a tool call its arguments as logged, of a blob a description by hash.
        name, id: Of a tool call.
        gaps: Offsets in `text`, in characters, where the log left something out.
        raw_offset: Where `text` starts in the raw string that it was cut from; None = no map.
    """

    kind: PartKind
    text: str
    name: str | None = None
    id: str | None = None
    gaps: tuple[int, ...] = ()
    raw_offset: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One message of a prompt, or one choice of an answer."""

    role: str
    parts: tuple[Part, ...]
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """One side of a request: the prompt, or the answer."""

    messages: tuple[LoggedMessage, ...] = ()
    state: ContentState = ContentState.ABSENT


ABSENT = Content()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One observed attempt in one source.

    Attributes:
        source_row: Number of the record that opened the request, 1-based.
        source_byte_offset: Of that record, in the decompressed stream.
        request_id: Id as logged, prefix `chatcmpl-` kept.
        correlation_ids: Every other id seen, prefix stripped.
        is_partner: The source holds no text by kind (access log, router log); such a row is a join
            partner and never a request of its own where another row has the same id.
        attempt: 1 unless a retry is known.
        tenant_id, tenant_id_source: The tenant, and the field or rule that gave it.
        organisation: Owner of the tenant; None = the tenant itself.
        api_key_hash: As logged; a raw key must be hashed by the reader.
        start_us, end_us: Microseconds since 1970 UTC (see `time_basis`).
        ttft_s: Seconds to the first token.
        time_precision_us: 1,000,000 for a log of whole seconds.
        clock_id: Host or process whose clock was read; None = the file.
        replica: Engine replica, the domain of a KV cache.
        engine_slot: Slot within the replica (llama.cpp), or data-parallel rank.
        input_tokens: Prompt tokens reported, cached ones included.
        client_prompt_tokens: The client's own count of the prompt.
        input, output: The texts.
        context: Further own context: tool schemas, response format, attachments, retrieved items.
        retrieved: (owner, text) of retrieved items whose owner the log names.
        cache_hit_response: A gateway's response cache answered.
        leg: `prefill`, `decode` or `unified` for logs of one role.
        room: Pairing id of the legs (SGLang's bootstrap room).
        transfer_bytes: KV bytes moved between the legs.
        fields: What `--tenant-field` and `--replica-field` may look into; not stored.
    """

    source_row: int
    source_byte_offset: int | None = None
    request_id: str | None = None
    correlation_ids: tuple[str, ...] = ()
    is_partner: bool = False
    trace_id: str | None = None
    span_id: str | None = None
    response_id: str | None = None
    conversation_id: str | None = None
    attempt: int = 1
    tenant_id: str | None = None
    tenant_id_source: str | None = None
    organisation: str | None = None
    user_id: str | None = None
    api_key_hash: str | None = None
    client_address: str | None = None
    start_us: int | None = None
    end_us: int | None = None
    ttft_s: float | None = None
    time_precision_us: int | None = None
    time_basis: TimeBasis = TimeBasis.NONE
    clock_id: str | None = None
    operation: str | None = None
    provider: str | None = None
    endpoint: str | None = None
    request_model: str | None = None
    response_model: str | None = None
    stream: bool | None = None
    server_address: str | None = None
    server_port: int | None = None
    replica: str | None = None
    engine_slot: int | None = None
    cache_salt: str | None = None
    lora_name: str | None = None
    status: int | None = None
    error_type: str | None = None
    error_message: str | None = None
    finish_reasons: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    reasoning_tokens: int | None = None
    client_prompt_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    input: Content = ABSENT
    output: Content = ABSENT
    context: str | None = None
    retrieved: tuple[tuple[str, str], ...] = ()
    cache_hit_response: bool | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)
    block_hashes: tuple[int, ...] = ()
    block_size: int | None = None
    sample_rate: float | None = None
    leg: str | None = None
    room: str | None = None
    transfer_bytes: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


_NAMES = tuple(found.name for found in fields(LogRow))
_VALUES = attrgetter(*_NAMES)


def with_fields(row: LogRow, changes: Mapping[str, Any]) -> LogRow:
    """Return the row with other values; `dataclasses.replace` takes twice as long for so many."""
    return LogRow(**{**dict(zip(_NAMES, _VALUES(row), strict=True)), **changes})
