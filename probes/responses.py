"""The Responses API (`/v1/responses`) in terms of chat: bodies out, events and bodies in.

Pure. An event becomes a chunk of the same shape as those of `/v1/chat/completions`, so that one
place puts answers together; events that bring nothing become empty chunks.
"""

from typing import Any

from kvaudit.findings import Json
from kvaudit.target import PlannedRequest

PATH = "responses"
_DELTAS = {
    "response.output_text.delta": "content",
    "response.reasoning_text.delta": "reasoning_content",
    "response.reasoning_summary_text.delta": "reasoning_content",
    "response.refusal.delta": "refusal",
}
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


def responses_body(planned: PlannedRequest, *, model: str) -> dict[str, Any]:
    """Return the part of the body that differs from chat: input, and the limit's own name."""
    return {
        "model": planned.model or model,
        "input": [
            {"role": message.role, "content": message.content} for message in planned.messages
        ],
        "max_output_tokens": planned.max_tokens,
        "store": False,  # a probe leaves nothing behind that another tenant could be served
    }


def chunk_of(said: Json) -> Json:
    """Return an event or a whole body as a chunk of chat; what is neither stays as it is."""
    if not isinstance(said, dict):
        return said
    named = said.get("type")
    kind = named if isinstance(named, str) else ""
    if said.get("object") == "response":
        return _whole(said)
    if kind in _LAST or kind == "response.created":
        inner = said.get("response")
        return _ending(inner) if isinstance(inner, dict) else {}
    if kind == "error":
        return {"error": {"message": said.get("message"), "code": said.get("code")}}
    if kind in _DELTAS:
        choice: dict[str, Json] = {"index": 0, "delta": {_DELTAS[kind]: said.get("delta")}}
        if isinstance(said.get("logprobs"), list):
            choice["logprobs"] = {"content": said["logprobs"]}
        return {"choices": [choice]}
    if kind == "response.function_call_arguments.delta":
        call = {"index": said.get("output_index"), "function": {"arguments": said.get("delta")}}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    if kind == "response.output_item.added":
        item = said.get("item")
        if isinstance(item, dict) and item.get("type") == "function_call":
            call = {"index": said.get("output_index"), "function": {"name": item.get("name")}}
            return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    return {} if kind.startswith("response.") else said


def _whole(body: dict[str, Json]) -> Json:
    """Return a whole body as one chunk: all its items, in order."""
    items = body.get("output")
    choices = [
        choice
        for number, item in enumerate(items if isinstance(items, list) else [])
        if isinstance(item, dict)
        for choice in _item_choices(item, number)
    ]
    ending = _ending(body)
    ended = ending.pop("choices", [])
    return {**ending, "choices": [*choices, *(ended if isinstance(ended, list) else [])]}


def _item_choices(item: dict[str, Json], number: int) -> list[Json]:
    if item.get("type") == "function_call":
        call = {
            "index": number,
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        return [{"index": 0, "delta": {"tool_calls": [call]}}]
    if item.get("type") == "reasoning":
        parts = [*_parts(item.get("summary")), *_parts(item.get("content"))]
        return [{"index": 0, "delta": {"reasoning_content": part.get("text")}} for part in parts]
    choices: list[Json] = []
    for part in _parts(item.get("content")):
        channel = "refusal" if part.get("type") == "refusal" else "content"
        text = part.get("refusal") if channel == "refusal" else part.get("text")
        choice: dict[str, Json] = {"index": 0, "delta": {channel: text}}
        if isinstance(part.get("logprobs"), list):
            choice["logprobs"] = {"content": part["logprobs"]}
        choices.append(choice)
    return choices


def _ending(body: dict[str, Json]) -> dict[str, Json]:
    """Return id, usage, error and the reason of the end."""
    chunk: dict[str, Json] = {"id": body.get("id")}
    usage = body.get("usage")
    if isinstance(usage, dict):
        chunk["usage"] = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
        }
    if body.get("error"):
        chunk["error"] = body["error"]
    reason = _reason(body)
    if reason is not None:
        chunk["choices"] = [{"index": 0, "finish_reason": reason}]
    return chunk


def _reason(body: dict[str, Json]) -> str | None:
    status = body.get("status")
    if status == "completed":
        return "stop"
    if status == "incomplete":
        details = body.get("incomplete_details")
        named = details.get("reason") if isinstance(details, dict) else None
        return "length" if named in (None, "max_output_tokens", "max_tokens") else str(named)
    return "error" if status in ("failed", "cancelled") else None


def _parts(said: Json) -> list[dict[str, Json]]:
    return [part for part in said if isinstance(part, dict)] if isinstance(said, list) else []
