"""llama-server log: bodies with `-v`, else slots and token counts alone; times since its start.

A request is three log calls without an id: `done request`, `request:`, `response:`. They are paired
in order; a streamed answer is found among the streams that ended before; the slot's task is the one
that made as many tokens.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvaudit.forensics.exchange import exchanged
from kvaudit.forensics.fields import mapping_of, other_ids, parse_json, text_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis, with_fields
from kvaudit.forensics.streams import StreamedAnswer
from kvaudit.forensics.times import US, moment_of

_PREFIX = re.compile(
    r"(?:\x1b\[[0-9;]*m)*(?:(?P<min>\d+)\.(?P<s>\d\d)\.(?P<ms>\d{3})\.(?P<us>\d{3}) )?"
    r"(?:(?P<level>[IWED]) )?(?P<body>(?:srv|slot|que|main|cmn|init|llama)[ :].*)",
    re.DOTALL,
)
_DONE = re.compile(
    r"srv +log_server_r: (?:done )?request: (?P<method>[A-Z]+) (?P<path>/\S{0,200})"
    r" (?P<address>\S{1,60}) (?P<status>\d{3})"
)
_BODY = re.compile(r"srv +log_server_r: (?P<side>request|response): (?P<text>.*)", re.DOTALL)
_CHUNK = re.compile(r"srv +operator\(\): http: streamed chunk: data: (?P<text>\{.*)", re.DOTALL)
_TASK = re.compile(r"slot +\S+ id +(?P<slot>-?\d+) \| task (?P<task>-?\d+) \| ?(?P<rest>.*)")
_PROMPT_TOKENS = re.compile(r"task\.n_tokens = (\d+)")
_RELEASED = re.compile(r"stop processing: n_tokens = (\d+)")
_PROMPT_TIME = re.compile(r"prompt eval time = *([\d.]+) ms / *(\d+) tokens")
_EVAL_TIME = re.compile(r"(?<!prompt )eval time = *([\d.]+) ms / *(\d+) tokens")
_MARKS = ("log_server_r:", "launch_slot_:", "print_timing:", "http: streamed chunk:")
_HELD_MAX = 10_000
_PATHS = ("completion", "chat", "infill", "messages", "responses", "generate")


@dataclass(slots=True)
class _Task:
    row: int
    offset: int
    slot: int
    number: int
    start_us: int | None
    end_us: int | None = None
    prompt_tokens: int | None = None
    read_tokens: int | None = None
    made_tokens: int | None = None
    prompt_ms: float | None = None


@dataclass(slots=True)
class _Done:
    row: int
    offset: int
    end_us: int | None
    path: str
    address: str
    status: int


@dataclass(slots=True)
class _Log:
    """What is held while the three lines of a request come in."""

    done: deque[_Done] = field(default_factory=deque)
    requests: deque[Mapping[str, Any]] = field(default_factory=deque)
    responses: deque[str] = field(default_factory=deque)
    streams: dict[str, StreamedAnswer] = field(default_factory=dict)
    tasks: dict[int, _Task] = field(default_factory=dict)
    finished: deque[_Task] = field(default_factory=deque)
    last_task: _Task | None = None
    has_bodies: bool = False


def _sniff(sample: Sample) -> float:
    found = sum(any(mark in line for mark in _MARKS) for line in sample.lines)
    return 0.9 if found >= 2 else 0.0


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    log = _Log()
    for record in records:
        match = _PREFIX.match(record.line)
        if match is None:
            _timing(log, record.line)  # the continuation of a print_timing
            continue
        _take(log, record, match["body"], _since_start(match), context)
        while log.done and log.requests and log.responses:
            row = _paired(log, context)
            if row is not None:
                yield row
        while len(log.finished) > _HELD_MAX:
            held = log.finished.popleft()
            if not log.has_bodies:
                yield _task_row(held)
    while log.done and log.requests:
        log.responses.append("")
        row = _paired(log, context)
        if row is not None:
            yield row
    for task in log.finished if not log.has_bodies else ():
        yield _task_row(task)


def _since_start(match: re.Match[str]) -> int | None:
    """Return microseconds since the server's start."""
    if match["min"] is None:
        return None
    return (int(match["min"]) * 60 + int(match["s"])) * US + int(match["ms"] + match["us"])


def _take(log: _Log, record: RawRecord, body: str, at_us: int | None, context: ReadContext) -> None:
    if body.startswith("slot"):
        task = _TASK.match(body)
        if task is not None and int(task["task"]) >= 0:
            _take_task(log, record, task, body, at_us)
        return
    chunk = _CHUNK.match(body)
    if chunk is not None:
        _take_chunk(log, chunk["text"], context)
        return
    done = _DONE.match(body)
    if done is not None:
        log.done.append(_Done(record.row, record.offset, at_us, done["path"], done["address"],
                              int(done["status"])))  # fmt: skip
        return
    side = _BODY.match(body)
    if side is None:
        return
    log.has_bodies = True
    if side["side"] == "response":
        log.responses.append(side["text"].strip())
        return
    text = side["text"].strip()
    parsed = parse_json(text)
    if parsed is None and text:
        context.damage("request body is cut or damaged")
    log.requests.append(mapping_of(parsed))


def _take_chunk(log: _Log, text: str, context: ReadContext) -> None:
    chunk = parse_json(text)
    if not isinstance(chunk, Mapping):
        context.damage("stream chunk is cut or damaged")
        return
    key = text_of(chunk.get("id")) or "?"
    log.streams.setdefault(key, StreamedAnswer()).add(chunk)
    if len(log.streams) > _HELD_MAX:
        log.streams.pop(next(iter(log.streams)))
        context.damage("stream that no request claimed")


def _take_task(
    log: _Log, record: RawRecord, match: re.Match[str], body: str, at_us: int | None
) -> None:
    number = int(match["task"])
    task = log.tasks.get(number)
    if task is None:
        task = _Task(record.row, record.offset, int(match["slot"]), number, at_us)
        log.tasks[number] = task
        if len(log.tasks) > _HELD_MAX:
            log.tasks.pop(next(iter(log.tasks)))
    log.last_task = task
    told = _PROMPT_TOKENS.search(body)
    if told is not None:
        task.prompt_tokens = int(told.group(1))
    _timing(log, match["rest"])
    released = _RELEASED.search(body)
    if released is not None:
        task.end_us = at_us
        if task.prompt_tokens is None and task.made_tokens is not None:
            # The last token made is never put into the cache.
            task.prompt_tokens = int(released.group(1)) - max(0, task.made_tokens - 1)
        log.tasks.pop(number, None)
        log.finished.append(task)
        log.last_task = None


def _timing(log: _Log, text: str) -> None:
    task = log.last_task
    if task is None:
        return
    prompt = _PROMPT_TIME.search(text)
    if prompt is not None:
        task.prompt_ms, task.read_tokens = float(prompt.group(1)), int(prompt.group(2))
        return
    made = _EVAL_TIME.search(text)
    if made is not None:
        task.made_tokens = int(made.group(2))


def _paired(log: _Log, context: ReadContext) -> LogRow | None:
    """Return the row of the oldest three lines; None for a request that generates no text."""
    done, request, response = log.done.popleft(), log.requests.popleft(), log.responses.popleft()
    if not any(word in done.path for word in _PATHS):
        return None
    stream = _claimed_stream(log) if not response and done.status < 400 else None
    fields = exchanged(request or None, response or None)
    body = mapping_of(parse_json(response))
    if stream is not None:
        usage = stream.usage
        fields |= {
            "output": stream.content(), "response_id": stream.response_id,
            "response_model": stream.model, "stream": True,
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
        }  # fmt: skip
        fields["finish_reasons"] = tuple(
            m.finish_reason for m in fields["output"].messages if m.finish_reason
        )
    task = _claimed_task(log, fields["output_tokens"]) if done.status < 400 else None
    _tell_start(context, body, done.end_us)
    user = text_of(request.get("user"))
    start_us = task.start_us if task is not None else done.end_us
    row = LogRow(
        source_row=done.row,
        source_byte_offset=done.offset,
        request_id=fields["response_id"] or (f"task-{task.number}" if task else None),
        correlation_ids=other_ids(fields["response_id"]),
        tenant_id=user or done.address,
        tenant_id_source="body.user" if user else "address",
        client_address=done.address,
        start_us=start_us,
        end_us=done.end_us,
        ttft_s=task.prompt_ms / 1e3 if task and task.prompt_ms is not None else None,
        time_precision_us=1 if start_us is not None else None,
        time_basis=TimeBasis.RELATIVE if start_us is not None else TimeBasis.NONE,
        endpoint=done.path,
        engine_slot=task.slot if task else None,
        status=done.status,
        fields={"body": request, "address": done.address},
    )
    return with_fields(row, fields)


def _tell_start(context: ReadContext, body: Mapping[str, Any], end_us: int | None) -> None:
    """Let the framework know when the server began, to the second, from an answer's `created`."""
    created = moment_of(body.get("created"))
    if created is not None and end_us is not None:
        guess = created.us - end_us
        context.server_start_us = max(guess, context.server_start_us or guess)


def _claimed_stream(log: _Log) -> StreamedAnswer | None:
    """Return the oldest stream that has ended, else the oldest."""
    if not log.streams:
        return None
    ended = next((key for key, held in log.streams.items() if held.is_finished), None)
    return log.streams.pop(ended if ended is not None else next(iter(log.streams)))


def _claimed_task(log: _Log, made: int | None) -> _Task | None:
    """Return the oldest finished task that made as many tokens, else the oldest."""
    if not log.finished:
        return None
    index = next((i for i, task in enumerate(log.finished) if task.made_tokens == made), 0)
    task = log.finished[index]
    del log.finished[index]
    return task


def _task_row(task: _Task) -> LogRow:
    """Return the row of a task where the log holds no bodies."""
    cached = None
    if task.prompt_tokens is not None and task.read_tokens is not None:
        cached = max(0, task.prompt_tokens - task.read_tokens)
    return LogRow(
        source_row=task.row,
        source_byte_offset=task.offset,
        request_id=f"task-{task.number}",
        start_us=task.start_us,
        end_us=task.end_us,
        ttft_s=task.prompt_ms / 1e3 if task.prompt_ms is not None else None,
        time_precision_us=1 if task.start_us is not None else None,
        time_basis=TimeBasis.RELATIVE if task.start_us is not None else TimeBasis.NONE,
        engine_slot=task.slot,
        input_tokens=task.prompt_tokens if task.prompt_tokens is not None else task.read_tokens,
        output_tokens=task.made_tokens,
        cached_tokens=cached,
        fields={"slot": task.slot, "task": task.number},
    )


FORMAT = Format(
    name="llama-server",
    title="llama-server log",
    shape=Shape.LINES,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
    is_stateful=True,
)
