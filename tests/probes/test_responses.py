"""The Responses API: what is sent, and answers put together from events or one body."""

from hypothesis import given
from hypothesis import strategies as st
from little_server import LittleServer, answering, ask, event, planned, streaming

from kvaudit.config import AuditConfig
from kvaudit.records import Outcome
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import record_of
from probes.catalog import SCENARIOS
from probes.plan import PlanContext
from probes.responses import chunk_of

USAGE = {"input_tokens": 12, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}


def sent(**changes):
    return planned(is_chat=True, is_responses=True, max_tokens=9, **changes)


def body(**changes):
    return {
        "id": "resp_1", "object": "response", "status": "completed", "usage": USAGE, "error": None,
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Grüße"}]},
            {"type": "function_call", "name": "look", "arguments": '{"at": 1}'},
        ],
    } | changes  # fmt: skip


def test_a_request_has_input_and_its_own_limit_and_is_not_stored():
    with LittleServer(answering(body())) as server:
        ask(server, sent())
        (asked,) = [item for item in server.asked if item.method == "POST"]
    assert asked.path == "/v1/responses"
    assert asked.json["input"] == [{"role": "user", "content": "hello there"}]
    assert (asked.json["max_output_tokens"], asked.json["store"]) == (9, False)
    assert not {"messages", "prompt", "max_tokens", "stream_options", "logprobs"} & set(asked.json)


def test_a_whole_body_gives_all_channels_usage_and_reason():
    with LittleServer(answering(body())) as server:
        reply = ask(server, sent(stream=False))["r1"]
    assert reply.outcome is Outcome.ANSWERED
    assert reply.output_text == 'hm\nGrüße\nlook\n{"at": 1}'
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (12, 5, 4)
    assert (reply.finish_reason, reply.response_id) == ("stop", "resp_1")


def test_a_stream_gives_the_same_with_utf8_cut_anywhere():
    text = event({"type": "response.output_text.delta", "delta": "Grüße",
                  "logprobs": [{"logprob": -0.5}]})  # fmt: skip
    cut = text.index("ü".encode()) + 1
    packets = (
        event({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}),
        b": keep-alive\n\n",
        event({"type": "response.reasoning_summary_text.delta", "delta": "hm"}),
        text[:cut],
        text[cut:],
        event({"type": "response.output_item.added", "output_index": 2,
               "item": {"type": "function_call", "name": "look"}}),
        event({"type": "response.function_call_arguments.delta", "output_index": 2,
               "delta": '{"at": 1}'}),
        event({"type": "response.output_text.done", "text": "Grüße"}),
        event({"type": "response.completed", "response": body()}),
    )  # fmt: skip
    with LittleServer(streaming(*packets)) as server:
        reply = ask(server, sent())["r1"]
    assert reply.outcome is Outcome.ANSWERED
    assert reply.output_text == 'hm\nGrüße\nlook\n{"at": 1}'
    assert reply.output_logprobs == (-0.5,)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.response_id) == (12, 4, "resp_1")
    assert reply.ttft_ms is not None


def test_a_stream_without_its_last_event_is_broken():
    packets = (event({"type": "response.output_text.delta", "delta": "half"}),)
    with LittleServer(streaming(*packets)) as server:
        reply = ask(server, sent())["r1"]
    assert (reply.outcome, reply.error_type) == (Outcome.ERROR, "broken_stream")
    assert reply.output_text == "half"


def test_an_answer_cut_by_its_limit_has_length_as_its_reason_and_a_failed_one_is_an_error():
    cut = body(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    failed = body(status="failed", output=[], error={"code": "server_error", "message": "boom"})
    with LittleServer(answering(cut)) as server:
        assert ask(server, sent(stream=False))["r1"].finish_reason == "length"
    with LittleServer(answering(failed)) as server:
        reply = ask(server, sent(stream=False))["r1"]
    assert reply.outcome is Outcome.ERROR
    assert reply.error_message == "boom"
    last = event({"type": "error", "code": "rate", "message": "stop"})
    with LittleServer(streaming(last)) as server:
        assert ask(server, sent())["r1"].error_message == "stop"


def test_a_plan_for_the_responses_api_asks_for_nothing_else():
    facts = ServerFacts(
        model="m", context_tokens=2048, prefix_cache=False,
        roles=(RoleFacts(role="unified", pool_tokens=4096, page_size=16, max_input_tokens=2000),),
    )  # fmt: skip
    config = AuditConfig(target="http://127.0.0.1:1", api="responses", trials=1)
    ctx = PlanContext(config=config, facts=facts, count_tokens=lambda text: len(text.split()))
    for name in ("incident", "edge"):
        wave = SCENARIOS[name].next_wave(ctx, [])
        assert {request.endpoint for request in wave.requests} == {"/v1/responses"}
        assert all(request.is_chat for request in wave.requests)
        assert record_of(wave.requests[0], None, wave=0).endpoint == "/v1/responses"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["type", "object", "output", "response",
                                                       "content", "status", "delta", "item"]),
                                      inner | st.sampled_from(["response", "response.completed",
                                                               "message", "incomplete"]),
                                      max_size=4)))  # fmt: skip
def test_no_event_whatever_its_shape_breaks_the_translation(said):
    chunk_of(said)
