"""Request and answer bodies of the usual APIs, to Content.

OpenAI chat, completions and responses, Anthropic messages, Bedrock Converse and the native bodies
of Llama and Titan are told apart by their keys, never by a name. Nothing here raises on bad input.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvaudit.forensics.content import blob_part, content_of, text_part
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    int_of,
    list_of,
    mapping_of,
    opened,
    text_of,
)  # fmt: skip
from kvaudit.forensics.row import ABSENT, Content, LoggedMessage, Part, PartKind

_TEXT_TYPES = ("text", "input_text", "output_text", "refusal", "summary_text")
_REASONING_TYPES = ("reasoning", "thinking", "reasoning_text", "redacted_thinking")
_CALL_TYPES = ("tool_call", "tool_use", "function_call", "server_tool_call", "server_tool_use")
_RESULT_TYPES = (
    "tool_call_response", "tool_result", "function_call_output", "server_tool_call_response",
)  # fmt: skip
_CALL_KEYS = ("arguments", "input", "args", "parameters")
_BLOB_KEYS = ("image_url", "input_audio", "source", "bytes", "data", "audio", "file_data", "image")
_FINISH = {
    "end_turn": "stop", "stop_sequence": "stop", "eos": "stop", "finish": "stop",
    "complete": "stop", "completed": "stop", "pause_turn": "stop",
    "max_tokens": "length", "max_output_tokens": "length", "incomplete": "length",
    "tool_use": "tool_calls", "function_call": "tool_calls", "tool_call": "tool_calls",
    "content_filtered": "content_filter", "guardrail_intervened": "content_filter",
    "refusal": "content_filter", "safety": "content_filter",
    "aborted": "abort", "cancelled": "abort", "canceled": "abort", "failed": "error",
}  # fmt: skip


def finish_of(value: object) -> str | None:
    """Return a finish reason as OpenAI names it; unknown ones in lower case."""
    text = text_of(value)
    if text is None or text == "None":
        return None
    text = text.lower()
    return _FINISH.get(text, text)


def finish_reasons(content: Content) -> tuple[str, ...]:
    """Return the finish reasons of an answer's choices, in order."""
    return tuple(
        message.finish_reason for message in content.messages if message.finish_reason is not None
    )


class Usage(NamedTuple):
    """Token counts of one answer; None = not reported. `input_tokens` includes cached ones."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_USAGE = Usage()


def usage_of(body: Mapping[str, Any]) -> Usage:
    """Return the usage of an answer body: OpenAI, Anthropic, Bedrock or llama.cpp shape."""
    usage = mapping_of(body.get("usage"))
    if not usage and "timings" not in body:
        return NO_USAGE
    details = mapping_of(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    out_details = mapping_of(
        usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    )
    anthropic_read = int_of(usage.get("cache_read_input_tokens", usage.get("cacheReadInputTokens")))
    anthropic_made = int_of(
        usage.get("cache_creation_input_tokens", usage.get("cacheWriteInputTokens"))
    )
    tokens = _first_int(usage, "prompt_tokens", "input_tokens", "inputTokens")
    if tokens is not None and "prompt_tokens" not in usage:
        # Anthropic and Bedrock count cached tokens apart.
        tokens += (anthropic_read or 0) + (anthropic_made or 0)
    cached = _first_int(details, "cached_tokens")
    if cached is None:
        cached = anthropic_read
    if cached is None:
        cached = _first_int(usage, "cached_tokens", "prompt_cache_hit_tokens")
    if cached is None:
        cached = int_of(mapping_of(body.get("timings")).get("cache_n"))
    reasoning = _first_int(out_details, "reasoning_tokens")
    return Usage(
        tokens,
        _first_int(usage, "completion_tokens", "output_tokens", "outputTokens"),
        cached,
        anthropic_made if anthropic_made is not None else _first_int(details, "cache_write_tokens"),
        reasoning if reasoning is not None else int_of(usage.get("reasoning_tokens")),
    )


def _first_int(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        found = int_of(fields.get(name))
        if found is not None:
            return found
    return None


class RequestFacts(NamedTuple):
    """What a request body says besides its text."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    user: str | None = None
    cache_salt: str | None = None


def request_facts(body: Mapping[str, Any]) -> RequestFacts:
    """Return model, limits and identity of a request body."""
    limits = mapping_of(body.get("inferenceConfig"))
    return RequestFacts(
        text_of(body.get("model")),
        bool_of(body.get("stream")),
        _first_int(
            {**limits, **body}, "max_tokens", "max_completion_tokens", "max_output_tokens",
            "maxTokens", "max_new_tokens", "max_gen_len", "n_predict",
        ),
        float_of(body.get("temperature", limits.get("temperature"))),
        first_text(body.get("user"), body.get("safety_identifier")),
        text_of(body.get("cache_salt")),
    )  # fmt: skip


def context_of(body: Mapping[str, Any]) -> str | None:
    """Return the tools, response format and grammar of a request: own context, as JSON lines."""
    keys = (
        "tools", "functions", "toolConfig", "response_format", "guided_json", "structured_outputs",
        "text", "documents",
    )  # fmt: skip
    found = [json.dumps(body[key], ensure_ascii=False) for key in keys if _is_schema(body.get(key))]
    return "\n".join(found) or None


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


def input_content(body: object) -> Content:
    """Return the prompt of a request body, or of a bare list of messages, or of a plain string."""
    body = opened(body)
    if isinstance(body, str):
        return content_of([LoggedMessage("user", (text_part(body),))]) if body else ABSENT
    if isinstance(body, list):
        return content_of(list(_messages(body)))
    if not isinstance(body, Mapping):
        return ABSENT
    found: list[LoggedMessage] = []
    system = body.get("system", body.get("instructions"))
    if system:
        found.append(LoggedMessage("system", tuple(_parts(system))))
    found.extend(  # Cohere
        message_of({"content": mapping_of(item).get("message"), **mapping_of(item)})
        for item in list_of(body.get("chat_history"))
    )
    for key in ("messages", "input", "prompt", "inputText", "contents", "message"):
        value = body.get(key)
        if value:
            found.extend(_prompt_messages(opened(value) if key == "messages" else value))
            break
    return content_of(found)


def _prompt_messages(value: object) -> Iterable[LoggedMessage]:
    if isinstance(value, str):
        return [LoggedMessage("user", (text_part(value),))]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [LoggedMessage("user", (text_part(item),)) for item in value]
    return _messages(value) if isinstance(value, list) else ()


def _messages(items: list[Any]) -> Iterable[LoggedMessage]:
    for item in items:
        if isinstance(item, str):
            yield LoggedMessage("user", (text_part(item),))
        elif isinstance(item, Mapping):
            yield message_of(item)


def message_of(item: Mapping[str, Any], default_role: str = "user") -> LoggedMessage:
    """Return one message of any of the shapes: chat, parts, blocks or a Responses item."""
    role = first_text(item.get("role"), item.get("from")) or _role_of(item, default_role)
    parts = list(_reasoning_parts(item))
    if item.get("type") in (*_CALL_TYPES, *_RESULT_TYPES, "reasoning"):
        parts = list(_block(item))
    elif role == "tool" and "content" in item:
        parts.extend(_results(item))
    else:
        for key in ("content", "parts", "value", "text"):
            if item.get(key):
                parts.extend(_parts(item[key]))
                break
        refusal = text_of(item.get("refusal"))
        if refusal:
            parts.append(text_part(refusal))
    parts.extend(_call_parts(item))
    return LoggedMessage(role, tuple(parts), finish_of(item.get("finish_reason")))


def _role_of(item: Mapping[str, Any], default_role: str) -> str:
    if item.get("type") in _RESULT_TYPES:
        return "tool"
    return "assistant" if item.get("type") in (*_CALL_TYPES, "reasoning") else default_role


def _reasoning_parts(item: Mapping[str, Any]) -> Iterable[Part]:
    text = first_text(item.get("reasoning_content"), item.get("reasoning"))
    if text:
        yield text_part(text, PartKind.REASONING)
        return
    for block in list_of(item.get("thinking_blocks")):
        thinking = text_of(mapping_of(block).get("thinking"))
        if thinking:
            yield text_part(thinking, PartKind.REASONING)


def _call_parts(item: Mapping[str, Any]) -> Iterable[Part]:
    calls = list_of(item.get("tool_calls"))
    if mapping_of(item.get("function_call")):
        calls = [*calls, {"function": item["function_call"]}]
    for call in calls:
        fields = mapping_of(call)
        function = mapping_of(fields.get("function")) or fields
        yield _call(function, fields.get("id"))


def _call(fields: Mapping[str, Any], call_id: object) -> Part:
    arguments: object = None
    for key in _CALL_KEYS:
        if fields.get(key) is not None:
            arguments = fields[key]
            break
    text = arguments if isinstance(arguments, str) else _dumped(arguments)
    return text_part(
        text, PartKind.TOOL_CALL, name=text_of(fields.get("name")), part_id=text_of(call_id)
    )


def _dumped(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _results(item: Mapping[str, Any]) -> Iterable[Part]:
    for part in _parts(item.get("content")):
        call_id = first_text(item.get("tool_call_id"), item.get("id"))
        yield Part(PartKind.TOOL_RESPONSE, part.text, item.get("name"), call_id, part.gaps)


def _parts(value: object) -> Iterable[Part]:
    if isinstance(value, str):
        if value:
            yield text_part(value)
    elif isinstance(value, Mapping):
        yield from _block(value)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                yield text_part(item)
            elif isinstance(item, Mapping):
                yield from _block(item)


def _block(block: Mapping[str, Any]) -> Iterable[Part]:
    kind = text_of(block.get("type"))
    if kind in _CALL_TYPES or "toolUse" in block:
        inner = mapping_of(block.get("toolUse")) or block
        yield _call(
            inner, first_text(inner.get("id"), inner.get("toolUseId"), inner.get("call_id"))
        )
    elif kind in _RESULT_TYPES or "toolResult" in block:
        yield from _result_block(mapping_of(block.get("toolResult")) or block)
    elif kind in _REASONING_TYPES or "reasoningContent" in block:
        yield from _reasoning_block(block)
    elif kind in _TEXT_TYPES or (kind is None and "text" in block):
        text = first_text(
            *(block.get(key) for key in ("text", "content", "refusal")),
            mapping_of(block.get("text")).get("value"),
        )
        if text:
            yield text_part(text)
    elif kind == "message":
        yield from _parts(block.get("content"))
    else:
        yield from _other_block(block)


def _result_block(block: Mapping[str, Any]) -> Iterable[Part]:
    value = next(
        (block[key] for key in ("response", "content", "output") if block.get(key) is not None), ""
    )
    call_id = first_text(*(block.get(key) for key in ("id", "tool_use_id", "toolUseId", "call_id")))
    if isinstance(value, list):
        for part in _parts(value):
            yield Part(PartKind.TOOL_RESPONSE, part.text, None, call_id, part.gaps)
        return
    text = value if isinstance(value, str) else _dumped(value)
    yield text_part(text, PartKind.TOOL_RESPONSE, part_id=call_id)


def _reasoning_block(block: Mapping[str, Any]) -> Iterable[Part]:
    inner = mapping_of(mapping_of(block.get("reasoningContent")).get("reasoningText"))
    text = first_text(
        inner.get("text"), block.get("thinking"), block.get("text"), block.get("content")
    )
    if text:
        yield text_part(text, PartKind.REASONING)
        return
    for item in [*list_of(block.get("summary")), *list_of(block.get("content"))]:
        text = text_of(mapping_of(item).get("text"))
        if text:
            yield text_part(text, PartKind.REASONING)


def _other_block(block: Mapping[str, Any]) -> Iterable[Part]:
    if isinstance(block.get("json"), dict | list):  # of a Bedrock tool result
        yield text_part(_dumped(block["json"]), PartKind.TEXT)
        return
    for key in _BLOB_KEYS:
        value = block.get(key)
        if value:
            mime = first_text(block.get("mime_type"), block.get("media_type"), block.get("type"))
            yield blob_part(value if isinstance(value, str) else _dumped(value), mime or key)
            return
    text = first_text(block.get("content"), block.get("text"))
    if text:
        yield text_part(text, PartKind.TEXT)


def output_content(body: object) -> Content:
    """Return the answer of an answer body, of a bare message, or of a plain string."""
    body = opened(body)
    if isinstance(body, str):
        return content_of([LoggedMessage("assistant", (text_part(body),))]) if body else ABSENT
    if isinstance(body, list):
        return content_of([message_of(mapping_of(item), "assistant") for item in body])
    if not isinstance(body, Mapping):
        return ABSENT
    if isinstance(body.get("choices"), list):
        return content_of([_choice(mapping_of(choice)) for choice in body["choices"]])
    if isinstance(body.get("output"), list):
        return _responses_output(body)
    converse = mapping_of(mapping_of(body.get("output")).get("message"))
    if converse:
        return _stopped(message_of(converse, "assistant"), body.get("stopReason"))
    if isinstance(body.get("content"), list) and "stop_reason" in body:
        return _stopped(message_of(body, "assistant"), body.get("stop_reason"))
    if isinstance(body.get("message"), Mapping):
        reason = body.get("done_reason", body.get("finish_reason"))
        return _stopped(message_of(body["message"], "assistant"), reason)
    return _plain_output(body)


def _choice(choice: Mapping[str, Any]) -> LoggedMessage:
    inner = mapping_of(choice.get("message")) or mapping_of(choice.get("delta"))
    message = message_of(inner or {"text": choice.get("text")}, "assistant")
    reason = finish_of(choice.get("finish_reason")) or message.finish_reason
    return LoggedMessage(message.role, message.parts, reason)


def _stopped(message: LoggedMessage, reason: object) -> Content:
    made = LoggedMessage(message.role, message.parts, finish_of(reason) or message.finish_reason)
    return content_of([made])


def _responses_output(body: Mapping[str, Any]) -> Content:
    parts = [
        part
        for item in list_of(body.get("output"))
        for part in message_of(mapping_of(item), "assistant").parts
    ]
    return content_of([LoggedMessage("assistant", tuple(parts), finish_of(body.get("status")))])


def _plain_output(body: Mapping[str, Any]) -> Content:
    for result in [*list_of(body.get("results")), *list_of(body.get("outputs"))]:
        fields = mapping_of(result)
        text = first_text(fields.get("outputText"), fields.get("text"))
        if text:
            reason = fields.get("completionReason", fields.get("stop_reason"))
            return _stopped(LoggedMessage("assistant", (text_part(text),)), reason)
    if any(key in body for key in ("role", "tool_calls", "reasoning_content", "parts")):
        return content_of([message_of(body, "assistant")])
    for key in ("generation", "completion", "response", "output_text", "generated_text", "text",
                "content", "output"):  # fmt: skip
        text = text_of(body.get(key))
        if text:
            reason = body.get("stop_reason", body.get("finish_reason"))
            return _stopped(LoggedMessage("assistant", (text_part(text),)), reason)
    return ABSENT


def error_of(body: object) -> tuple[str | None, str | None]:
    """Return (type, message) of an error body; (None, None) if it is none."""
    error = mapping_of(body).get("error")
    if isinstance(error, str):
        return None, error
    fields = mapping_of(error)
    if not fields:
        return None, None
    return first_text(fields.get("type"), fields.get("code")), text_of(fields.get("message"))
