"""Azure API Management, `ApiManagementGatewayLlmLog`: several rows a request, in any order."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvaudit.forensics.bodies import finish_reasons, input_content, message_of
from kvaudit.forensics.content import content_of
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    int_of,
    mapping_of,
    opened,
    other_ids,
    parse_json,
    text_of,
)
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import ABSENT, Content, Layer, LogRow, TimeBasis
from kvaudit.forensics.times import Moment, moment_of

_PIECE_CHARS_MIN = 30_000  # a row as long as this was split, and the next goes on with it


@dataclass(slots=True)
class _Open:
    row: int
    offset: int
    rows: dict[int, Mapping[str, Any]] = field(default_factory=dict)


def _sniff(sample: Sample) -> float:
    return sample.share(_is_llm_row)


def _is_llm_row(item: Mapping[str, Any]) -> bool:
    data = _flat(item)
    return "CorrelationId" in data and (
        "RequestMessages" in data or "ResponseMessages" in data or "SequenceNumber" in data
    )


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    pending: Pending[_Open] = Pending()
    for record in records:
        data = _flat(record.data)
        key = text_of(data.get("CorrelationId"))
        if key is None:
            context.damage("row without CorrelationId")
            continue
        held = pending.get(key) or _Open(record.row, record.offset)
        number = int_of(data.get("SequenceNumber"))
        held.rows.setdefault(len(held.rows) if number is None else number, data)
        pending.put(key, held, 200 + _size(data))
        for found in pending.overflow():
            yield _row(found)
    for found in pending.drain():
        yield _row(found)


def _flat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with the columns that Event Hub exports put under `properties`."""
    properties = mapping_of(data.get("properties"))
    if not properties:
        return data
    raised = {key[:1].upper() + key[1:]: value for key, value in properties.items()}
    return {**{key[:1].upper() + key[1:]: value for key, value in data.items()}, **raised}


def _size(data: Mapping[str, Any]) -> int:
    return sum(len(str(data.get(key) or "")) for key in ("RequestMessages", "ResponseMessages"))


def _row(held: _Open) -> LogRow:
    rows = [held.rows[number] for number in sorted(held.rows)]
    head = rows[0]
    stamps = (first_text(row.get("TimeGenerated"), row.get("Time")) for row in rows)
    moments = [found for stamp in stamps if (found := moment_of(stamp, naive_is_utc=True))]
    start: Moment | None = min(moments, default=None)
    output = _answer(rows)
    counted = next((row for row in rows if int_of(row.get("TotalTokens"))), head)
    return LogRow(
        source_row=held.row,
        source_byte_offset=held.offset or None,
        request_id=text_of(head.get("CorrelationId")),
        correlation_ids=other_ids(*(row.get("RequestId") for row in rows)),
        response_id=first_text(*(row.get("RequestId") for row in rows)),
        start_us=start.us if start else None,
        time_precision_us=start.precision_us if start else None,
        time_basis=TimeBasis.ABSOLUTE if start else TimeBasis.NONE,
        operation="chat",
        provider="azure",
        request_model=first_text(*(row.get("DeploymentName") for row in rows)),
        response_model=first_text(*(row.get("ModelName") for row in rows)),
        stream=bool_of(head.get("IsStreamCompletion")),
        server_address=text_of(head.get("Region")),
        status=200 if output.messages else None,
        finish_reasons=finish_reasons(output),
        input_tokens=int_of(counted.get("PromptTokens")) or None,
        output_tokens=int_of(counted.get("CompletionTokens")) or None,
        input=_prompt(rows),
        output=output,
        fields=head,
    )


def _prompt(rows: list[Mapping[str, Any]]) -> Content:
    messages = _messages(rows, "RequestMessages")
    return input_content(messages) if messages else ABSENT


def _answer(rows: list[Mapping[str, Any]]) -> Content:
    messages = _messages(rows, "ResponseMessages")
    return content_of([message_of(item, "assistant") for item in messages])


def _messages(rows: list[Mapping[str, Any]], column: str) -> list[dict[str, Any]]:
    """Return the messages of one column over all rows, with split ones put together.

    Messages above 32 KB come in pieces: of the JSON text, or of a message's content, where a row
    that begins with the role of the last message goes on with it.
    """
    made: list[dict[str, Any]] = []
    text = ""
    was_long = False
    for row in rows:
        value = row.get(column)
        if isinstance(value, str) and value:
            whole = parse_json(text + value)
            if whole is None:
                text += value
                continue
            value, text = whole, ""
        found = opened(value)
        for item in found if isinstance(found, list) else [found] if found else []:
            fields = dict(mapping_of(item))
            is_next = was_long or column == "ResponseMessages"
            if made and is_next and _goes_on(made[-1], fields):
                made[-1]["content"] = f"{made[-1]['content']}{fields['content']}"
            elif fields:
                made.append(fields)
            was_long = False
        if found:
            was_long = len(str(row.get(column))) >= _PIECE_CHARS_MIN
    return made


def _goes_on(last: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether a message is the next piece of the last one."""
    both = isinstance(last.get("content"), str) and isinstance(item.get("content"), str)
    return both and last.get("role") == item.get("role") and not item.get("tool_calls")


FORMAT = Format(
    name="azure-llm-log",
    title="Azure API Management, ApiManagementGatewayLlmLog",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("TimeGenerated", "CorrelationId", "SequenceNumber", "RequestMessages",
          "ResponseMessages", "PromptTokens", "DeploymentName"),
    is_stateful=True,
)  # fmt: skip
