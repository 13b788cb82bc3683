"""OpenTelemetry GenAI events (OTLP/JSON): the whole exchange on one event, or a message an event.

Conventions 1.37 and later put everything on `gen_ai.client.inference.operation.details`. Until 1.36
every message was an event of its own; the span of the same trace and span id tells the rest and may
reach the file before or after them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kvaudit.forensics.bodies import finish_of, message_of
from kvaudit.forensics.content import content_of
from kvaudit.forensics.fields import float_of, int_of, mapping_of, text_of
from kvaudit.forensics.genai import answer_of, attribute_row, prompt_of, span_row
from kvaudit.forensics.otlp import Signal, field_of, id_of, log_records, plain, spans
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LoggedMessage, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of, us_after

_DETAILS = "gen_ai.client.inference.operation.details"
_CHOICE = "gen_ai.choice"
_ROLES = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant", "gen_ai.tool.message": "tool",
}  # fmt: skip


@dataclass(slots=True)
class _Open:
    """The events and the span of one call, as far as they came.

    Attributes:
        first: The record that came first.
        signal: The event or span that tells most of the attributes.
        prompt: (time, order, message) of the prompt's messages.
        choices: By index.
    """

    first: RawRecord
    signal: Signal
    span: Signal | None = None
    prompt: list[tuple[int, int, LoggedMessage]] = field(default_factory=list)
    choices: dict[int, LoggedMessage] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int | None = None


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            any(_is_genai(signal) for signal in log_records(item))
            or any(key.startswith("gen_ai.") for s in spans(item) for key in s.attributes)
        )
    ) * (0.95 if any(_name(s) for o in sample.objects for s in log_records(o)) else 0.0)


def _name(signal: Signal) -> str | None:
    name = text_of(field_of(signal.item, "eventName")) or text_of(
        signal.attributes.get("event.name")
    )
    return name if name and name.startswith("gen_ai.") else None


def _is_genai(signal: Signal) -> bool:
    return _name(signal) is not None


def _key(signal: Signal) -> str | None:
    trace, span = id_of(signal.item, "traceId"), id_of(signal.item, "spanId")
    return f"{trace}/{span}" if trace and span else None


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    pending: Pending[_Open] = Pending()
    for record in records:
        for signal in log_records(record.data):
            if _name(signal) == _DETAILS:
                yield _details_row(record, signal)
            elif _name(signal) is not None:
                _take_event(pending, record, signal, context)
        for signal in spans(record.data):
            if any(key.startswith("gen_ai.") for key in signal.attributes):
                _take_span(pending, record, signal)
        for found in pending.overflow():
            yield _row(found)
    for found in pending.drain():
        yield _row(found)


def _details_row(record: RawRecord, signal: Signal) -> LogRow:
    """Return the row of one event that holds the whole exchange; its time is the end."""
    body = plain(signal.item.get("body"))
    found = {**signal.attributes, **(body if isinstance(body, Mapping) else {})}
    signal = Signal(signal.resource, signal.item, found)
    end = moment_of(field_of(signal.item, "timeUnixNano"))
    duration = float_of(found.get("gen_ai.client.operation.duration"))
    start_us = us_after(end.us, -duration) if end and duration is not None else None
    row = attribute_row(record, signal)
    output = answer_of(found)
    status = row.status if row.error_type or row.status != 200 else 200
    return replace(
        row,
        start_us=start_us if start_us is not None else end.us if end else None,
        end_us=end.us if end else None,
        time_precision_us=end.precision_us if end else None,
        time_basis=TimeBasis.ABSOLUTE if start_us is not None else TimeBasis.INFERRED,
        input=prompt_of(found),
        output=output,
        status=status,
        error_message=row.error_message or text_of(found.get("error.message")),
        finish_reasons=row.finish_reasons
        or tuple(m.finish_reason for m in output.messages if m.finish_reason),
    )


def _take_event(
    pending: Pending[_Open], record: RawRecord, signal: Signal, context: ReadContext
) -> None:
    key = _key(signal)
    if key is None:
        context.damage("event without trace and span id")
        return
    held = pending.get(key) or _Open(record, signal)
    moment = moment_of(field_of(signal.item, "timeUnixNano")) or moment_of(
        field_of(signal.item, "observedTimeUnixNano")
    )
    if moment is not None:
        held.first_us = min(held.first_us or moment.us, moment.us)
        held.last_us = max(held.last_us or moment.us, moment.us)
    body = mapping_of(plain(signal.item.get("body")))
    name = _name(signal)
    if name == _CHOICE:
        message = message_of(mapping_of(body.get("message")) or body, "assistant")
        reason = finish_of(body.get("finish_reason")) or message.finish_reason
        index = int_of(body.get("index")) or 0
        held.choices[index] = LoggedMessage(message.role, message.parts, reason)
    elif name in _ROLES:
        item = {"role": _ROLES[name], **body}
        if _ROLES[name] == "tool" and "content" in body:
            item["tool_call_id"] = body.get("id")
        held.prompt.append((moment.us if moment else 0, len(held.prompt), message_of(item)))
    pending.put(key, held, len(str(body)))


def _take_span(pending: Pending[_Open], record: RawRecord, signal: Signal) -> None:
    key = _key(signal) or f"{record.row}/{id(signal.item)}"
    held = pending.get(key) or _Open(record, signal)
    held.span = signal
    pending.put(key, held, 200)


def _row(held: _Open) -> LogRow:
    prompt = content_of([message for *_, message in sorted(held.prompt, key=lambda m: m[:2])])
    output = content_of([held.choices[index] for index in sorted(held.choices)])
    if held.span is not None:
        row = span_row(held.first, held.span)
    else:
        row = replace(
            attribute_row(held.first, held.signal),
            start_us=held.first_us,
            end_us=held.last_us,
            time_precision_us=1,
            time_basis=TimeBasis.INFERRED if held.first_us is not None else TimeBasis.NONE,
            status=200 if held.choices else None,
        )
    reasons = tuple(m.finish_reason for m in output.messages if m.finish_reason)
    return replace(
        row,
        input=prompt if prompt.messages else row.input,
        output=output if output.messages else row.output,
        finish_reasons=row.finish_reasons or reasons,
    )


FORMAT = Format(
    name="otel-event",
    title="OpenTelemetry GenAI events (OTLP/JSON)",
    shape=Shape.OBJECTS,
    layer=Layer.CLIENT,
    sniff=_sniff,
    read=_read,
    keys=("resourceLogs",),
    is_stateful=True,
)
