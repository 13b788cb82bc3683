"""Chunk logs of a proxy: one record for the request, one for each chunk, requests interleaved."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvaudit.forensics.bodies import (
    context_of,
    error_of,
    finish_reasons,
    input_content,
    output_content,
    request_facts,
    usage_of,
)  # fmt: skip
from kvaudit.forensics.fields import first_text, int_of, other_ids, parse_json, text_of
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import ABSENT, Layer, LogRow, TimeBasis
from kvaudit.forensics.streams import StreamedAnswer
from kvaudit.forensics.times import US, Moment, moment_of

_ID = ("rid", "request_id", "req_id", "requestId", "id", "trace_id")
_KIND = ("kind", "type", "event", "event_type", "direction")
_DATA = ("data", "body", "payload", "chunk", "message", "content")
_TIME = ("ts", "timestamp", "time", "created_at", "@timestamp")
_TENANT = ("tenant", "tenant_id", "org", "organization_id", "team_id", "account", "customer")
_CHUNKS = ("chunk", "delta", "stream", "response.chunk", "response_chunk", "sse")
_REQUESTS = ("request", "req", "input", "request.received", "prompt")
_ANSWERS = ("response", "resp", "output", "answer", "response.complete")
_EARLY_MAX = 64  # chunks that wait for one that may be lost
_LINGER_RECORDS = 2_000  # how long a complete request waits for its usage, its status, its end


@dataclass(slots=True)
class _Open:
    row: int
    offset: int
    request_id: str
    request: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    start: Moment | None = None
    first: Moment | None = None
    end: Moment | None = None
    status: int | None = None
    error: Mapping[str, Any] = field(default_factory=dict)
    streamed: StreamedAnswer = field(default_factory=StreamedAnswer)
    next_chunk: int = 0
    early: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def add_chunk(self, sequence: int | None, chunk: Mapping[str, Any]) -> None:
        """Take a chunk; one that came before its turn waits, a second copy is dropped."""
        number = self.next_chunk + len(self.early) if sequence is None else sequence
        if number < self.next_chunk:
            return
        self.early.setdefault(number, chunk)
        while self.early and (self.next_chunk in self.early or len(self.early) > _EARLY_MAX):
            self._add_first()

    def assembled(self) -> StreamedAnswer:
        """Return the answer with all that waited, in order."""
        while self.early:
            self._add_first()
        return self.streamed

    def _add_first(self) -> None:
        first = min(self.early)
        self.streamed.add(self.early.pop(first))
        self.next_chunk = first + 1

    @property
    def has_chunks(self) -> bool:
        """Whether anything was streamed."""
        return bool(self.early) or self.streamed.chunks > 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing but a closing word can come any more."""
        return bool(self.answer or self.error) or self.streamed.is_finished


def _sniff(sample: Sample) -> float:
    chunks = sample.share(lambda item: _kind(item) in _CHUNKS and bool(_id(item)))
    others = sample.share(lambda item: _kind(item) in (*_REQUESTS, *_ANSWERS) and bool(_id(item)))
    return 0.85 if chunks and chunks + others > 0.8 else 0.0


def _kind(item: Mapping[str, Any]) -> str:
    return str(next((item[key] for key in _KIND if isinstance(item.get(key), str)), "")).lower()


def _id(item: Mapping[str, Any]) -> str | None:
    return first_text(*(item.get(key) for key in _ID))


def _data(item: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _DATA:
        value = item.get(key)
        if isinstance(value, str):
            value = parse_json(value.strip().removeprefix("data:").strip())
        if isinstance(value, Mapping):
            return value
    return {}


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    pending: Pending[_Open] = Pending()
    complete: OrderedDict[str, int] = OrderedDict()
    for number, record in enumerate(records):
        request_id = _id(record.data)
        if request_id is None:
            context.damage("chunk record without an id")
            continue
        found = pending.get(request_id)
        if found is None:
            found = _Open(record.row, record.offset, request_id)
        size = _take(found, record.data)
        pending.put(request_id, found, size)
        if found.is_complete:
            complete.setdefault(request_id, number)
        while complete and next(iter(complete.values())) < number - _LINGER_RECORDS:
            item = pending.pop(complete.popitem(last=False)[0])
            if item is not None:
                yield _row(item)
        for item in pending.overflow():
            complete.pop(item.request_id, None)
            yield _row(item)
    for item in pending.drain():
        yield _row(item)


def _take(found: _Open, item: Mapping[str, Any]) -> int:
    """Add one record to its request; returns about how many characters it holds."""
    kind, data = _kind(item), _data(item)
    moment = moment_of(next((item[key] for key in _TIME if key in item), None))
    found.start = found.start or moment
    found.end = moment or found.end
    found.status = int_of(item.get("status")) or found.status
    if kind in _CHUNKS:
        if data:
            if found.first is None and _says_something(data):
                found.first = moment
            found.add_chunk(int_of(item.get("seq", item.get("index"))), data)
    elif kind in _REQUESTS:
        found.request = data
        found.fields.update(item)
    elif kind in _ANSWERS:
        found.answer = data
    elif data.get("error") is not None or kind == "error":
        found.error = data
    for key, value in item.items():
        found.fields.setdefault(key, value)
    return 200 + sum(len(str(value)) for value in data.values() if isinstance(value, str | list))


def _says_something(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk holds a token; many servers send an empty one at once."""
    trial = StreamedAnswer()
    trial.add(chunk)
    return any(message.parts for message in trial.content().messages)


def _row(found: _Open) -> LogRow:
    streamed = found.assembled()
    body = found.answer
    output = output_content(body) if body else streamed.content() if found.has_chunks else ABSENT
    usage = usage_of(body) if body else streamed.usage
    facts = request_facts(found.request)
    tenant_key = next((key for key in _TENANT if text_of(found.fields.get(key))), None)
    error_type, error_message = error_of(found.error or body)
    response_id = first_text(streamed.response_id, body.get("id"))
    is_stream = found.has_chunks
    ttft = None
    if is_stream and found.first and found.start:
        ttft = (found.first.us - found.start.us) / US
    return LogRow(
        source_row=found.row,
        source_byte_offset=found.offset,
        request_id=found.request_id,
        correlation_ids=other_ids(response_id),
        response_id=response_id,
        conversation_id=first_text(found.fields.get("session"), found.fields.get("session_id")),
        tenant_id=text_of(found.fields.get(tenant_key)) if tenant_key else None,
        tenant_id_source=tenant_key,
        user_id=facts.user,
        start_us=found.start.us if found.start else None,
        end_us=found.end.us if found.end else None,
        ttft_s=ttft,
        time_precision_us=found.start.precision_us if found.start else None,
        time_basis=found.start.basis if found.start else TimeBasis.NONE,
        request_model=facts.model,
        response_model=first_text(streamed.model, body.get("model")),
        stream=is_stream or facts.stream,
        cache_salt=facts.cache_salt,
        status=found.status or (200 if output.messages and not found.error else None),
        error_type=error_type,
        error_message=error_message,
        finish_reasons=finish_reasons(output) or (("error",) if found.error else ()),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_creation_tokens=usage.cache_creation_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        max_tokens=facts.max_tokens,
        temperature=facts.temperature,
        input=input_content(found.request) if found.request else ABSENT,
        output=output,
        context=context_of(found.request),
        fields=found.fields,
    )


FORMAT = Format(
    name="generic-chunks",
    title="Generic chunk log of a proxy",
    shape=Shape.OBJECTS,
    layer=Layer.GATEWAY,
    sniff=_sniff,
    read=_read,
    keys=("ts", "rid", "kind", "seq", "data"),
    is_stateful=True,
)
