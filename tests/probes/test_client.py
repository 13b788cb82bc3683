"""HttpTarget against real servers on free ports of the loopback."""

import asyncio
import threading
import time

import pytest
from little_server import (
    LittleServer,
    answering,
    ask,
    choice,
    event,
    packet,
    planned,
    stream_head,
    streaming,
    wave_of,
    whole,
)

from kvaudit.config import AuditConfig
from kvaudit.records import Outcome
from probes.client import http_target
from probes.exchange import HttpLimits


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
