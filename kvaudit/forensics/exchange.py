"""A request body and its answer body, to the LogRow fields that they tell together."""

from collections.abc import Mapping
from typing import Any

from kvaudit.forensics.bodies import (
    Usage,
    context_of,
    error_of,
    finish_reasons,
    input_content,
    output_content,
    request_facts,
    usage_of,
)  # fmt: skip
from kvaudit.forensics.fields import first_text, mapping_of, opened, parse_json, salvaged
from kvaudit.forensics.row import ABSENT, Content, ContentState
from kvaudit.forensics.streams import (
    NATIVE_EVENT_KEYS,
    StreamedAnswer,
    assembled,
    is_sse,
    sse_events,
)


def answer_side(body: object) -> tuple[Content, Usage, Mapping[str, Any]]:
    """Return the answer, its usage, and the body's plain fields; SSE text is put together."""
    if isinstance(body, str) and is_sse(body):
        streamed = assembled(sse_events(body))
        return streamed.content(), streamed.usage, _named(streamed)
    opened_body = opened(body)
    if isinstance(opened_body, list) and _are_events(opened_body):
        streamed = assembled(mapping_of(item) for item in opened_body)
        return streamed.content(), streamed.usage, _named(streamed)
    fields = mapping_of(opened_body)
    if fields.get("error") and "choices" not in fields:
        return ABSENT, Usage(), fields
    return output_content(opened_body), usage_of(fields), fields


def _named(streamed: StreamedAnswer) -> Mapping[str, Any]:
    return {"id": streamed.response_id, "model": streamed.model}


def _are_events(items: list[Any]) -> bool:
    """Whether a list holds stream events rather than messages."""
    first = mapping_of(items[0]) if items else {}
    return (
        "delta" in str(first.get("choices"))[:200]
        or str(first.get("type", "")).startswith(("message_", "content_block", "response."))
        or any(key in first for key in NATIVE_EVENT_KEYS)
    )


def exchanged(request: object, answer: object) -> dict[str, Any]:
    """Return the fields of LogRow that a request body and an answer body tell.

    Args:
        request: The body as logged: an object, a JSON string, or None.
        answer: The body as logged; raw SSE text too.
    """
    request_body = mapping_of(request)
    output, usage, answer_body = answer_side(answer)
    facts = request_facts(request_body)
    error_type, error_message = error_of(answer_body)
    return {
        "input": input_content(opened(request)) if request else ABSENT,
        "output": output,
        "context": context_of(request_body) if request_body else None,
        "request_model": facts.model,
        "response_model": first_text(answer_body.get("model")),
        "response_id": first_text(answer_body.get("id")),
        "stream": facts.stream,
        "max_tokens": facts.max_tokens,
        "temperature": facts.temperature,
        "user_id": facts.user,
        "cache_salt": facts.cache_salt,
        "finish_reasons": finish_reasons(output),
        "error_type": error_type,
        "error_message": error_message,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_creation_tokens": usage.cache_creation_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def is_encrypted(body: object) -> bool:
    """Whether a body is an object that says it is encrypted."""
    return mapping_of(body).get("type") == "encrypted"


ENCRYPTED = Content((), ContentState.ENCRYPTED)
EXTERNAL = Content((), ContentState.EXTERNAL)


def cut(content: Content) -> Content:
    """Return the content with its end marked as missing."""
    if content.state is not ContentState.FULL:
        return content
    return Content(content.messages, ContentState.TRUNCATED)


def mended_body(body: object) -> object:
    """Return a body whose JSON text lost its end as the object that is left of it."""
    if isinstance(body, str) and body[:1] in ("{", "[") and parse_json(body) is None:
        found = salvaged(body)
        return body if found is None else found
    return body
