"""HttpTarget against real servers on free ports of the loopback."""

import asyncio
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError, TargetError
from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Wave
from probes.client import http_target
from probes.exchange import HttpLimits

DATA = Path(__file__).parent.parent / "data" / "http"


@dataclass
class Asked:
    """One request as the little server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class LittleServer:
    """A HTTP/1.1 server of raw sockets; `answer(asked, writer)` says what it does."""

    answer: object
    page: object = None
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    alive_now: int = 0
    alive_max: int = 0
    dropped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.server = asyncio.run_coroutine_threadsafe(start, self.loop).result()
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        async def stop():
            self.server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _serve(self, reader, writer):
        try:
            while (asked := await self._read(reader)) is not None:
                self.asked.append(asked)
                self.alive_now += 1
                self.alive_max = max(self.alive_max, self.alive_now)
                try:
                    if asked.method == "GET":
                        await self._page(asked, writer)
                    else:
                        await self.answer(asked, writer)
                    await writer.drain()
                finally:
                    self.alive_now -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped.set()
        finally:
            writer.close()

    async def _read(self, reader):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        return Asked(method, path, headers, body)

    async def _page(self, asked, writer):
        if self.page is not None:
            await self.page(asked, writer)
        elif asked.path == "/v1/models":
            entry = {"id": "little", "object": "model", "owned_by": "nobody", "max_model_len": 512}
            whole(writer, {"object": "list", "data": [entry]})
        else:
            whole(writer, {"error": "not here"}, status=404)


def whole(writer, body, *, status=200, kind="application/json", headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def stream_head(writer):
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\nX-Replica: r7\r\n\r\n"
    )


async def packet(writer, data: bytes, *, wait_s=0.0):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
    await asyncio.sleep(wait_s)


def event(body) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def planned(request_id="r1", tenant="a", text="hello there", **changes):
    return PlannedRequest(
        request_id=request_id,
        tenant=tenant,
        messages=(Message(role="user", content=text),),
        scenario="s",
        stratum="t",
        role=changes.pop("role", Role.CONTROL),
        **changes,
    )


def wave_of(*requests, **changes):
    return Wave(index=0, scenario="s", requests=requests, **changes)


def ask(server, *requests, limits=None, concurrency=None, departed=None, **changes):
    """Send one wave to a little server and return the replies by id."""
    target = http_target(AuditConfig(target=server.url), limits=limits, **changes)
    try:
        sent = target.send(
            wave_of(*requests, concurrency=concurrency),
            lambda item: departed.append(item.request_id) if departed is not None else None,
        )
        return {reply.request_id: reply for reply in sent}
    finally:
        target.close()


def answering(body, **changes):
    async def answer(asked, writer):
        whole(writer, body, **changes)

    return answer


def streaming(*packets):
    async def answer(asked, writer):
        stream_head(writer)
        for data in packets:
            await packet(writer, data, wait_s=0.001)
        writer.write(b"0\r\n\r\n")

    return answer


def choice(text, reason=None, **changes):
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": reason}]} | (
        changes
    )


def test_a_streamed_answer_keeps_text_ids_logprobs_usage_and_time():
    packets = (
        b": keep-alive\n\n",
        event({"id": "cmpl-1", "choices": [{"index": 0, "text": "", "finish_reason": None}]}),
        event(
            {
                "id": "cmpl-1",
                "choices": [
                    {
                        "index": 0,
                        "text": "Grüße",
                        "token_ids": [5, 6],
                        "logprobs": {"token_logprobs": [-0.5, -1.25]},
                    }
                ],
            }
        ),
        event(choice("!", "stop")),
        event(
            {
                "id": "cmpl-1",
                "choices": [],
                "usage": {
                    "prompt_tokens": 11,
                    "completion_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 4},
                },
            }
        ),
        b"data: [DONE]\n\n",
    )
    # Cut inside the two-byte letters and inside the line ends.
    cut = [bytes([byte]) for byte in b"".join(packets)]
    with LittleServer(streaming(*cut)) as server:
        reply = ask(server, planned())["r1"]
    assert reply.outcome is Outcome.ANSWERED
    assert reply.output_text == "Grüße!"
    assert reply.output_token_ids == (5, 6)
    assert reply.output_logprobs == (-0.5, -1.25)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (11, 3, 4)
    assert (reply.finish_reason, reply.response_id, reply.status) == ("stop", "cmpl-1", 200)
    assert reply.replica == "r7"
    assert reply.sent_unix_ns < reply.ended_unix_ns
    assert reply.ttft_ms > 0


def test_a_request_carries_its_id_and_its_tenants_own_token():
    with LittleServer(answering(choice("x", "stop"))) as server:
        ask(server, planned("r1", "a"), planned("r2", "b"), planned("r3", "a"))
    by_id = {
        item.headers["x-request-id"]: item.headers["authorization"]
        for item in server.asked
        if item.method == "POST"
    }
    assert by_id["r1"] == by_id["r3"] != by_id["r2"]
    assert all(value.startswith("Bearer kvaudit-") for value in by_id.values())


def test_extensions_are_not_sent_to_a_server_that_may_not_know_them():
    with LittleServer(answering(choice("x", "stop"))) as server:
        ask(server, planned(cache_salt="s", seed=3, stream=False))
    body = server.asked[-1].json
    assert "cache_salt" not in body
    assert "return_token_ids" not in body
    assert body == {
        "model": "little",
        "prompt": "hello there",
        "max_tokens": 48,
        "temperature": 0.0,
        "seed": 3,
        "logprobs": 1,
    }


def test_chat_joins_reasoning_text_and_tools_in_order():
    def delta(**fields):
        return event({"id": "c", "choices": [{"index": 0, "delta": fields}]})

    packets = (
        delta(role="assistant", content=""),
        delta(reasoning_content="think "),
        delta(reasoning_content="hard"),
        delta(content="The "),
        delta(content="answer"),
        delta(tool_calls=[{"index": 0, "function": {"name": "look_up", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"q":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"KX"}'}}]),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        b"data: [DONE]\n\n",
    )
    with LittleServer(streaming(*packets)) as server:
        reply = ask(server, planned(is_chat=True))["r1"]
    assert reply.output_text == 'think hard\nThe answer\nlook_up\n{"q":"KX"}'
    asked = server.asked[-1]
    assert asked.path == "/v1/chat/completions"
    assert asked.json["messages"] == [{"role": "user", "content": "hello there"}]
    assert asked.json["logprobs"] is True


def test_a_whole_wave_is_in_flight_together():
    gate = asyncio.Event()

    async def answer(asked, writer):
        if server.alive_now == 6:
            gate.set()
        await asyncio.wait_for(gate.wait(), 5)
        whole(writer, choice("x", "stop"))

    departed: list[str] = []
    with LittleServer(answer) as server:
        replies = ask(server, *(planned(f"r{i}") for i in range(6)), departed=departed)
    assert server.alive_max == 6
    assert sorted(departed) == sorted(replies) == [f"r{i}" for i in range(6)]


def test_concurrency_one_sends_in_order_one_after_another():
    async def answer(asked, writer):
        await asyncio.sleep(0.005)
        whole(writer, choice("x", "stop"))

    departed: list[str] = []
    with LittleServer(answer) as server:
        replies = ask(
            server, *(planned(f"r{i}") for i in range(5)), concurrency=1, departed=departed
        )
    assert server.alive_max == 1
    assert departed == list(replies) == [f"r{i}" for i in range(5)]


def test_departing_is_called_in_the_callers_thread_before_anything_is_sent():
    with LittleServer(answering(choice("x", "stop"))) as server:
        target = http_target(AuditConfig(target=server.url))
        seen = []

        def departing(item):
            time.sleep(0.05)
            posts = [asked for asked in server.asked if asked.method == "POST"]
            seen.append((threading.current_thread(), len(posts)))

        list(target.send(wave_of(planned()), departing))
        target.close()
    assert seen == [(threading.main_thread(), 0)]


def test_a_departing_that_raises_ends_the_wave_and_sends_nothing():
    with LittleServer(answering(choice("x", "stop"))) as server:
        target = http_target(AuditConfig(target=server.url))

        def departing(_):
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            list(target.send(wave_of(planned("r1"), planned("r2")), departing))
        target.close()
    assert all(asked.method == "GET" for asked in server.asked)


def test_a_cut_after_tokens_closes_the_connection():
    async def answer(asked, writer):
        stream_head(writer)
        try:
            for index in range(2000):
                await packet(writer, event(choice(f"t{index} ")), wait_s=0.002)
        except ConnectionError:
            server.dropped.set()
            raise

    with LittleServer(answer) as server:
        reply = ask(server, planned(cancel_after_tokens=3, stream=False))["r1"]
        assert server.dropped.wait(5)
    assert reply.outcome is Outcome.CANCELLED
    assert reply.output_text == "t0 t1 t2 "
    assert server.asked[-1].json["stream"] is True


def test_a_cut_at_admission_takes_no_output():
    with LittleServer(streaming(*[event(choice("t"))] * 50)) as server:
        reply = ask(server, planned(cancel_after_tokens=0))["r1"]
    assert reply.outcome is Outcome.CANCELLED
    assert reply.output_text is None


OVER_LIMIT = "This model's maximum context length is 8192 tokens. However, your prompt contains"


@pytest.mark.parametrize(
    ("status", "body", "outcome", "error_type"),
    [
        (400, {"error": {"message": OVER_LIMIT, "type": "BadRequestError"}}, "refused",
         "BadRequestError"),
        (400, {"object": "error", "message": "The input (9001 tokens) is longer than the model's"
               " context length (8192 tokens).", "type": "x", "code": 400}, "refused", "x"),
        (400, {"error": {"code": 400, "message": "request (10501 tokens) exceeds the available"
               " context size", "type": "exceed_context_size_error"}}, "refused",
         "exceed_context_size_error"),
        (413, b"<html><h1>413 Request Entity Too Large</h1></html>", "refused", "html_body"),
        (500, {"error": {"message": "KV transfer failed: waiting timeout", "type": "e"}},
         "refused", "e"),
        (500, {"error": {"message": "boom", "type": "server_error"}}, "error", "server_error"),
        (502, b"<html><title>502 Bad Gateway</title></html>", "error", "html_body"),
        (400, {"error": {"message": "unknown parameter `seed`", "type": "t"}}, "error", "t"),
        (422, {"detail": [{"msg": "Extra inputs are not permitted"}]}, "error", "http_422"),
        (401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, "error",
         "invalid_api_key"),
        (403, b"", "error", "permission"),
        (404, {"detail": "Not Found"}, "error", "not_found"),
        (429, {"error": {"message": "maximum tokens per minute exceeded", "type": "rate"}},
         "rate_limited", "rate"),
        (504, b"upstream timed out", "timeout", "http_504"),
        (307, b"", "error", "redirect"),
        (200, b"<html>cached page</html>", "error", "html_body"),
        (200, b"", "error", "no_answer"),
        (200, {"error": {"message": "overloaded", "type": "over"}}, "error", "over"),
        (200, {"error": {"message": OVER_LIMIT, "type": "t", "code": 400}}, "refused", "t"),
    ],
)  # fmt: skip
def test_what_a_server_says_becomes_the_right_outcome(status, body, outcome, error_type):
    with LittleServer(answering(body, status=status, headers=[("Retry-After", "7")])) as server:
        reply = ask(server, planned(stream=False))["r1"]
    assert (reply.outcome.value, reply.error_type, reply.status) == (outcome, error_type, status)
    assert reply.error_message
    assert ("retry-after", "7") in reply.headers
    assert sum(asked.method == "POST" for asked in server.asked) == 1, "nothing is sent twice"


def test_an_error_in_mid_stream_keeps_the_text_and_is_no_refusal():
    packets = (
        event(choice("half an ans")),
        event({"error": {"message": "KV transfer failed", "type": "e", "code": 500}}),
        b"data: [DONE]\n\n",
    )
    with LittleServer(streaming(*packets)) as server:
        reply = ask(server, planned())["r1"]
    assert reply.outcome is Outcome.ERROR
    assert reply.output_text == "half an ans"
    assert reply.error_message == "KV transfer failed"


def test_an_error_as_the_first_event_that_names_the_transfer_is_a_refusal():
    packets = (
        event({"error": {"message": "KV transfer failed", "code": 500}}),
        b"data: [DONE]\n\n",
    )
    with LittleServer(streaming(*packets)) as server:
        assert ask(server, planned())["r1"].outcome is Outcome.REFUSED


def test_a_stream_that_ends_early_is_an_error_and_not_an_answer():
    with LittleServer(streaming(event(choice("half")))) as server:
        reply = ask(server, planned())["r1"]
    assert (reply.outcome, reply.error_type) == (Outcome.ERROR, "broken_stream")
    assert reply.output_text == "half"


def test_a_connection_that_breaks_in_mid_stream_is_an_error():
    async def answer(asked, writer):
        stream_head(writer)
        await packet(writer, event(choice("half")))
        writer.transport.abort()

    with LittleServer(answer) as server:
        reply = ask(server, planned())["r1"]
    assert reply.outcome is Outcome.ERROR
    assert reply.error_type in ("reset", "broken_response")
    assert reply.output_text == "half"


def test_a_chunk_that_is_no_json_is_counted_as_broken():
    packets = (event(choice("a")), b"data: {oops\n\n", event(choice("b", "stop")))
    with LittleServer(streaming(*packets)) as server:
        reply = ask(server, planned())["r1"]
    assert (reply.outcome, reply.error_type) == (Outcome.ERROR, "broken_chunk")
    assert reply.output_text == "ab"


@pytest.mark.parametrize(
    ("packets", "stage"),
    [((), "first_output_timeout"), ((event(choice("half")),), "next_chunk_timeout")],
)
def test_a_server_that_hangs_is_a_timeout_with_the_name_of_the_stage(packets, stage):
    async def answer(asked, writer):
        stream_head(writer)
        for data in packets:
            await packet(writer, data)
        await asyncio.sleep(30)

    limits = HttpLimits(first_output_s=0.15, idle_s=0.15)
    with LittleServer(answer) as server:
        reply = ask(server, planned(), limits=limits)["r1"]
    assert (reply.outcome, reply.error_type) == (Outcome.TIMEOUT, stage)


def test_keep_alive_comments_do_not_hold_a_run_for_ever():
    async def answer(asked, writer):
        stream_head(writer)
        while True:
            await packet(writer, b": still here\n\n", wait_s=0.01)

    limits = HttpLimits(first_output_s=0.1, idle_s=0.1, total_s=0.4)
    with LittleServer(answer) as server:
        reply = ask(server, planned(), limits=limits)["r1"]
    assert reply.outcome is Outcome.TIMEOUT


def test_an_endless_answer_is_cut_at_the_limit():
    async def answer(asked, writer):
        stream_head(writer)
        while True:
            await packet(writer, event(choice("x" * 1000)))

    with LittleServer(answer) as server:
        reply = ask(server, planned(), limits=HttpLimits(body_bytes_max=20_000))["r1"]
    assert (reply.outcome, reply.error_type) == (Outcome.ERROR, "answer_too_large")


def test_a_server_that_stops_listening_gives_errors_not_exceptions():
    with LittleServer(answering(choice("x", "stop"))) as server:
        target = http_target(AuditConfig(target=server.url))
        target.facts()
    replies = list(target.send(wave_of(planned("r1"), planned("r2")), lambda _: None))
    target.close()
    assert [reply.outcome for reply in replies] == [Outcome.ERROR] * 2
    assert {reply.error_type for reply in replies} == {"refused"}


def test_a_stopped_generator_cuts_what_is_in_flight():
    async def answer(asked, writer):
        if asked.headers["x-request-id"] == "fast":
            whole(writer, choice("x", "stop"))
            return
        stream_head(writer)
        try:
            while True:
                await packet(writer, event(choice("x ")), wait_s=0.005)
        except ConnectionError:
            server.dropped.set()
            raise

    with LittleServer(answer) as server:
        target = http_target(AuditConfig(target=server.url))
        replies = target.send(wave_of(planned("fast"), planned("slow")), lambda _: None)
        assert next(replies).request_id == "fast"
        replies.close()
        assert server.dropped.wait(5)
        target.close()


def test_an_echoed_credential_is_taken_out_of_everything():
    async def answer(asked, writer):
        token = asked.headers["authorization"].removeprefix("Bearer ")
        whole(writer, choice(f"key {token}", "stop"), headers=[("X-Echo", token)])

    with LittleServer(answer) as server:
        target = http_target(
            AuditConfig(target=server.url, tenants=2),
            api_key_env=["KEY_A", "KEY_B"],
            environment={"KEY_A": "sk-secret-a", "KEY_B": "sk-secret-b"},
        )
        (reply,) = target.send(wave_of(planned(stream=False)), lambda _: None)
        target.close()
    assert reply.output_text == "key [credential]"
    assert dict(reply.headers)["x-echo"] == "[credential]"
    assert "sk-secret" not in repr(reply) + repr(target.credentials)


def facts_from(page, *, answer=None, url=None, **changes):
    """Ask a little server with these pages for its facts."""
    with LittleServer(answer, page=page) as server:
        target = http_target(AuditConfig(target=url or server.url), **changes)
        try:
            return target.facts()
        finally:
            target.close()


def served(*names, owner="nobody"):
    async def page(asked, writer):
        if asked.path == "/v1/models":
            whole(writer, {"data": [{"id": name, "owned_by": owner} for name in names]})
        else:
            whole(writer, b"<html>not here</html>", status=404, kind="text/html")

    return page


def test_a_model_that_is_not_served_names_those_that_are():
    with pytest.raises(TargetError, match="does not serve a model `copier`") as caught:
        facts_from(served("llama", "qwen"), model="copier")
    assert caught.value.hint == "it serves `llama`, `qwen`"


def test_without_a_model_the_first_one_served_is_asked_for():
    facts = facts_from(served("llama", "qwen"))
    assert (facts.model, facts.models, facts.kind) == ("llama", ("llama", "qwen"), "unknown")
    assert facts.context_tokens is None
    assert facts.roles == ()


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (401, {"error": {"message": "no"}}, "asks for a key", "--api-key-env"),
        (403, {}, "asks for a key", "--api-key-env"),
        (404, {"detail": "Not Found"}, "answered HTTP 404", "with or without `/v1`"),
        (500, b"", "answered HTTP 500", "base URL"),
        (301, b"", "redirects", "points to"),
        (200, b"<!DOCTYPE html><p>Welcome", "a web page", "base URL"),
        (200, {"models": []}, "something else", "base URL"),
        (200, {"data": []}, "lists no model", "--model"),
    ],
)
def test_a_wrong_url_or_key_is_told_clearly(status, body, message, hint):
    async def page(asked, writer):
        whole(writer, body, status=status, headers=[("Location", "https://elsewhere/v1/models")])

    with pytest.raises(TargetError, match=message) as caught:
        facts_from(page)
    assert hint in caught.value.hint
    assert caught.value.exit_status == 3


def test_a_port_where_nobody_listens_is_told_clearly():
    with LittleServer(None) as server:
        url = server.url
    with pytest.raises(TargetError, match="can't reach") as caught:
        facts_from(None, url=url)
    assert "is the server running" in caught.value.hint


def test_lengths_come_from_the_servers_tokenizer():
    async def answer(asked, writer):
        assert asked.path == "/tokenize"
        words = asked.json["prompt"].split()
        whole(
            writer, {"count": len(words), "max_model_len": 512, "tokens": list(range(len(words)))}
        )

    with LittleServer(answer) as server:
        target = http_target(AuditConfig(target=server.url))
        assert target.count_tokens("one two three") == 3
        assert target.count_tokens("one two three") == 3
        target.close()
    assert sum(asked.path == "/tokenize" for asked in server.asked) == 1, "asked once, then kept"


def test_without_a_tokenizer_lengths_are_fitted_to_calibration_requests_alone():
    async def answer(asked, writer):
        if asked.path == "/tokenize":
            whole(writer, {"detail": "Not Found"}, status=404)
            return
        # 3 tokens for the frame and one for 4 characters; the trigger's count is a lie.
        tokens = 3 + len(asked.json["prompt"]) // 4 if len(asked.json["prompt"]) < 900 else 1
        whole(writer, choice("x", "stop", usage={"prompt_tokens": tokens, "completion_tokens": 1}))

    with LittleServer(answer) as server:
        target = http_target(AuditConfig(target=server.url))
        assert target.count_tokens("x" * 400) is None
        sent = [planned(f"c{n}", text="x" * n, role=Role.CALIBRATION) for n in (40, 200, 360)]
        sent.append(planned("t", text="x" * 1000, role=Role.TRIGGER))
        list(target.send(wave_of(*sent), lambda _: None))
        assert target.count_tokens("x" * 400) == 103
        assert target.count_tokens("x" * 4000) == 1003
        target.close()
    assert sum(asked.path == "/tokenize" for asked in server.asked) == 1, "a 404 is not asked again"


def test_a_private_certificate_authority_must_be_named():
    pair = DATA / "loopback.pem"  # self-signed for localhost and 127.0.0.1, key included
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    with LittleServer(answering(choice("x", "stop")), tls=context) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(TargetError, match="tls") as caught:
            facts_from(None, url=url)
        assert "SSL_CERT_FILE" in caught.value.hint
        target = http_target(AuditConfig(target=url), ca_file=pair)
        (reply,) = target.send(wave_of(planned()), lambda _: None)
        target.close()
    assert reply.outcome is Outcome.ANSWERED


def test_a_file_that_holds_no_certificates_is_told_before_anything_is_sent():
    with pytest.raises(ConfigError, match="can't read certificates"):
        http_target(AuditConfig(target="https://127.0.0.1:1"), ca_file=DATA / "nothing.pem")


def test_a_proxy_from_the_environment_is_used_but_not_for_the_loopback(monkeypatch):
    with LittleServer(answering(choice("x", "stop"))) as proxy, LittleServer(None) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        far = http_target(AuditConfig(target="http://server.invalid"))
        with pytest.raises(TargetError):
            far.facts()  # the little proxy knows no such page
        far.close()
        near = http_target(AuditConfig(target=server.url))
        assert near.facts().model == "little"
        near.close()
    assert [asked.path for asked in proxy.asked] == ["http://server.invalid/v1/models"]


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        (["A", "B", "C"], {"A": "1", "B": "2", "C": "3"}, "3 keys for 2 tenants"),
        (["A", "B"], {"A": "1"}, "`B` is not set"),
        (["A", "B"], {"A": "1", "B": "1"}, "hold the same key"),
        (["A"], {"A": "schlüssel"}, "no header can carry"),
    ],
)
def test_keys_that_do_not_fit_are_told_without_showing_them(names, values, message):
    config = AuditConfig(target="http://127.0.0.1:1", tenants=2)
    with pytest.raises(ConfigError, match=message) as caught:
        http_target(config, api_key_env=names, environment=values)
    assert "schlüssel" not in f"{caught.value.message} {caught.value.hint}"
