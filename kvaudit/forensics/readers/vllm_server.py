"""vLLM's server log, current (prompt at DEBUG) and 0.9-era (prompt in the `Received` line)."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvaudit.forensics.bodies import context_of, finish_of, input_content, request_facts
from kvaudit.forensics.chat_template import raw_output, templated_prompt
from kvaudit.forensics.content import content_of, text_part
from kvaudit.forensics.fields import (
    bare_id,
    first_text,
    float_of,
    int_of,
    mapping_of,
    parse_json,
    text_of,
)  # fmt: skip
from kvaudit.forensics.pending import Pending
from kvaudit.forensics.pyrepr import scan_arguments, scan_string, scan_value
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import (
    ABSENT,
    Content,
    Layer,
    LoggedMessage,
    LogRow,
    Part,
    PartKind,
    TimeBasis,
)  # fmt: skip
from kvaudit.forensics.times import US, Moment, moment_of, month_day_moment, year_for

# `VLLM_LOGGING_PREFIX` and log shippers put words in front; a quote among them would be a text.
_LINE = re.compile(
    r"[^'\"{}]{0,120}?"
    r"(?:\x1b\[[0-9;]*m)*(?:\((?P<process>[\w-]+)[^)]{0,40}pid=(?P<pid>\d+)\)(?:\x1b\[[0-9;]*m)* )?"
    r"(?P<level>DEBUG|INFO|WARNING|ERROR) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[?(?P<file>[^\] ]{1,200}):\d+\] (?P<message>.*)",
    re.DOTALL,
)
# With a logging configuration of its own a server writes JSON; these are the usual keys.
_JSON_MESSAGES = ("message", "msg", "event")
_JSON_TIMES = ("timestamp", "asctime", "time", "ts", "@timestamp")
_ID = r"(?P<id>[\w.:@/+-]{1,200})"
_DETAILS = re.compile(rf"Request {_ID} details: prompt: ")
_RECEIVED = re.compile(rf"Received request {_ID}: (?=prompt: |params: )")
_BODY = re.compile(rf"Request {_ID} JSON body: ")
_GENERATED = re.compile(
    rf"Generated response {_ID}(?P<mode> \(streaming (?:delta|complete)\))?: output: "
)
_OUTPUT_IDS = re.compile(rf"Generated response {_ID}(?: \(streaming delta\))? details: ")
_PLACEHOLDER = re.compile(r"<streaming_complete: (\d+) tokens>")
_FINISH = re.compile(
    r", (?:output_token_ids: (?P<ids>.*), )?finish_reason: (?P<reason>[\w ]+)\Z", re.DOTALL
)
# A log written for a report may hold the first few ids only; text of this many characters a token
# says that the list is no count.
_CHARS_PER_TOKEN_MAX = 16


@dataclass(slots=True)
class _Open:
    row: int
    offset: int
    request_id: str
    start_us: int | None = None
    end_us: int | None = None
    first_us: int | None = None
    basis: TimeBasis = TimeBasis.NONE
    clock: str | None = None
    prompt: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    lora: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    deltas: list[str] = field(default_factory=list)
    answers: list[tuple[str, str | None]] = field(default_factory=list)
    finish: str | None = None
    is_stream: bool | None = None


def _sniff(sample: Sample) -> float:
    found = sum(1 for line in sample.lines if _is_request_line(line))
    return 0.95 if found else 0.0


def _is_request_line(line: str) -> bool:
    logged = _logged(line)
    if logged is None:
        return False
    return any(pattern.match(logged.message) for pattern in (_DETAILS, _RECEIVED, _GENERATED))


class _Line(NamedTuple):
    """One line of the server: its time as written, its process, what it says."""

    time: str
    process: str | None
    message: str


def _logged(line: str) -> _Line | None:
    match = _LINE.match(line)
    if match is not None:
        return _Line(match["time"], match["pid"], match["message"])
    if not line.startswith("{") or ("equest" not in line and "esponse" not in line):
        return None
    item = mapping_of(parse_json(line))
    message = first_text(*(item.get(key) for key in _JSON_MESSAGES))
    if message is None:
        return None
    time = first_text(*(item.get(key) for key in _JSON_TIMES))
    return _Line(time or "", first_text(item.get("process"), item.get("pid")), message)


class _Event(NamedTuple):
    """One request line: its record, the line's parts, the message's match, the message."""

    record: RawRecord
    line: _Line
    found: re.Match[str]
    message: str


class _Log:
    """The open requests of one vLLM process group."""

    def __init__(self, context: ReadContext) -> None:
        self.context = context
        self.last_time: tuple[str | None, Moment | None] = (None, None)
        self.open: Pending[_Open] = Pending()
        self.bodies: Pending[dict[str, Any]] = Pending(items_max=10_000)

    def take(self, record: RawRecord) -> None:
        line = _logged(record.line)
        if line is None:
            return
        message = line.message
        for pattern, handle in (
            (_GENERATED, self._generated), (_DETAILS, self._details),
            (_RECEIVED, self._received), (_BODY, self._body), (_OUTPUT_IDS, self._output_ids),
        ):  # fmt: skip
            found = pattern.match(message)
            if found is not None:
                handle(_Event(record, line, found, message))
                return

    def _of(self, event: _Event) -> _Open:
        record, line, request_id = event.record, event.line, event.found["id"]
        found = self.open.get(request_id)
        if found is None:
            moment = self._moment(line)
            found = _Open(record.row, record.offset, request_id, moment.us if moment else None)
            found.basis = moment.basis if moment else TimeBasis.NONE
            found.clock = line.process
            body = self.bodies.pop(bare_id(request_id) or request_id)
            found.body = body or {}
            self.open.put(request_id, found)
        return found

    def _moment(self, line: _Line) -> Moment | None:
        if line.time != self.last_time[0]:  # many lines share a second
            found = moment_of(line.time)
            if found is None:
                year = year_for(line.time, self.context.modified_us, self.context.year)
                found = month_day_moment(line.time, year)
            self.last_time = (line.time, found)
        return self.last_time[1]

    def _seen(self, request: _Open, line: _Line) -> None:
        moment = self._moment(line)
        request.end_us = moment.us if moment else request.end_us

    def _details(self, event: _Event) -> None:
        request = self._of(event)
        end = self._prompt(request, event.message, event.found.end())
        if end is not None:
            self._prompt_ids(request, event.message, end)

    def _prompt(self, request: _Open, message: str, start: int) -> int | None:
        if message.startswith("None", start):
            return start + 4
        scanned = scan_string(message, start)
        if scanned is None:
            self.context.damage("prompt is cut inside its quotes")
            return None
        request.prompt = scanned.value
        self.open.put(request.request_id, request, len(scanned.value))
        return scanned.end

    def _prompt_ids(self, request: _Open, message: str, start: int) -> None:
        mark = "prompt_token_ids: ["
        position = message.find(mark, start)
        if position < 0:
            return
        end = message.find("]", position)
        ids = message[position + len(mark) : end if end > 0 else None]
        if ids.strip():
            request.prompt_tokens = ids.count(",") + 1

    def _received(self, event: _Event) -> None:
        request = self._of(event)
        position = event.found.end()
        if event.message.startswith("prompt: ", position):
            end = self._prompt(request, event.message, position + len("prompt: "))
            if end is None:
                return
            self._prompt_ids(request, event.message, end)
            position = end + 2
        if event.message.startswith("params: SamplingParams(", position):
            scanned = scan_arguments(event.message, position + len("params: SamplingParams("))
            if scanned is not None:
                request.params = scanned.value
                position = scanned.end
        lora = event.message.find("lora_request: ", position)
        if lora >= 0 and not event.message.startswith("None", lora + 14):
            value = scan_value(event.message, lora + 14)
            name = mapping_of(value.value).get("lora_name") if value else None
            request.lora = text_of(name)

    def _body(self, event: _Event) -> None:
        body = parse_json(event.message[event.found.end() :])
        if not isinstance(body, dict):
            scanned = scan_value(event.message, event.found.end())
            body = scanned.value if scanned is not None else None
        if isinstance(body, dict):
            key = text_of(body.get("request_id")) or event.found["id"]
            self.bodies.put(key, body, len(event.message))
            for _ in self.bodies.overflow():
                self.context.damage("request body without a request")

    def _output_ids(self, event: _Event) -> None:
        request = self._of(event)
        position = event.message.find("[", event.found.end())
        end = event.message.find("]", position)
        ids = event.message[position + 1 : end] if position >= 0 else ""
        if ids.strip():
            request.output_tokens = (request.output_tokens or 0) + ids.count(",") + 1

    def _generated(self, event: _Event) -> None:
        request = self._of(event)
        self._seen(request, event.line)
        scanned = scan_string(event.message, event.found.end())
        if scanned is None:
            self.context.damage("answer is cut inside its quotes")
            return
        tail = _FINISH.match(event.message, scanned.end)
        reason = tail["reason"] if tail is not None else None
        ids = (tail["ids"] or "").strip("[]") if tail is not None else ""
        count = ids.count(",") + 1 if ids else 0
        if count and len(scanned.value) <= count * _CHARS_PER_TOKEN_MAX:
            request.output_tokens = (request.output_tokens or 0) + count
        mode = event.found["mode"] or ""
        self.open.put(request.request_id, request, len(scanned.value))
        if "delta" in mode:
            request.is_stream = True
            request.first_us = request.first_us or request.end_us
            request.deltas.append(scanned.value)
            request.finish = request.finish or finish_of(reason)
        elif "complete" in mode:
            request.is_stream = True
            self._completed(request, scanned.value)
        else:
            request.is_stream = False
            request.answers.append((scanned.value, finish_of(reason)))

    def _completed(self, request: _Open, text: str) -> None:
        placeholder = _PLACEHOLDER.fullmatch(text)
        if placeholder is not None:
            request.output_tokens = int(placeholder.group(1))
        else:
            request.answers.append((text, request.finish or "stop"))


def _answer(request: _Open) -> Content:
    """Return the final texts; the deltas where the client left before one was written."""
    if request.answers:
        return content_of(
            [LoggedMessage("assistant", _answer_parts(text), reason)
             for text, reason in request.answers]
        )  # fmt: skip
    if not request.deltas:
        return ABSENT
    parts = tuple(part for part in _delta_parts(request.deltas) if part.text)
    return content_of([LoggedMessage("assistant", parts, request.finish)])


_CALLS = re.compile(r"\A\[tool_calls: (?P<calls>.*)\]\Z", re.DOTALL)
_CALL = re.compile(r"(?P<name>[\w.-]{1,200})\((?=[{\[\")])")


def _answer_parts(text: str) -> tuple[Part, ...]:
    calls = _CALLS.match(text)
    if calls is None:
        return tuple(part for message in raw_output(text).messages for part in message.parts)
    return tuple(_calls(calls["calls"])) or (text_part(text),)


def _calls(text: str) -> Iterator[Part]:
    decoder = json.JSONDecoder()
    position = 0
    while (found := _CALL.search(text, position)) is not None:
        try:
            _, end = decoder.raw_decode(text, found.end())
        except ValueError:
            end = len(text)
        arguments = text[found.end() : end]
        yield text_part(arguments, PartKind.TOOL_CALL, name=found["name"])
        position = max(end, found.end() + 1)


# A delta is text, reasoning and tool calls, as far as it has them, joined by a space.
_DELTA = re.compile(
    r"\A(?P<text>.*?)(?:(?:\A|(?<=.) )\[reasoning: (?P<reasoning>.*?)\])?"
    r"(?:(?:\A| )\[tool_calls: (?P<calls>.*)\])?\Z",
    re.DOTALL,
)


def _delta_parts(deltas: list[str]) -> Iterator[Part]:
    pieces: dict[PartKind, list[str]] = {}
    for delta in deltas:
        mark = _DELTA.match(delta) if delta.endswith("]") else None
        if mark is None:
            pieces.setdefault(PartKind.TEXT, []).append(delta)
            continue
        for kind, name in (
            (PartKind.TEXT, "text"), (PartKind.REASONING, "reasoning"),
            (PartKind.TOOL_CALL, "calls"),
        ):  # fmt: skip
            if mark[name]:
                pieces.setdefault(kind, []).append(mark[name])
    for kind, found in pieces.items():
        yield text_part("".join(found), kind)


def _row(request: _Open) -> LogRow:
    params, body = request.params, request.body
    extra = mapping_of(params.get("extra_args"))
    facts = request_facts(body)
    prompt = _prompt_content(request)
    output = _answer(request)
    tenant = text_of(extra.get("tenant"))
    tokens = request.prompt_tokens
    if tokens is not None and len(request.prompt or "") > _CHARS_PER_TOKEN_MAX * tokens:
        tokens = None
    ttft = None
    if request.first_us is not None and request.start_us is not None:
        # The stamps are whole seconds: the first token came at most this late.
        ttft = (request.first_us - request.start_us) / US + 1.0
    return LogRow(
        source_row=request.row,
        source_byte_offset=request.offset,
        request_id=request.request_id,
        correlation_ids=tuple(filter(None, (bare_id(request.request_id),))),
        response_id=request.request_id,
        tenant_id=first_text(tenant, facts.user),
        tenant_id_source="params.extra_args.tenant"
        if tenant
        else "body.user"
        if facts.user
        else None,
        user_id=facts.user,
        start_us=request.start_us,
        end_us=request.end_us,
        ttft_s=ttft,
        time_precision_us=US,
        time_basis=request.basis,
        request_model=facts.model,
        stream=request.is_stream if request.is_stream is not None else facts.stream,
        cache_salt=facts.cache_salt,
        lora_name=request.lora,
        status=200 if request.answers else None,
        finish_reasons=tuple(m.finish_reason for m in output.messages if m.finish_reason),
        input_tokens=tokens,
        output_tokens=request.output_tokens,
        max_tokens=int_of(params.get("max_tokens")) or facts.max_tokens,
        temperature=float_of(params.get("temperature")),
        input=prompt,
        output=output,
        context=context_of(body),
        fields={"params": params, "body": body},
    )


def _prompt_content(request: _Open) -> Content:
    if request.prompt is not None:
        return templated_prompt(request.prompt)
    return input_content(request.body) if request.body else ABSENT


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    log = _Log(context)
    for record in records:
        log.take(record)
        for request in log.open.overflow():
            yield _row(request)
    for request in log.open.drain():
        yield _row(request)


FORMAT = Format(
    name="vllm-server",
    title="vLLM server log",
    shape=Shape.LINES,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
    is_stateful=True,
)
