"""`records.parquet`: the records of a run for any other tool, and back."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvaudit.errors import RunFolderError
from kvaudit.records import RequestRecord
from kvaudit.store.codec import CodecError
from kvaudit.store.folder import RECORDS_NAME, RunFolder, writing_to
from kvaudit.store.rows import record_of_row, record_row

ROWS_IN_A_GROUP = 1_000


def export_records(folder: RunFolder, records: Sequence[RequestRecord]) -> None:
    """Write `records.parquet`, compressed with zstd.

    Raises:
        StorageError: The disk is full or refuses the write.
    """
    schema = _schema()
    with (
        folder.replacing(RECORDS_NAME) as half,
        writing_to(folder.records_path),
        pq.ParquetWriter(half, schema, compression="zstd") as writer,
    ):
        for start in range(0, len(records), ROWS_IN_A_GROUP):
            rows = [
                record_row(record, start + offset)
                for offset, record in enumerate(records[start : start + ROWS_IN_A_GROUP])
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Read the records of a `records.parquet`.

    Raises:
        RunFolderError: It can't be read, or holds something else.
    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_IN_A_GROUP):
                for row in batch.to_pylist():
                    yield record_of_row(row)
    except (OSError, pa.ArrowException, CodecError) as error:
        raise RunFolderError(f"can't read `{path}`: {error}") from None


def _schema() -> Any:
    text, number, real = pa.string(), pa.int64(), pa.float64()
    canary = {
        "label": text, "tenant": text, "words": pa.list_(text), "code": text,
        "word_bits": real, "code_symbol_bits": real,
    }  # fmt: skip
    columns = {
        "position": number, "request_id": text, "tenant": text, "organisation": text,
        "scenario": text, "stratum": text, "role": text, "block": number, "wave": number,
        "endpoint": text, "model": text,
        "messages": pa.list_(pa.struct({"role": text, "content": text})),
        "attachments": pa.list_(text), "canaries": pa.list_(pa.struct(canary)),
        "expected": text, "prompt_tokens_sent": number, "max_tokens": number,
        "temperature": real, "seed": number, "cache_salt": text, "stream": pa.bool_(),
        "status": number, "outcome": text, "error_type": text, "error_message": text,
        "output_text": text, "output_token_ids": pa.list_(number),
        "output_logprobs": pa.list_(real), "finish_reason": text, "prompt_tokens": number,
        "completion_tokens": number, "cached_tokens": number, "sent_unix_ns": number,
        "ttft_ms": real, "ended_unix_ns": number, "replica": text, "response_id": text,
        "headers": pa.list_(pa.struct({"name": text, "value": text})),
        "replay_logprobs": pa.list_(real), "replay_reason": text,
    }  # fmt: skip
    return pa.schema(list(columns.items()))
