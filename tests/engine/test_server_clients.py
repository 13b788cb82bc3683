"""Clients of the reference server: our own HTTP target, the official client, and a crowd."""

import gc
import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import build_engine
from engine.server import ReferenceServer
from engine.target import ReferenceTarget
from kvaudit.config import AuditConfig
from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Wave
from probes.client import http_target

CONFIG = EngineConfig(model="tags", prefix_cache=True)
PROMPT = "the code is KX42. again: the code is "


@pytest.fixture(scope="module")
def server():
    running = ReferenceServer(CONFIG, host="127.0.0.1", port=0)
    running.start()
    yield running
    assert running.thread.gauges.crashes == 0
    running.stop()


@pytest.fixture
def over_http(server):
    target = http_target(AuditConfig(target=server.url))
    yield target
    target.close()


def in_process():
    return ReferenceTarget(*build_engine(CONFIG))


def planned(request_id, text=PROMPT, **changes):
    fields = {"scenario": "s", "stratum": "t", "role": Role.CONTROL, "tenant": "a"} | changes
    return PlannedRequest(
        request_id=request_id,
        messages=(Message(role="user", content=text),),
        max_tokens=fields.pop("max_tokens", 12),
        **fields,
    )


def replies(target, *requests, concurrency=1):
    wave = Wave(index=0, scenario="s", requests=requests, concurrency=concurrency)
    return list(target.send(wave, lambda _: None))


MIXED = (
    planned("plain"),
    planned("whole", stream=False),
    planned("chat", is_chat=True),
    planned("salted", cache_salt="x", text=PROMPT * 3),
    planned("again", cache_salt="x", text=PROMPT * 3),
    planned("adapter", model="tags:a"),
    planned("unasked", logprobs=False),
    planned("warm", temperature=0.8, seed=7),
    planned("split", text="größe: €100. again: größe: "),
    planned("over", text="x" * 1400),
    planned("far-over", text="x" * 3000),
    planned("nobody", model="nobody"),
)


def test_the_server_says_of_itself_what_the_engine_says_in_process(over_http):
    assert over_http.facts() == in_process().facts()


def test_lengths_are_counted_alike(over_http):
    assert over_http.count_tokens("größe") == in_process().count_tokens("größe") == 7


def test_replies_over_http_are_those_of_the_engine_in_process(over_http):
    # Ids and times are each side's own; a message is worded by whoever says it.
    own = dict.fromkeys(
        ("sent_unix_ns", "ended_unix_ns", "ttft_ms", "response_id", "replica", "error_message")
    )
    got = [replace(reply, headers=(), **own) for reply in replies(over_http, *MIXED)]
    expected = [replace(reply, **own) for reply in replies(in_process(), *MIXED)]
    by_id = {reply.request_id: reply for reply in got}
    # Chats go to another endpoint with another default shape; the text is one all the same.
    for want in expected:
        if want.request_id == "nobody":  # the server does not know it; the engine never sees it
            assert by_id["nobody"].status == want.status == 404
            continue
        assert by_id[want.request_id] == want
    assert by_id["again"].cached_tokens > 0


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_replay_over_http_scores_as_the_engine_does_in_process(over_http, is_chat):
    request = planned(f"replay-{is_chat}", is_chat=is_chat, max_tokens=20)
    (reply,) = replies(over_http, request)
    scored = over_http.replay_logprobs(request, reply.output_token_ids)
    assert scored == pytest.approx(
        in_process().replay_logprobs(request, reply.output_token_ids), abs=1e-6
    )
    assert scored == pytest.approx(reply.output_logprobs, abs=1e-6), "a healthy gap is nothing"


def test_an_answer_that_passes_the_limit_of_its_prompt_is_replayed_all_the_same(over_http):
    limit = over_http.facts().role("prefill").max_input_tokens
    request = planned("edge", text=("abcdefghij" * 200)[:limit], max_tokens=40)
    (reply,) = replies(over_http, request)
    assert (reply.prompt_tokens, len(reply.output_token_ids)) == (limit, 40)
    scored = over_http.replay_logprobs(request, reply.output_token_ids)
    assert scored == pytest.approx(reply.output_logprobs, abs=1e-6)


def test_a_replay_of_an_over_limit_prompt_is_not_available(over_http):
    over = replace(planned("x", text="x" * 1400), prompt_tokens_sent=1400)
    assert "over the limit" in over_http.replay_obstacle(over)
    assert over_http.replay_obstacle(replace(over, prompt_tokens_sent=1321)) is None
    assert over_http.replay_logprobs(planned("x", text="x" * 2046), (1, 2, 3)) is None
    assert over_http.replay_logprobs(planned("x"), ()) is None


def test_a_cut_request_is_cancelled_and_keeps_what_had_come(over_http, server):
    (cut,) = replies(over_http, planned("cut", max_tokens=400, cancel_after_tokens=3))
    assert cut.outcome is Outcome.CANCELLED
    assert len(cut.output_token_ids) >= 3
    (at_once,) = replies(over_http, planned("at-once", max_tokens=400, cancel_after_tokens=0))
    assert at_once.outcome is Outcome.CANCELLED
    assert at_once.output_text is None
    (after,) = replies(over_http, planned("after"))
    assert after.outcome is Outcome.ANSWERED


def test_a_wave_overlaps_in_the_engine(over_http, server):
    sent = [
        planned(f"wave-{number}", text=f"{number} " * 100, max_tokens=40) for number in range(6)
    ]
    came = replies(over_http, *sent, concurrency=None)
    first_end = min(reply.ended_unix_ns for reply in came)
    assert all(reply.sent_unix_ns < first_end for reply in came)


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="tenant-x", max_retries=0) as made:
        yield made


def test_the_official_client_completes(client):
    answer = client.completions.create(
        model="tags", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=1
    )
    assert answer.choices[0].text == "KX42. "
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.token_logprobs) == 6
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_the_official_client_chats_and_streams(client):
    asked = {
        "model": "tags",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_completion_tokens": 8,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked, logprobs=True)
    assert whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content) == 8
    stream = client.chat.completions.create(
        **asked,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Request-Id": "mine"},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8
    assert {chunk.id for chunk in chunks} == {"chatcmpl-mine"}


def test_the_official_client_lists_models_and_meets_its_own_errors(client):
    import openai

    assert [model.id for model in client.models.list()] == ["tags", "tags:a", "tags:b"]
    assert client.models.retrieve("tags:a").id == "tags:a"
    with pytest.raises(openai.BadRequestError, match="maximum allowed length") as caught:
        client.completions.create(model="tags", prompt="x" * 1400)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4", prompt="x")


def memory_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.slow
def test_a_thousand_requests_with_random_disconnects_leave_the_server_whole(server, over_http):
    rng = random.Random(20261130)

    def one(number):
        cut = rng.choice([None, None, 0, 1, 2, 5])
        return planned(
            f"crowd-{number}",
            text=f"request {number} says {rng.getrandbits(64):016x}. " * rng.randint(1, 12),
            tenant=f"t{number % 5}",
            max_tokens=rng.randint(1, 16),
            cancel_after_tokens=cut,
            stream=rng.random() < 0.7,
            is_chat=rng.random() < 0.3,
            temperature=rng.choice([0.0, 0.7]),
        )

    memory = []
    for batch in range(10):
        sent = [one(batch * 100 + number) for number in range(100)]
        came = replies(over_http, *sent, concurrency=16)
        by_id = {reply.request_id: reply for reply in came}
        assert len(by_id) == 100
        for request in sent:
            reply = by_id[request.request_id]
            allowed = {Outcome.ANSWERED}
            if request.cancel_after_tokens is not None:
                allowed.add(Outcome.CANCELLED)
            assert reply.outcome in allowed, reply
        gc.collect()
        memory.append(memory_mib())
    assert server.thread.gauges.crashes == 0
    server.thread.engine.check_integrity()
    prefill, decode = server.thread.engine.roles
    cached = server.thread.engine.prefill.prefix.num_pages
    assert decode.pool.num_free == decode.pool.num_pages
    assert prefill.pool.num_free + cached == prefill.pool.num_pages
    # The first batches warm caches up; from then on nothing may pile up.
    assert memory[-1] - memory[2] < 8, memory
