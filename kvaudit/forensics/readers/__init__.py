"""The log formats, one file each, one list by hand."""

from kvaudit.forensics.reader import Format
from kvaudit.forensics.readers import (
    generic_chunks,
    generic_jsonl,
    kvaudit_table,
    litellm_payload,
    otel_span,
    vllm_server,
)

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        generic_chunks.FORMAT,
        generic_jsonl.FORMAT,
        kvaudit_table.FORMAT,
        litellm_payload.FORMAT,
        otel_span.FORMAT,
        vllm_server.FORMAT,
    )
}
