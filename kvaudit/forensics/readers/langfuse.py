"""Langfuse observations: blob-storage export (snake_case) and API (camelCase), v1 and v2."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.bodies import (
    Usage,
    context_of,
    finish_reasons,
    input_content,
    output_content,
    request_facts,
    usage_of,
)
from kvaudit.forensics.fields import (
    first_text,
    float_of,
    int_of,
    look_up,
    mapping_of,
    opened,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of

_TYPES = ("GENERATION", "AGENT", "SPAN", "EVENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR",
          "EMBEDDING", "GUARDRAIL")  # fmt: skip
# One of them says that it is an observation; an export may leave out any of its columns.
_TELLING = ("level", "parent_observation_id", "project_id", "usage_details", "observation_id",
            "completion_start_time", "model_parameters", "provided_model_name")  # fmt: skip
_TENANTS = ("metadata.tenant", "metadata.tenant_id", "metadata.team_id", "metadata.org_id",
            "metadata.organization_id", "project_id", "projectId")  # fmt: skip


def _get(data: Mapping[str, Any], snake: str) -> Any:
    head, *rest = snake.split("_")
    camel = head + "".join(part.capitalize() for part in rest)
    return data.get(snake, data.get(camel))


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            item.get("type") in _TYPES
            and _get(item, "trace_id") is not None
            and _get(item, "start_time") is not None
            and any(_get(item, key) is not None for key in _TELLING)
        )
    )


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    newest: Pending[RawRecord] = Pending()
    for record in records:
        if record.data.get("type") != "GENERATION":
            continue  # parents repeat the text of their generations
        key = text_of(record.data.get("id"))
        if key is None:
            context.damage("observation without an id")
            continue
        held = newest.get(key)
        if held is not None and _updated(held.data) > _updated(record.data):
            continue
        if held is not None:
            record = RawRecord(held.row, held.offset, record.data)
            newest.pop(key)
        newest.put(key, record, len(str(record.data.get("input"))))
        for old in newest.overflow():
            yield _row(old, old.data)
    for last in newest.drain():
        yield _row(last, last.data)


def _updated(data: Mapping[str, Any]) -> int:
    moment = moment_of(_get(data, "updated_at"), naive_is_utc=True)
    return moment.us if moment else 0


def _row(record: RawRecord, data: Mapping[str, Any]) -> LogRow:
    parameters = mapping_of(_get(data, "model_parameters"))
    output = output_content(data.get("output"))
    answer = mapping_of(data.get("output"))
    prompt = opened(data.get("input"))
    usage = _usage(data)
    facts = request_facts({**parameters, **(prompt if isinstance(prompt, Mapping) else {})})
    start = moment_of(_get(data, "start_time"), naive_is_utc=True)
    end = moment_of(_get(data, "end_time"), naive_is_utc=True)
    tenant_field = next((path for path in _TENANTS if text_of(look_up(data, path))), None)
    failed = data.get("level") == "ERROR"
    message = text_of(_get(data, "status_message"))
    model = first_text(_get(data, "provided_model_name"), data.get("model"))
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=text_of(data.get("id")),
        correlation_ids=other_ids(_get(data, "trace_id"), answer.get("id")),
        trace_id=text_of(_get(data, "trace_id")),
        conversation_id=text_of(_get(data, "session_id")),
        tenant_id=text_of(look_up(data, tenant_field)) if tenant_field else None,
        tenant_id_source=tenant_field,
        user_id=text_of(_get(data, "user_id")),
        start_us=start.us if start else None,
        end_us=end.us if end else None,
        ttft_s=float_of(_get(data, "time_to_first_token")),
        time_precision_us=start.precision_us if start else None,
        time_basis=start.basis if start else TimeBasis.NONE,
        operation=text_of(data.get("name")),
        request_model=model,
        response_model=model,
        stream=True if _get(data, "completion_start_time") is not None else None,
        status=_status(message) if failed else None if output.messages == () else 200,
        error_type="error" if failed else None,
        error_message=message if failed else None,
        finish_reasons=finish_reasons(output) or (("error",) if failed else ()),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_creation_tokens=usage.cache_creation_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        max_tokens=facts.max_tokens,
        temperature=facts.temperature,
        input=input_content(prompt) if prompt else input_content(None),
        output=output,
        context=context_of(prompt) if isinstance(prompt, Mapping) else None,
        fields=data,
    )


def _usage(data: Mapping[str, Any]) -> Usage:
    details = mapping_of(_get(data, "usage_details"))
    if not details:
        own = usage_of(data)
        return own._replace(
            input_tokens=own.input_tokens
            if own.input_tokens is not None
            else int_of(_get(data, "prompt_tokens")),
            output_tokens=own.output_tokens
            if own.output_tokens is not None
            else int_of(_get(data, "completion_tokens")),
        )
    cached = int_of(details.get("input_cached_tokens", details.get("cache_read_input_tokens")))
    return Usage(
        int_of(details.get("input", details.get("prompt_tokens"))),
        int_of(details.get("output", details.get("completion_tokens"))),
        cached,
        int_of(details.get("cache_creation_input_tokens", details.get("input_cache_creation"))),
        int_of(details.get("output_reasoning_tokens", details.get("reasoning_tokens"))),
    )


def _status(message: str | None) -> int | None:
    """Return the status that an SDK's error text begins with, such as `Error code: 429 - …`."""
    words = (message or "").replace(":", " ").split()[:4]
    return next((int(word) for word in words if word.isdecimal() and len(word) == 3), None)


FORMAT = Format(
    name="langfuse",
    title="Langfuse observations",
    shape=Shape.OBJECTS,
    layer=Layer.CLIENT,
    sniff=_sniff,
    read=_read,
    keys=("id", "trace_id", "project_id", "type", "start_time", "input", "output", "level",
          "usage_details", "provided_model_name"),
    is_stateful=True,
)  # fmt: skip
