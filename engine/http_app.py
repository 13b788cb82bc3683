"""The reference engine's HTTP face: routes, shapes and errors as vLLM and SGLang have them.

Any bearer token is taken and names the tenant. A client that goes away takes its request with it.
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.openai_answer import AnswerWriter, error_event, event_of
from engine.openai_request import (
    ApiRefusalError,
    Ask,
    chat_ask,
    checked_id,
    checked_model,
    completion_ask,
    encoded,
    messages_of,
    parsed_body,
    refuse,
)
from engine.request import AdmittedEvent, ApiError, EndEvent, Event, Request, TokenEvent, Usage
from engine.server_pages import metrics_page, models_page, server_info_page
from engine.stepper import EngineThread
from kvaudit import __version__

BODY_BYTES_MAX = 8 * 1024 * 1024
DRAINED_BYTES_MAX = 64 * 1024 * 1024  # read and thrown away, so that the client hears the refusal
OFF_LOOP_BYTES = 32 * 1024  # longer bodies are tokenised beside the event loop
ANONYMOUS = "anonymous"
CLIENT_GONE = 499

_Result = TypeVar("_Result")


class Flight:
    """One request between its HTTP side and the engine.

    Invariant: `close` was called once nobody waits for its events any more; it is safe to call
    again.
    """

    def __init__(self, owner: "Face", engine_id: str, key: tuple[str, str]) -> None:
        self.engine_id = engine_id
        self.key = key
        self.is_over = False
        self._owner = owner
        self._mailbox: asyncio.Queue[Sequence[Event]] = asyncio.Queue()

    def hear(self, events: Sequence[Event]) -> None:
        """Take events; called in the engine's thread."""
        self._owner.post(self, events)

    def put(self, events: Sequence[Event]) -> None:
        """Take events; called in the event loop's thread."""
        self._mailbox.put_nowait(events)

    async def next(self) -> Sequence[Event]:
        """Wait for the next events; all that have come meanwhile are given at once."""
        events = list(await self._mailbox.get())
        while not self._mailbox.empty():
            events.extend(self._mailbox.get_nowait())
        self.is_over = isinstance(events[-1], EndEvent)
        return events

    def close(self) -> None:
        """Let go of the request; the engine is told unless it has ended."""
        self._owner.land(self)


class Face:
    """Routes over one engine.

    Attributes:
        thread: The engine.
        started_unix_s: When the server began; the models' `created`.
    """

    def __init__(self, thread: EngineThread, *, started_unix_s: int) -> None:
        self.thread = thread
        self.started_unix_s = started_unix_s
        self._config = thread.engine.config
        self._model = thread.model
        self._flights: dict[tuple[str, str], Flight] = {}
        self._serial = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posted: deque[tuple[Flight, Sequence[Event]]] = deque()
        self._is_woken = False

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._one_model),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/metrics", self._metrics),
                Route("/server_info", self._server_info),
                Route("/get_server_info", self._server_info),
                Route("/version", self._version),
                Route("/health", self._health),
            ],
            exception_handlers={
                ApiRefusalError: _refused,
                HTTPException: _http_error,
                Exception: _crashed,
            },
        )

    def post(self, flight: Flight, events: Sequence[Event]) -> None:
        """Hand events from the engine's thread to the loop's, which is woken once for many."""
        self._posted.append((flight, events))
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended with the server
                self._loop.call_soon_threadsafe(self._deliver)

    def land(self, flight: Flight) -> None:
        """Forget a flight, and stop its request unless it has ended."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
            if not flight.is_over:
                self.thread.cancel(flight.engine_id)

    def _deliver(self) -> None:
        self._is_woken = False  # before reading: whatever is posted from here on wakes again
        while self._posted:
            flight, events = self._posted.popleft()
            flight.put(events)

    async def _completion(self, http: HttpRequest) -> "Response | _Guarded":
        return await self._answer(http, completion_ask)

    async def _chat(self, http: HttpRequest) -> "Response | _Guarded":
        return await self._answer(http, chat_ask)

    async def _answer(self, http: HttpRequest, parse: Callable[..., Ask]) -> "Response | _Guarded":
        raw = await _read_body(http)
        request_id = _request_id(http)

        def ask_of_body() -> Ask:
            return parse(parsed_body(raw), self._config, self._model)

        ask = await asyncio.to_thread(ask_of_body) if len(raw) > OFF_LOOP_BYTES else ask_of_body()
        if ask.sampling.max_tokens == 0:
            return await self._scored(ask, request_id)
        flight = self._depart(ask, (_tenant(http), request_id))
        try:
            writer = await self._writer(ask, request_id)
            answer = self._streamed if ask.stream else self._whole
            return await answer(http, flight, writer, {"x-request-id": request_id})
        except BaseException:
            flight.close()
            raise

    async def _scored(self, ask: Ask, request_id: str) -> Response:
        """Answer with the scores of a prompt alone: neither a pool nor the wire hears of it."""
        writer = await self._writer(ask, request_id)
        usage = Usage(prompt_tokens=len(ask.prompt_ids), completion_tokens=0, cached_tokens=0)
        end = EndEvent(
            request_id=request_id, at_ns=0, status=200, finish_reason="length", usage=usage
        )
        return JSONResponse(writer.body([], end), headers={"x-request-id": request_id})

    async def _writer(self, ask: Ask, request_id: str) -> AnswerWriter:
        return AnswerWriter(
            ask=ask,
            model=self._model,
            response_id=f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{request_id}",
            created=self.thread.engine.clock.unix_ns() // 1_000_000_000,
            prompt_scores=await self._scores(ask),
        )

    def _depart(self, ask: Ask, key: tuple[str, str]) -> Flight:
        if key in self._flights:
            refuse(
                "X-Request-Id",
                f"A request `{key[1]}` of this tenant is still alive.",
                status=409,
                code="duplicate_id",
            )
        # Tenants may choose the same id, or that of a request whose client has just gone.
        self._serial += 1
        engine_id = key[1]
        if any(flight.engine_id == engine_id for flight in self._flights.values()):
            engine_id = f"{key[1]}~{self._serial}"
        self._loop = asyncio.get_running_loop()
        flight = Flight(self, engine_id, key)
        self._flights[key] = flight
        salt = ask.cache_salt
        if ask.wants_prompt_logprobs:  # scored prompts neither read nor feed the prefix cache
            salt = f"scored-{secrets.token_hex(16)}"
        request = Request(
            request_id=engine_id,
            prompt_ids=ask.prompt_ids,
            sampling=ask.sampling,
            adapter=ask.adapter,
            cache_salt=salt,
        )
        self.thread.submit(request, flight.hear)
        return flight

    async def _scores(self, ask: Ask) -> list[float] | None:
        if not ask.wants_prompt_logprobs:
            return None
        return await asyncio.wrap_future(self.thread.score(ask.prompt_ids, ask.adapter))

    async def _whole(
        self, http: HttpRequest, flight: Flight, writer: AnswerWriter, headers: dict[str, str]
    ) -> Response:
        try:
            events = await _unless_gone(http, _all_events(flight))
        finally:
            flight.close()
        if events is None:
            return Response(status_code=CLIENT_GONE)
        end = events[-1]
        assert isinstance(end, EndEvent), "the last event is the end"
        if end.error is not None:
            return _error_response(end.error, headers)
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        return JSONResponse(writer.body(tokens, end), headers=headers)

    async def _streamed(
        self, http: HttpRequest, flight: Flight, writer: AnswerWriter, headers: dict[str, str]
    ) -> "Response | _Guarded":
        """Answer with a stream once the engine has admitted the request, else with its refusal."""
        events = await _unless_gone(http, flight.next())
        if events is None:
            flight.close()
            return Response(status_code=CLIENT_GONE)
        first = events[0]
        if isinstance(first, EndEvent) and first.error is not None:
            flight.close()
            return _error_response(first.error, headers)
        response = StreamingResponse(
            _chunks(flight, events, writer),
            media_type="text/event-stream",
            headers=headers | {"cache-control": "no-cache"},
        )
        return _Guarded(response, flight)

    async def _models(self, _: HttpRequest) -> Response:
        return JSONResponse(models_page(self._config, self._model, self.started_unix_s))

    async def _one_model(self, http: HttpRequest) -> Response:
        name, _ = checked_model(http.path_params["name"], self._config, self._model)
        page = models_page(self._config, self._model, self.started_unix_s)
        return JSONResponse(next(entry for entry in page["data"] if entry["id"] == name))

    async def _tokenize(self, http: HttpRequest) -> Response:
        body = parsed_body(await _read_body(http))
        checked_model(body.get("model"), self._config, self._model)

        def tokens_of_body() -> tuple[int, ...]:
            if "messages" in body:
                return tuple(self._model.encode_chat(messages_of(body["messages"])))
            prompt = body.get("prompt", body.get("content"))
            if not isinstance(prompt, str):
                refuse("prompt", "`prompt` must be a string, or `messages` a chat.")
            return encoded(prompt, self._model, "prompt")

        ids = await asyncio.to_thread(tokens_of_body)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self._config.context_tokens,
            "tokens": list(ids),
        }
        if body.get("return_token_strs"):
            answer["token_strs"] = [self._model.decode([token]) for token in ids]
        return JSONResponse(answer)

    async def _detokenize(self, http: HttpRequest) -> Response:
        body = parsed_body(await _read_body(http))
        ids = body.get("tokens")
        if not isinstance(ids, list) or not all(
            type(item) is int and 0 <= item < self._model.vocab_size for item in ids
        ):
            refuse("tokens", f"`tokens` must be a list of ids below {self._model.vocab_size}.")
        return JSONResponse({"prompt": self._model.decode(ids)})

    async def _metrics(self, _: HttpRequest) -> Response:
        text = metrics_page(self._config, self.thread.gauges)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _server_info(self, _: HttpRequest) -> Response:
        return JSONResponse(server_info_page(self._config))

    async def _version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": __version__})

    async def _health(self, _: HttpRequest) -> Response:
        return Response(status_code=200 if self.thread.is_alive else 503)


class _Guarded:
    """A streamed response whose request is let go whatever becomes of the stream."""

    def __init__(self, response: ASGIApp, flight: Flight) -> None:
        self._response = response
        self._flight = flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await self._response(scope, receive, send)
        except OSError:
            pass  # the client went away
        finally:
            self._flight.close()


async def _chunks(
    flight: Flight, events: Sequence[Event], writer: AnswerWriter
) -> AsyncIterator[bytes]:
    while True:
        # A comment first, so that the client hears of its admission before the first token.
        piece = b": admitted\n\n" if isinstance(events[0], AdmittedEvent) else b""
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        if tokens:
            piece += event_of(writer.chunk(tokens))
        end = events[-1]
        if isinstance(end, EndEvent):
            flight.close()
            yield piece + _last_events(end, writer)
            return
        if piece:
            yield piece
        await asyncio.sleep(0)  # so that the loop can hear of a client that has gone
        events = await flight.next()


def _last_events(end: EndEvent, writer: AnswerWriter) -> bytes:
    if end.error is not None:
        last = error_event(end.error)
    else:
        last = event_of(writer.last_chunk(end))
        if writer.ask.include_usage:
            last += event_of(writer.usage_chunk(end))
    return last + b"data: [DONE]\n\n"


async def _all_events(flight: Flight) -> list[Event]:
    events: list[Event] = []
    while not flight.is_over:
        events.extend(await flight.next())
    return events


async def _unless_gone(http: HttpRequest, work: Awaitable[_Result]) -> _Result | None:
    """Return what `work` gives; None, and it is dropped, when the client goes away before."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _read_body(http: HttpRequest) -> bytes:
    """Return the body, or refuse it when it is too large."""
    body = bytearray()
    taken = 0
    async for piece in http.stream():
        taken += len(piece)
        if taken <= BODY_BYTES_MAX:
            body += piece
        elif taken > DRAINED_BYTES_MAX:
            break
    if taken > BODY_BYTES_MAX:
        refuse(
            None,
            f"The body is larger than {BODY_BYTES_MAX} bytes.",
            status=413,
            code="request_too_large",
        )
    return bytes(body)


def _request_id(http: HttpRequest) -> str:
    said = http.headers.get("x-request-id")
    return secrets.token_hex(12) if said is None else checked_id(said)


def _tenant(http: HttpRequest) -> str:
    """Return a name for whoever holds this token; the token itself is not kept."""
    said = http.headers.get("authorization", "")
    token = said.removeprefix("Bearer ").strip()
    if not token:
        return ANONYMOUS
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error.as_json(), status_code=error.status, headers=headers)


async def _refused(http: HttpRequest, refusal: Exception) -> Response:
    assert isinstance(refusal, ApiRefusalError), "registered for refusals alone"
    headers = {}
    said = http.headers.get("x-request-id")
    if said is not None and refusal.error.param != "X-Request-Id" and said.isprintable():
        headers["x-request-id"] = said
    return _error_response(refusal.error, headers)


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTP errors alone"
    return _error_response(
        ApiError(
            status=error.status_code, type="invalid_request_error",
            code=str(error.detail).lower().replace(" ", "_"), message=f"{error.detail}.",
        ),
        dict(error.headers or {}),
    )  # fmt: skip


async def _crashed(_: HttpRequest, __: Exception) -> Response:
    return _error_response(
        ApiError(
            status=500, type="server_error", code="server_crashed",
            message="The server failed on this request; its log tells why.",
        )
    )  # fmt: skip
