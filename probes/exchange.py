"""One request and what came back, over one HTTP connection.

An Exchange is never repeated: the first answer is the answer, whatever it was.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from kvaudit.clock import Clock
from kvaudit.findings import Json
from kvaudit.records import Outcome
from kvaudit.target import PlannedRequest, Reply
from probes.answer import Answer, error_in
from probes.failure import Failure, failure_of_error, failure_of_exception, failure_of_status
from probes.responses import chunk_of
from probes.sse import EventStream, EventTooLargeError

ERROR_BODY_BYTES_MAX = 64 * 1024
HEADERS_MAX = 64
HEADER_CHARACTERS_MAX = 512
# Never recorded: they may hold a session.
SECRET_HEADERS = frozenset({"set-cookie", "authorization", "proxy-authorization"})
REPLICA_HEADERS = (
    "x-replica", "x-replica-id", "x-worker-id", "x-backend", "x-backend-server", "x-served-by",
    "x-upstream", "x-pod-name",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """How long to wait and how much to take, so that no server can hold a run.

    Attributes:
        connect_s: Connection, TLS and proxy included.
        first_output_s: From the first byte sent to the first output token.
        idle_s: Between two packets of a stream.
        total_s: The whole exchange.
        body_bytes_max: Bytes of one answer.
        in_flight_max: Requests in flight together; None = as the wave has it.
        per_minute_max: Requests that leave in a minute; None = no limit.
    """

    connect_s: float = 15.0
    first_output_s: float = 300.0
    idle_s: float = 60.0
    total_s: float = 900.0
    body_bytes_max: int = 64 * 1024 * 1024
    in_flight_max: int | None = None
    per_minute_max: float | None = None


class AnswerTooLargeError(ValueError):
    """The server sent more than `body_bytes_max`."""


class Exchange:
    """One request on its way; `run` gives the Reply and never raises for what a server does."""

    def __init__(self, planned: PlannedRequest, *, limits: HttpLimits, clock: Clock) -> None:
        self._planned = planned
        self._limits = limits
        self._clock = clock
        self._answer = Answer()
        self._status: int | None = None
        self._headers: tuple[tuple[str, str], ...] = ()
        self._failure: Failure | None = None
        self._was_cut = False
        self._sent_unix_ns: int | None = None
        self._sent_ns: int | None = None
        self._first_output_ns: int | None = None
        self._stage = "connect"
        self._alarm: asyncio.Timeout | None = None
        self._total_until = 0.0
        self._output_until = 0.0

    async def run(self, client: httpx.AsyncClient, request: httpx.Request) -> Reply:
        """Send the request and take the answer to its end."""
        loop = asyncio.get_running_loop()
        self._total_until = loop.time() + self._limits.total_s
        request.extensions["trace"] = self._on_trace
        try:
            async with asyncio.timeout_at(loop.time() + self._limits.connect_s) as self._alarm:
                response = await client.send(request, stream=True)
                try:
                    await self._take(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            self._failure = Failure(
                Outcome.TIMEOUT, f"{self._stage}_timeout", f"no answer in time: {self._stage}"
            )
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            if self._answer.finish_reason is None:
                self._failure = failure_of_exception(error)
        except (AnswerTooLargeError, EventTooLargeError) as error:
            self._failure = Failure(Outcome.ERROR, "answer_too_large", str(error))
        return self._reply()

    async def _on_trace(self, event: str, _: dict[str, Any]) -> None:
        # Through a proxy the event comes twice; the last one is the request itself.
        if event.endswith(".send_request_headers.started"):
            self._sent_unix_ns = self._clock.unix_ns()
            self._sent_ns = self._clock.monotonic_ns()
            self._stage = "first_output"
            now = asyncio.get_running_loop().time()
            self._output_until = now + self._limits.first_output_s
            self._set_alarm(self._output_until)

    async def _take(self, response: httpx.Response) -> None:
        self._status = response.status_code
        self._headers = _kept_headers(response.headers)
        if not response.is_success:
            await self._take_error(response)
        elif "text/event-stream" in response.headers.get("content-type", ""):
            await self._take_stream(response)
        else:
            await self._take_body(response)

    async def _take_error(self, response: httpx.Response) -> None:
        self._stage = "error_body"
        text = (await self._read(response, ERROR_BODY_BYTES_MAX, strict=False)).decode(
            "utf-8", errors="replace"
        )
        if response.is_redirect:
            location = response.headers.get("location", "")
            self._failure = Failure(Outcome.ERROR, "redirect", f"redirected to {location[:200]}")
            return
        error = error_in(_parsed(text), is_answer=False)
        self._failure = failure_of_status(response.status_code, error, text)

    async def _take_body(self, response: httpx.Response) -> None:
        body = await self._read(response, self._limits.body_bytes_max, strict=True)
        text = body.decode("utf-8", errors="replace")
        whole = self._chunk(text)
        self._answer.add(whole)
        if self._answer.error is None and not self._answer.has_choices:
            is_markup = text.lstrip()[:1] == "<"
            kind = "html_body" if is_markup else "no_answer"
            shown = " ".join(text[:300].split())
            self._failure = Failure(
                Outcome.ERROR, kind, f"a 2xx body without an answer: {shown or 'empty'}"
            )

    async def _take_stream(self, response: httpx.Response) -> None:
        if self._planned.cancel_after_tokens == 0:
            self._was_cut = True
            return
        events = EventStream()
        taken = 0
        async for piece in response.aiter_bytes():
            taken += len(piece)
            if taken > self._limits.body_bytes_max:
                raise AnswerTooLargeError(f"over {self._limits.body_bytes_max} bytes")
            self._set_alarm(asyncio.get_running_loop().time() + self._limits.idle_s)
            for data in events.feed(piece):
                if self._take_event(data):
                    return
        for data in events.finish():
            if self._take_event(data):
                return
        if self._answer.finish_reason is None and self._answer.error is None:
            self._failure = Failure(
                Outcome.ERROR, "broken_stream", "the stream ended before the answer did"
            )

    def _take_event(self, data: str) -> bool:
        """Take one event; return whether the stream is over, by the server's word or ours."""
        if data.strip() == "[DONE]":
            return True
        chunk = self._chunk(data)
        if chunk is None:
            self._answer.add({"error": {"type": "broken_chunk", "message": "a chunk is no JSON"}})
        elif self._answer.add(chunk) and self._first_output_ns is None:
            self._first_output_ns = self._clock.monotonic_ns()
            self._stage = "next_chunk"
            self._set_alarm(asyncio.get_running_loop().time() + self._limits.idle_s)
        limit = self._planned.cancel_after_tokens
        if limit is not None and self._answer.tokens_seen >= limit:
            self._was_cut = self._answer.finish_reason is None
            return self._was_cut
        return False

    async def _read(self, response: httpx.Response, limit: int, *, strict: bool) -> bytes:
        """Read a body of at most `limit` bytes; `strict` raises where the rest is cut else."""
        pieces = bytearray()
        async for piece in response.aiter_bytes():
            pieces += piece
            if len(pieces) > limit:
                if strict:
                    raise AnswerTooLargeError(f"over {limit} bytes")
                break
        return bytes(pieces[:limit])

    def _chunk(self, text: str) -> Json:
        said = _parsed(text)
        return chunk_of(said) if self._planned.is_responses else said

    def _set_alarm(self, until: float) -> None:
        assert self._alarm is not None, "no exchange is running"
        if self._first_output_ns is None:
            until = max(until, self._output_until)
        self._alarm.reschedule(min(until, self._total_until))

    def _reply(self) -> Reply:
        answer = self._answer
        failure = self._failure
        if failure is None and answer.error is not None:
            failure = failure_of_error(answer.error, has_output=answer.output_chunks > 0)
        if failure is None and answer.finish_reason in ("abort", "error"):
            failure = Failure(Outcome.ERROR, "aborted", f"finish_reason {answer.finish_reason}")
        if self._was_cut:
            failure = Failure(Outcome.CANCELLED, "cancelled", "cut as planned")
        ttft_ms = None
        if self._first_output_ns is not None and self._sent_ns is not None:
            ttft_ms = (self._first_output_ns - self._sent_ns) / 1e6
        return Reply(
            request_id=self._planned.request_id,
            outcome=failure.outcome if failure else Outcome.ANSWERED,
            status=self._status,
            error_type=failure.error_type if failure else None,
            error_message=failure.message if failure else None,
            output_text=answer.text if answer.has_choices else None,
            output_token_ids=answer.token_ids,
            output_logprobs=answer.logprobs,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            cached_tokens=answer.usage.cached_tokens,
            sent_unix_ns=self._sent_unix_ns,
            ttft_ms=ttft_ms,
            ended_unix_ns=self._clock.unix_ns(),
            replica=_replica(self._headers),
            response_id=answer.response_id,
            headers=self._headers,
        )


def _parsed(text: str) -> Json:
    """Return decoded JSON; None if it is none."""
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _kept_headers(headers: httpx.Headers) -> tuple[tuple[str, str], ...]:
    kept = [
        (name.lower(), value[:HEADER_CHARACTERS_MAX])
        for name, value in headers.multi_items()
        if name.lower() not in SECRET_HEADERS
    ]
    return tuple(kept[:HEADERS_MAX])


def _replica(headers: tuple[tuple[str, str], ...]) -> str | None:
    by_name = dict(headers)
    return next((by_name[name] for name in REPLICA_HEADERS if by_name.get(name)), None)
