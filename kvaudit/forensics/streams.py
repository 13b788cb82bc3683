"""Streamed answers put together: chunks of OpenAI chat and completions, Anthropic events, SSE text.

Pieces are joined per choice and per tool call before anything looks at them, since a passage, a
surrogate pair and a JSON escape may all be cut between two chunks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvaudit.forensics.bodies import Usage, finish_of, usage_of
from kvaudit.forensics.content import content_of, text_part
from kvaudit.forensics.fields import int_of, list_of, mapping_of, parse_json, text_of
from kvaudit.forensics.row import Content, LoggedMessage, Part, PartKind

# First keys of the events of Bedrock's other models: Converse and Nova, Llama, Titan, Mistral, and
# the older Claude.
NATIVE_EVENT_KEYS = (
    "messageStart", "contentBlockStart", "contentBlockDelta", "generation", "outputText", "outputs",
    "completion",
)  # fmt: skip


@dataclass(slots=True)
class _Pieces:
    texts: dict[tuple[PartKind, int], list[str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    finish: str | None = None

    def add(self, kind: PartKind, text: object, index: int = 0) -> None:
        if isinstance(text, str) and text:
            self.texts.setdefault((kind, index), []).append(text)

    def message(self) -> LoggedMessage:
        parts: list[Part] = []
        for kind, index in self.texts:
            text = "".join(self.texts[kind, index])
            is_call = kind is PartKind.TOOL_CALL
            name = self.names.get(index) if is_call else None
            part_id = self.ids.get(index) if is_call else None
            parts.append(text_part(text, kind, name=name, part_id=part_id))
        named = {index for kind, index in self.texts if kind is PartKind.TOOL_CALL}
        parts.extend(
            Part(PartKind.TOOL_CALL, "", name, self.ids.get(index))
            for index, name in self.names.items()
            if index not in named
        )
        return LoggedMessage("assistant", tuple(parts), self.finish)


@dataclass(slots=True)
class StreamedAnswer:
    """One answer while its chunks come in.

    Attributes:
        response_id, model: From the chunks.
        usage: From the last chunk that has one.
        size: Characters held, to bound the memory of many open answers.
        chunks: Chunks taken.
    """

    response_id: str | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    size: int = 0
    chunks: int = 0
    _choices: dict[int, _Pieces] = field(default_factory=dict)
    _tools_of_block: dict[int, int] = field(default_factory=dict)

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk or event of any of the shapes."""
        self.chunks += 1
        self.response_id = self.response_id or text_of(chunk.get("id"))
        self.model = self.model or text_of(chunk.get("model"))
        if mapping_of(chunk.get("usage")) or mapping_of(chunk.get("timings")):
            self._add_usage(usage_of(chunk))
        if isinstance(chunk.get("choices"), list):
            for choice in chunk["choices"]:
                self._add_choice(mapping_of(choice))
        elif isinstance(chunk.get("type"), str):
            self._add_event(chunk)
        else:
            self._add_native(chunk)

    def add_text(self, text: str, kind: PartKind = PartKind.TEXT, choice: int = 0) -> None:
        """Take a piece of plain text, for logs that print deltas."""
        self.chunks += 1
        self.size += len(text)
        self._pieces(choice).add(kind, text)

    def finish(self, reason: object, choice: int = 0) -> None:
        """Note a finish reason; the first real one stays."""
        pieces = self._pieces(choice)
        pieces.finish = pieces.finish or finish_of(reason)

    @property
    def is_finished(self) -> bool:
        """Whether every choice seen has a finish reason."""
        return bool(self._choices) and all(p.finish is not None for p in self._choices.values())

    def content(self) -> Content:
        """Return the answer as far as it came; a stream without an end is still examinable."""
        return content_of([self._choices[index].message() for index in sorted(self._choices)])

    def _pieces(self, index: int) -> _Pieces:
        return self._choices.setdefault(index, _Pieces())

    def _add_usage(self, new: Usage) -> None:
        old = self.usage
        self.usage = Usage(*(b if b is not None else a for a, b in zip(old, new, strict=True)))

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        pieces = self._pieces(int_of(choice.get("index")) or 0)
        delta = mapping_of(choice.get("delta")) or mapping_of(choice.get("message"))
        self._take(pieces, PartKind.REASONING, delta.get("reasoning_content"))
        if not delta.get("reasoning_content"):
            self._take(pieces, PartKind.REASONING, delta.get("reasoning"))
        self._take(pieces, PartKind.TEXT, delta.get("content"))
        self._take(pieces, PartKind.TEXT, delta.get("refusal"))
        self._take(pieces, PartKind.TEXT, choice.get("text"))
        for position, call in enumerate(list_of(delta.get("tool_calls"))):
            self._add_call(pieces, mapping_of(call), position)
        pieces.finish = pieces.finish or finish_of(choice.get("finish_reason"))

    def _add_call(self, pieces: _Pieces, call: Mapping[str, Any], position: int) -> None:
        index = int_of(call.get("index"))
        index = position if index is None else index
        function = mapping_of(call.get("function"))
        name = text_of(function.get("name"))
        if name:
            pieces.names[index] = pieces.names.get(index, "") + name
        if text_of(call.get("id")):
            pieces.ids.setdefault(index, call["id"])
        self._take(pieces, PartKind.TOOL_CALL, function.get("arguments"), index)

    def _take(self, pieces: _Pieces, kind: PartKind, text: object, index: int = 0) -> None:
        pieces.add(kind, text, index)
        self.size += len(text) if isinstance(text, str) else 0

    def _add_event(self, event: Mapping[str, Any]) -> None:
        """Take one Anthropic or Responses event."""
        pieces = self._pieces(0)
        index = int_of(event.get("index")) or 0
        kind = event["type"]
        if kind == "message_start":
            message = mapping_of(event.get("message"))
            self.response_id = self.response_id or text_of(message.get("id"))
            self.model = self.model or text_of(message.get("model"))
            self._add_usage(usage_of(message))
        elif kind == "content_block_start":
            self._start_block(pieces, index, mapping_of(event.get("content_block")))
        elif kind == "content_block_delta":
            delta = mapping_of(event.get("delta"))
            self._take(pieces, PartKind.TEXT, delta.get("text"), index)
            self._take(pieces, PartKind.REASONING, delta.get("thinking"), index)
            self._take(pieces, PartKind.TOOL_CALL, delta.get("partial_json"), index)
        elif kind == "message_delta":
            pieces.finish = pieces.finish or finish_of(
                mapping_of(event.get("delta")).get("stop_reason")
            )
        elif kind == "response.output_text.delta":
            self._take(pieces, PartKind.TEXT, event.get("delta"), index)
        elif kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            self._take(pieces, PartKind.REASONING, event.get("delta"), index)
        elif kind == "response.function_call_arguments.delta":
            output_index = int_of(event.get("output_index")) or 0
            self._take(pieces, PartKind.TOOL_CALL, event.get("delta"), output_index)
        elif kind in ("response.completed", "response.incomplete"):
            response = mapping_of(event.get("response"))
            self.response_id = self.response_id or text_of(response.get("id"))
            self._add_usage(usage_of(response))
            pieces.finish = pieces.finish or finish_of(response.get("status"))

    def _add_native(self, event: Mapping[str, Any]) -> None:
        """Take one event of Bedrock's Converse and Nova, Llama, Titan, Mistral or older Claude."""
        pieces = self._pieces(0)
        block = mapping_of(event.get("contentBlockStart")) or mapping_of(
            event.get("contentBlockDelta")
        )
        index = int_of(block.get("contentBlockIndex")) or 0
        call = mapping_of(mapping_of(block.get("start")).get("toolUse"))
        self._start_block(pieces, index, {"name": call.get("name"), "id": call.get("toolUseId")})
        delta = mapping_of(block.get("delta"))
        self._take(pieces, PartKind.TEXT, delta.get("text"), index)
        self._take(
            pieces, PartKind.REASONING, mapping_of(delta.get("reasoningContent")).get("text"), index
        )
        arguments = mapping_of(delta.get("toolUse")).get("input")
        self._take(pieces, PartKind.TOOL_CALL, arguments, index)
        for key in ("generation", "outputText", "completion"):
            self._take(pieces, PartKind.TEXT, event.get(key))
        for item in list_of(event.get("outputs")):
            self._take(pieces, PartKind.TEXT, mapping_of(item).get("text"))
            pieces.finish = pieces.finish or finish_of(mapping_of(item).get("stop_reason"))
        self._add_usage(usage_of(mapping_of(event.get("metadata"))))
        stop = mapping_of(event.get("messageStop")).get("stopReason")
        for reason in (stop, event.get("stop_reason"), event.get("completionReason")):
            pieces.finish = pieces.finish or finish_of(reason)

    def _start_block(self, pieces: _Pieces, index: int, block: Mapping[str, Any]) -> None:
        if text_of(block.get("name")):
            pieces.names[index] = block["name"]
        if text_of(block.get("id")):
            pieces.ids.setdefault(index, block["id"])
        self._take(pieces, PartKind.TEXT, block.get("text"), index)
        self._take(pieces, PartKind.REASONING, block.get("thinking"), index)


_SSE_LINE_END = re.compile(r"\r\n|\n|\r")


def is_sse(text: str) -> bool:
    """Whether a body is raw server-sent events."""
    head = text.lstrip()[:64]
    return head.startswith(("data:", "event:", ":", "id:")) and "data:" in text[:4096]


def sse_events(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON events of raw SSE text; what is no JSON object is passed over."""
    data: list[str] = []
    for line in [*_SSE_LINE_END.split(text), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            event = parse_json("\n".join(data))
            data = []
            if isinstance(event, Mapping):
                yield event


def assembled(chunks: Iterable[Mapping[str, Any]]) -> StreamedAnswer:
    """Put all chunks of one answer together."""
    answer = StreamedAnswer()
    for chunk in chunks:
        answer.add(chunk)
    return answer
