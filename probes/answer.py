"""One answer, put together from the chunks of a stream or from one whole body.

Pure. Takes what OpenAI-compatible servers really send: chat and plain completions, reasoning and
tool channels, a usage chunk after the last text, token ids (`return_token_ids`), errors inside a
200. Whatever does not have the expected shape counts as not said.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.findings import Json

# Channels of a message that a user sees, in the order of a whole body.
TEXT_CHANNELS = ("reasoning_content", "reasoning", "content", "text", "refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerError:
    """What a server said was wrong.

    Attributes:
        message, type, code: As the server named them; "" if it did not.
        status: HTTP status that the body names; None if it names none.
    """

    message: str
    type: str = ""
    code: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as reported; None where the server did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Answer:
    """What has arrived of one answer.

    Attributes:
        finish_reason: As reported by the last choice that had one.
        usage: The last report.
        response_id: Id of the first chunk.
        fingerprint: `system_fingerprint` of the first chunk that had one.
        error: The first error inside the answer.
        output_chunks: Chunks that brought output.
        has_choices: Whether anything looked like an answer at all.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage = Usage()
        self.response_id: str | None = None
        self.fingerprint: str | None = None
        self.error: ServerError | None = None
        self.output_chunks = 0
        self.has_choices = False
        self._segments: list[tuple[str, list[str]]] = []
        self._token_ids: list[int] = []
        self._logprobs: list[float | None] = []

    def add(self, chunk: Json) -> bool:
        """Take one chunk or whole body; return whether it brought output."""
        if not isinstance(chunk, dict):
            return False
        if self.error is None:
            self.error = error_in(chunk)
        self.response_id = self.response_id or _text(chunk.get("id"))
        self.fingerprint = self.fingerprint or _text(chunk.get("system_fingerprint"))
        self._add_usage(chunk)
        choices = chunk.get("choices")
        taken = [
            self._add_choice(choice)
            for choice in (choices if isinstance(choices, list) else [])
            if isinstance(choice, dict)
        ]
        self.has_choices = self.has_choices or bool(taken)
        self.output_chunks += any(taken)
        return any(taken)

    @property
    def text(self) -> str:
        """All channels that a user sees, in the order of arrival, a newline where one changes."""
        return "\n".join("".join(pieces) for _, pieces in self._segments)

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """Ids of the emitted tokens; None if the server sends none."""
        return tuple(self._token_ids) or None

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Log-probabilities in nat; None if there are none or one of them is no number."""
        known = [value for value in self._logprobs if value is not None]
        return tuple(known) if known and len(known) == len(self._logprobs) else None

    @property
    def tokens_seen(self) -> int:
        """Output tokens so far: ids where there are ids, else chunks with output."""
        return len(self._token_ids) or self.output_chunks

    def _add_choice(self, choice: Mapping[str, Any]) -> bool:
        """Take one choice; return whether it brought text or tokens."""
        index = choice.get("index")
        prefix = f"choice {index} " if index not in (0, None) else ""
        pieces = [(channel, piece) for channel, piece in _pieces(choice) if piece]
        for channel, piece in pieces:
            self._append(prefix + channel, piece)
        ids = choice.get("token_ids")
        has_ids = isinstance(ids, list) and all(type(item) is int for item in ids)
        self._token_ids.extend(ids if isinstance(ids, list) and has_ids else [])
        self._logprobs.extend(_logprobs(choice.get("logprobs")))
        reason = choice.get("finish_reason")
        if isinstance(reason, dict):  # SGLang's own form
            reason = reason.get("type")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        return bool(pieces or (ids and has_ids))

    def _append(self, channel: str, piece: str) -> None:
        if not self._segments or self._segments[-1][0] != channel:
            self._segments.append((channel, []))
        self._segments[-1][1].append(piece)

    def _add_usage(self, chunk: Mapping[str, Any]) -> None:
        said = chunk.get("usage")
        if not isinstance(said, dict):
            return
        details = said.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if cached is None:
            cached = said.get("cached_tokens", said.get("prompt_cache_hit_tokens"))
        self.usage = Usage(
            prompt_tokens=_count(said.get("prompt_tokens")),
            completion_tokens=_count(said.get("completion_tokens")),
            cached_tokens=_count(cached),
        )


def error_in(body: Json, *, is_answer: bool = True) -> ServerError | None:
    """Return the error that a body holds, in any of the shapes in use; None if it holds none.

    Args:
        body: Decoded JSON.
        is_answer: The status was 2xx; then `message` and `detail` alone are no error.
    """
    if not isinstance(body, dict):
        return None
    said = body.get("error")
    if said is None and (body.get("object") == "error" or not is_answer):
        said = body
    if isinstance(said, str):
        return ServerError(message=said)
    if not isinstance(said, dict) or not said:
        return None
    code = said.get("code")
    status = code if type(code) is int else said.get("status_code")
    message = said.get("message") or said.get("detail") or said.get("msg") or ""
    return ServerError(
        message=message if isinstance(message, str) else str(message),
        type=_text(said.get("type")) or "",
        code=str(code) if code is not None else "",
        status=status if type(status) is int and 400 <= status <= 599 else None,
    )


def _pieces(choice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "content", _text(choice.get("text")) or ""
    for holder in (choice.get("delta"), choice.get("message")):
        if not isinstance(holder, dict):
            continue
        for channel in TEXT_CHANNELS:
            yield channel, _content_text(holder.get(channel))
        calls = holder.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            yield from _call_pieces(call)
        yield from _call_pieces({"function": holder.get("function_call")})


def _call_pieces(call: Json) -> Iterator[tuple[str, str]]:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and isinstance(function, dict):
        channel = f"tool {call.get('index', call.get('id', ''))}"
        yield f"{channel} name", _text(function.get("name")) or ""
        yield channel, _text(function.get("arguments")) or ""


def _content_text(content: Json) -> str:
    """Return a channel's text; content may be a list of typed parts."""
    if isinstance(content, list):
        return "".join(
            _text(part.get("text")) or "" if isinstance(part, dict) else "" for part in content
        )
    return _text(content) or ""


def _logprobs(said: Json) -> Iterator[float | None]:
    if not isinstance(said, dict):
        return
    entries = said.get("content")
    if not isinstance(entries, list):
        values = said.get("token_logprobs")
        entries = [{"logprob": value} for value in values] if isinstance(values, list) else []
    for entry in entries:
        value = entry.get("logprob") if isinstance(entry, dict) else None
        yield _finite(value)


def _finite(said: Json) -> float | None:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return float(said) if math.isfinite(said) else None


def _text(said: Json) -> str | None:
    return said if isinstance(said, str) else None


def _count(said: Json) -> int | None:
    return said if type(said) is int and said >= 0 else None
