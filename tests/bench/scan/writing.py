"""A planned log to files: JSON lines by time, the canonical table by tenant, and the truth."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from traffic import Conversation, Log, Range, Request

from kvaudit.forensics.finish import ROW_GROUP_BYTES
from kvaudit.forensics.reader import RawRecord, ReadContext
from kvaudit.forensics.readers.generic_jsonl import FORMAT
from kvaudit.forensics.table import SCHEMA, TEXT_COLUMNS, Origin, frame_of

LOG, TABLE, TRUTH = "log.jsonl", "requests.parquet", "truth.jsonl"
Message = dict[str, str]


def written(log: Log, folder: Path, *, jsonl: bool, table: bool) -> dict[str, int]:
    """Write what is asked for, and `truth.jsonl`; returns counts for the report."""
    folder.mkdir(parents=True, exist_ok=True)
    if jsonl:
        _write_lines(log, folder / LOG)
    counts = _write_table(log, folder / TABLE) if table else {}
    with (folder / TRUTH).open("w", encoding="utf-8") as out:
        for leak in log.leaks:
            out.write(json.dumps({"is": "leak"} | asdict(leak), ensure_ascii=False) + "\n")
        for benign in log.benign:
            out.write(json.dumps({"is": "benign"} | asdict(benign), ensure_ascii=False) + "\n")
    return counts | log.notes | {"requests": len(log.requests), "leaks": len(log.leaks)}


def messages_of(log: Log, conversation: Conversation) -> Iterator[tuple[Request, list[Message]]]:
    """Yield the requests of a conversation with the messages that each one sends."""
    history: list[Message] = []
    for request in conversation.requests:
        text = "\n\n".join(_text(log, part) for part in request.parts)
        history.append({"role": "user", "content": text})
        yield request, list(history)
        history.append({"role": "assistant", "content": request.answer})


def _text(log: Log, part: Range | str) -> str:
    return part if isinstance(part, str) else log.texts.text(*part)


def _record(log: Log, request: Request, messages: Any, system: str) -> dict[str, Any]:
    conversation = request.conversation
    return {
        "request_id": request.name,
        "tenant": conversation.tenant.name,
        "org": conversation.tenant.organisation,
        "session": f"c{conversation.number:06}",
        "ts_start": _time(request.start_us),
        "ts_end": _time(request.end_us),
        "endpoint": "/v1/chat/completions",
        "model": "demo-30b",
        "finish_reason": "stop",
        "status": 200,
        "system": system,
        "messages": messages,
        "response": request.answer,
    }


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _write_lines(log: Log, path: Path) -> None:
    """Write one request a line in order of time; messages are encoded once and sent again."""
    waiting: dict[int, Iterator[tuple[Request, list[Message]]]] = {}
    encoded: dict[int, list[str]] = {}
    systems: dict[int, str] = {}
    with path.open("w", encoding="utf-8") as out:
        for request in log.requests:
            conversation = request.conversation
            number = conversation.number
            if request.turn == 0:
                waiting[number] = messages_of(log, conversation)
                systems[number] = log.texts.text(*conversation.system)
                encoded[number] = []
            _, messages = next(waiting[number])
            known = encoded[number]
            known += [_json(message) for message in messages[len(known) :]]
            line = _json(_record(log, request, None, systems[number]))
            out.write(line.replace('"messages": null', '"messages": [' + ", ".join(known) + "]", 1))
            out.write("\n")
            if request.turn + 1 == len(conversation.requests):
                del waiting[number], encoded[number], systems[number]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_table(log: Log, path: Path) -> dict[str, int]:
    """Write the rows that an ingest of the JSON lines gives, without reading them back."""
    schema = pl.DataFrame(schema=SCHEMA).to_arrow().schema
    short = [name for name in SCHEMA if name not in TEXT_COLUMNS]
    bytes_in = bytes_out = 0
    temporary = path.with_suffix(".tmp")
    with pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3,
                          use_dictionary=short, write_statistics=short) as writer:  # fmt: skip
        for rows in _batches(_rows(log), ROW_GROUP_BYTES):
            frame = frame_of(rows, Origin(FORMAT.name, LOG, FORMAT.layer.value))
            frame = frame.with_columns(dedup_group=pl.col("record_id"))
            sizes = frame.select(pl.col("input_text", "output_text").str.len_bytes().sum())
            bytes_in += sizes["input_text"][0]
            bytes_out += sizes["output_text"][0]
            table = frame.select(list(SCHEMA)).rechunk().to_arrow().cast(schema)
            writer.write_table(table, row_group_size=len(frame))
    temporary.rename(path)
    return {"bytes in": bytes_in, "bytes out": bytes_out}


def _rows(log: Log) -> Iterator[tuple[Any, int]]:
    """Yield log rows and their bytes, by tenant, conversation and time, as the table has them."""
    context = ReadContext(source_file=LOG)
    order = sorted(log.conversations, key=lambda held: (held.tenant.name, held.number))
    for conversation in order:
        system = log.texts.text(*conversation.system)
        for request, messages in messages_of(log, conversation):
            data = _record(log, request, messages, system)
            size = sum(len(message["content"]) for message in messages)
            for row in FORMAT.read([RawRecord(request.number + 1, 0, data)], context):
                yield row, size


def _batches(rows: Iterable[tuple[Any, int]], limit: int) -> Iterator[list[Any]]:
    """Cut rows into batches of about a row group; prompts stand in them twice."""
    held: list[Any] = []
    size = 0
    for row, row_bytes in rows:
        held.append(row)
        size += 2 * row_bytes
        if size > limit:
            yield held
            held, size = [], 0
    if held:
        yield held
