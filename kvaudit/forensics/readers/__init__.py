"""The log formats, one file each, one list by hand."""

from kvaudit.forensics.reader import Format
from kvaudit.forensics.readers import litellm_payload, otel_span, vllm_server

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        litellm_payload.FORMAT,
        otel_span.FORMAT,
        vllm_server.FORMAT,
    )
}
