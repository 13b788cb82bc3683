"""Public chat data sets: WildChat, LMSYS-Chat and ShareGPT shapes, a row per assistant turn.

The first turn keeps the conversation's id; later ones get `#2`, `#3`, … behind it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.bodies import message_of
from kvaudit.forensics.content import content_of
from kvaudit.forensics.fields import first_text, list_of, mapping_of, text_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LoggedMessage, LogRow, TimeBasis
from kvaudit.forensics.times import moment_of

_ASSISTANTS = ("assistant", "gpt", "chatgpt", "bot", "model", "bing", "bard")
_ROLE_NAMES = {"human": "user", **dict.fromkeys(_ASSISTANTS, "assistant")}
_IDS = ("conversation_hash", "conversation_id", "id")


def _sniff(sample: Sample) -> float:
    return 0.9 * sample.share(
        lambda item: (
            any(key in item for key in _IDS)
            and (
                any(_is_turn(turn) for turn in _turns(item)[:2])
                or item.get("conversations", item.get("conversation")) == []
            )
        )
    )


def _turns(item: Mapping[str, Any]) -> list[Any]:
    return list_of(item.get("conversation")) or list_of(item.get("conversations"))


def _is_turn(turn: object) -> bool:
    fields = mapping_of(turn)
    return ("role" in fields and "content" in fields) or ("from" in fields and "value" in fields)


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        turns = [mapping_of(turn) for turn in _turns(record.data) if _is_turn(turn)]
        if not turns:
            context.damage("no conversation")
            continue
        yield from _rows(record, record.data, turns)


def _rows(
    record: RawRecord, data: Mapping[str, Any], turns: list[Mapping[str, Any]]
) -> Iterator[LogRow]:
    conversation = first_text(*(data.get(key) for key in _IDS))
    history: list[LoggedMessage] = []
    number = 0
    for turn in turns:
        message = message_of(turn)
        role = _ROLE_NAMES.get(message.role.lower(), message.role)
        message = LoggedMessage(role, message.parts)
        if role == "assistant":
            number += 1
            yield _row(record, data, turn, conversation, number, history, message)
        history.append(message)
    if not number:
        yield _row(record, data, turns[-1], conversation, 1, history, None)


def _row(
    record: RawRecord,
    data: Mapping[str, Any],
    turn: Mapping[str, Any],
    conversation: str | None,
    number: int,
    history: list[LoggedMessage],
    answer: LoggedMessage | None,
) -> LogRow:
    moment = moment_of(turn.get("timestamp")) or moment_of(data.get("timestamp"))
    address = first_text(turn.get("hashed_ip"), data.get("hashed_ip"))
    suffix = f"#{number}" if number > 1 else ""
    return LogRow(
        source_row=record.row,
        source_byte_offset=record.offset or None,
        request_id=f"{conversation}{suffix}" if conversation else None,
        conversation_id=conversation,
        tenant_id=address or conversation,
        tenant_id_source="hashed_ip" if address else "conversation" if conversation else None,
        client_address=address,
        start_us=moment.us if moment else None,
        end_us=moment.us if moment else None,
        time_precision_us=moment.precision_us if moment else None,
        time_basis=moment.basis if moment else TimeBasis.NONE,
        request_model=text_of(data.get("model")),
        response_model=text_of(data.get("model")),
        status=200 if answer is not None else None,
        input=content_of(list(history)),
        output=content_of([answer] if answer is not None else []),
        fields=data,
    )


FORMAT = Format(
    name="chat-dataset",
    title="WildChat, LMSYS-Chat, ShareGPT",
    shape=Shape.OBJECTS,
    layer=Layer.DATASET,
    sniff=_sniff,
    read=_read,
    keys=("conversation_hash", "conversation_id", "conversation", "conversations", "hashed_ip"),
)
