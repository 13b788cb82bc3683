"""Answers in the shapes of the OpenAI API, with the extensions of vLLM that an audit reads.

One AnswerWriter for each request: it takes the engine's events and gives whole bodies or chunks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.openai_request import Ask
from engine.request import ApiError, EndEvent, TokenEvent
from engine.role import StepModel

REPLACEMENT = "\ufffd"  # what the first bytes of an unfinished character decode to


@dataclass(slots=True, kw_only=True)
class AnswerWriter:
    """One answer as it grows.

    Attributes:
        ask: What was asked for.
        model: Its tokenizer makes the text.
        response_id: Id of the answer, the same in each chunk.
        created: Unix time in seconds.
        prompt_scores: Log-probability of each prompt token but the first; None if not asked for.
    """

    ask: Ask
    model: StepModel
    response_id: str
    created: int
    prompt_scores: Sequence[float] | None = None
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _text: str = ""  # what has been sent
    _is_begun: bool = False

    def chunk(self, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return the chunk of some new tokens; its text may lag behind a split character."""
        before = len(self._ids)
        self._take(tokens)
        whole = self._decoded()
        stable = whole.rstrip(REPLACEMENT)
        piece = stable.removeprefix(self._text) if stable.startswith(self._text) else ""
        self._text += piece
        return self._chunk(piece, self._ids[before:], self._logprobs[before:], reason=None)

    def last_chunk(self, end: EndEvent) -> dict[str, Any]:
        """Return the chunk that carries the finish reason and any text still held back."""
        rest = self._decoded()[len(self._text) :]
        return self._chunk(rest, [], [], reason=end.finish_reason)

    def usage_chunk(self, end: EndEvent) -> dict[str, Any]:
        """Return the chunk without a choice that carries the usage."""
        return self._frame(is_chunk=True) | {"choices": [], "usage": usage_of(end)}

    def body(self, tokens: Sequence[TokenEvent], end: EndEvent) -> dict[str, Any]:
        """Return the whole answer."""
        self._take(tokens)
        choice = {"index": 0} | self._message(self._decoded())
        choice |= self._choice_end(self._ids, self._logprobs, end.finish_reason)
        choice |= self._prompt_part()
        body = self._frame(is_chunk=False) | {"choices": [choice], "usage": usage_of(end)}
        if self.ask.is_chat and self.ask.wants_token_ids:
            body["prompt_token_ids"] = list(self.ask.prompt_ids)
        return body

    def _take(self, tokens: Sequence[TokenEvent]) -> None:
        self._ids.extend(event.token_id for event in tokens)
        self._logprobs.extend(event.logprob for event in tokens)

    def _decoded(self) -> str:
        ids = self._ids
        if ids and ids[-1] in self.model.eos_token_ids:
            ids = ids[:-1]
        return self.model.decode(ids)

    def _chunk(
        self, piece: str, ids: list[int], logprobs: list[float], *, reason: str | None
    ) -> dict[str, Any]:
        if self.ask.is_chat:
            delta: dict[str, Any] = {} if self._is_begun else {"role": "assistant"}
            choice: dict[str, Any] = {"index": 0, "delta": delta | {"content": piece}}
        else:
            choice = {"index": 0, "text": piece}
        choice |= self._choice_end(ids, logprobs, reason)
        chunk = self._frame(is_chunk=True) | {"choices": [choice]}
        if not self._is_begun:
            choice |= self._prompt_part()
            if self.ask.is_chat and self.ask.wants_token_ids:
                chunk["prompt_token_ids"] = list(self.ask.prompt_ids)
        self._is_begun = True
        return chunk

    def _message(self, text: str) -> dict[str, Any]:
        if self.ask.is_chat:
            return {"message": {"role": "assistant", "content": text}}
        return {"text": text}

    def _choice_end(
        self, ids: list[int], logprobs: list[float], reason: str | None
    ) -> dict[str, Any]:
        end: dict[str, Any] = {"logprobs": None, "finish_reason": reason}
        if self.ask.wants_logprobs and ids:
            tokens = [self.model.decode([token]) for token in ids]
            end["logprobs"] = (
                _chat_logprobs(tokens, logprobs)
                if self.ask.is_chat
                else _completion_logprobs(tokens, logprobs)
            )
        if self.ask.wants_token_ids:
            end["token_ids"] = list(ids)
        return end

    def _prompt_part(self) -> dict[str, Any]:
        part: dict[str, Any] = {}
        if self.ask.wants_token_ids and not self.ask.is_chat:
            part["prompt_token_ids"] = list(self.ask.prompt_ids)
        if self.prompt_scores is not None:
            part["prompt_logprobs"] = [None, *self._scored_tokens(self.prompt_scores)]
        return part

    def _scored_tokens(self, scores: Sequence[float]) -> list[dict[str, Any]]:
        return [
            {str(token): {"logprob": score, "decoded_token": self.model.decode([token])}}
            for token, score in zip(self.ask.prompt_ids[1:], scores, strict=True)
        ]

    def _frame(self, *, is_chunk: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.ask.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.ask.model,
        }


def usage_of(end: EndEvent) -> dict[str, Any]:
    """Return the usage of an answered request."""
    assert end.usage is not None, "an answer without usage"
    usage = end.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def event_of(data: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """Return an error inside a stream; the status can't be changed any more, so it is named."""
    body = error.as_json()
    body["error"]["status_code"] = error.status
    return event_of(body)


def _chat_logprobs(tokens: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    return {
        "content": [
            {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
            for token, value in zip(tokens, logprobs, strict=True)
        ]
    }


def _completion_logprobs(tokens: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "token_logprobs": list(logprobs),
        "top_logprobs": [{token: value} for token, value in zip(tokens, logprobs, strict=True)],
        "text_offset": [],
    }
