"""The reference engine over HTTP, asked by plain urllib on a free port of the loopback."""

import http.client
import importlib.util
import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from reference_server import LONG, PROMPT, build, call, chunks_of, complete, free_pages

from engine.server import is_loopback_host, open_port
from kvaudit.errors import ConfigError, StartRefusedError


@pytest.fixture(scope="module")
def server():
    running = build(prefix_cache=True)
    running.start()
    yield running
    assert running.thread.gauges.crashes == 0
    running.stop()


@pytest.fixture
def start():
    """Start servers of one's own; they are stopped at the end."""
    running = []

    def start_one(*args, **kwargs):
        running.append(build(*args, **kwargs))
        running[-1].start()
        return running[-1]

    yield start_one
    for one in running:
        one.stop()


def test_a_completion_has_text_ids_logprobs_and_usage(server):
    status, headers, body = complete(
        server, logprobs=0, return_token_ids=True, request_id="r-17", cache_salt="own"
    )
    choice = body["choices"][0]
    assert status == 200
    assert headers["x-request-id"] == "r-17"
    assert body["id"] == "cmpl-r-17"
    assert body["object"] == "text_completion"
    assert choice["text"] == "KX42. "
    assert choice["token_ids"] == list(b"KX42. ")
    assert choice["prompt_token_ids"] == list(PROMPT.encode())
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["K", "X", "4", "2", ".", " "]
    assert all(value < 0 for value in choice["logprobs"]["token_logprobs"])
    assert body["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 6,
        "total_tokens": len(PROMPT) + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def text_part(text):
    return {"type": "text", "text": text}


def test_a_chat_has_a_message_and_logprobs_by_token(server):
    messages = [
        {"role": "system", "content": "the code is KX42."},
        {"role": "user", "content": [text_part("the code "), text_part("is ")]},
    ]
    status, _, body = call(
        server,
        "/v1/chat/completions",
        {"messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": True},
        request_id="c-1",
    )
    assert (status, body["id"], body["object"]) == (200, "chatcmpl-c-1", "chat.completion")
    message = body["choices"][0]["message"]
    assert message["role"] == "assistant"
    tokens = body["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in tokens) == message["content"]
    assert bytes(tokens[0]["bytes"]).decode() == tokens[0]["token"]


@pytest.mark.parametrize("prompt", [PROMPT, "größe: €100. again: größe: "])
def test_a_stream_adds_up_to_the_whole_answer(server, prompt):
    fields = {"logprobs": 0, "return_token_ids": True, "max_tokens": 12, "cache_salt": prompt}
    _, _, whole = complete(server, prompt, **fields)
    _, headers, text = complete(
        server, prompt, stream=True, stream_options={"include_usage": True}, **fields
    )
    chunks = chunks_of(text)
    assert headers["content-type"].startswith("text/event-stream")
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    logprobs = [
        value
        for choice in choices
        for value in (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
    ]
    assert logprobs == whole["choices"][0]["logprobs"]["token_logprobs"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_streamed_chat_names_its_role_once_and_sends_no_usage_unasked(server):
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3, "stream": True}
    _, _, text = call(server, "/v1/chat/completions", body)
    chunks = chunks_of(text)
    roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(chunks) - 1)
    assert all("usage" not in chunk for chunk in chunks)


def test_token_ids_in_give_what_the_text_gives(server):
    ids = call(server, "/tokenize", {"prompt": PROMPT})[2]["tokens"]
    by_text = complete(server)[2]["choices"][0]["text"]
    assert complete(server, ids)[2]["choices"][0]["text"] == by_text == "KX42. "


def test_tokenize_answers_count_context_and_tokens(server):
    _, _, body = call(server, "/tokenize", {"prompt": "ab", "return_token_strs": True})
    assert body == {"count": 2, "max_model_len": 2048, "tokens": [97, 98], "token_strs": ["a", "b"]}
    _, _, chat = call(server, "/tokenize", {"messages": [{"role": "user", "content": "ab"}]})
    assert chat["count"] == len(chat["tokens"]) > 2
    assert call(server, "/detokenize", {"tokens": [97, 98]})[2] == {"prompt": "ab"}


def test_prompt_logprobs_are_those_of_the_prompt_and_pass_the_cache(server):
    _, _, first = complete(server, logprobs=0, return_token_ids=True)
    choice = first["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    complete(server, ids, max_tokens=1)  # now every full page of it is in the prefix cache
    _, _, replay = complete(server, ids, max_tokens=1, prompt_logprobs=0)
    scores = replay["choices"][0]["prompt_logprobs"]
    assert replay["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert scores[0] is None
    assert len(scores) == len(ids)
    replayed = [
        entry[str(token)]["logprob"] for entry, token in zip(scores[1:], ids[1:], strict=True)
    ]
    assert replayed[-6:] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-6)


def test_a_prompt_can_be_scored_alone_up_to_the_whole_context(server):
    """What prefill would refuse can be scored, since it is handed to nobody."""
    ids = [97 + number % 26 for number in range(2048)]
    ended = server.thread.gauges.ended
    status, _, body = complete(server, ids, max_tokens=0, prompt_logprobs=0)
    (choice,) = body["choices"]
    assert (status, choice["text"], choice["finish_reason"]) == (200, "", "length")
    assert len(choice["prompt_logprobs"]) == 2048
    assert body["usage"]["completion_tokens"] == 0
    assert server.thread.gauges.ended == ended, "the engine has heard of it"
    _, _, short = complete(server, ids[:200], max_tokens=0, prompt_logprobs=0)
    _, _, answered = complete(server, ids[:200], max_tokens=1, prompt_logprobs=0)
    assert short["choices"][0]["prompt_logprobs"] == answered["choices"][0]["prompt_logprobs"]


def test_cached_tokens_are_told_and_a_salt_keeps_prompts_apart(server):
    prompt = "a prefix of more than two pages, which hold sixteen tokens each. " * 2

    def cached(**fields):
        _, _, body = complete(server, prompt, **fields)
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one") > 0
    assert cached(cache_salt="two") == 0
    assert cached() == 0
    assert cached(key="another tenant") > 0, "without a salt, tenants share as they do elsewhere"


def test_adapters_are_listed_and_chosen_by_model(server):
    _, _, listed = call(server, "/v1/models")
    assert [(entry["id"], entry["parent"]) for entry in listed["data"]] == [
        ("tags", None),
        ("tags:a", "tags"),
        ("tags:b", "tags"),
    ]
    assert {entry["max_model_len"] for entry in listed["data"]} == {2048}
    assert complete(server, model="tags:a")[2]["model"] == "tags:a"
    assert call(server, "/v1/models/tags:b")[2]["id"] == "tags:b"
    status, _, body = complete(server, model="gpt-4")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "`tags:b`" in body["error"]["message"]


def test_pages_of_the_server_tell_both_roles(server):
    _, _, info = call(server, "/server_info")
    assert info["context_length"] == 2048
    assert info["roles"]["prefill"]["max_total_num_tokens"] == 1328
    assert info["roles"]["prefill"]["max_req_input_len"] == 1322
    assert info["roles"]["decode"]["max_total_num_tokens"] == 4096
    _, _, metrics = call(server, "/metrics")
    assert 'kvaudit:max_total_num_tokens{engine_type="decode"} 4096' in metrics
    assert call(server, "/health")[0] == 200
    assert call(server, "/version")[2]["version"]


def open_stream(server, *, request_id, key="k", prompt="y" * 500, max_tokens=60_000):
    """Send a long streamed request over a socket of its own; returns it after the first chunk."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps(body),
        {"Authorization": f"Bearer {key}", "X-Request-Id": request_id},
    )
    response = connection.getresponse()
    assert response.status == 200
    assert response.read(20)
    return connection, response


def hang_up(connection, response):
    connection.sock.shutdown(socket.SHUT_RDWR) if connection.sock else None
    response.close()
    connection.close()


def test_two_requests_of_one_tenant_with_one_id_clash_and_those_of_two_do_not(start):
    server = start(**LONG)
    held = open_stream(server, request_id="same", key="a")
    status, _, body = complete(server, request_id="same", key="a")
    assert (status, body["error"]["code"]) == (409, "duplicate_id")
    status, headers, body = complete(server, request_id="same", key="b")
    assert (status, headers["x-request-id"], body["id"]) == (200, "same", "cmpl-same")
    assert server.thread.gauges.requests_alive == 1, "the first one goes on"
    hang_up(*held)
    assert free_pages(server) == (0, 0)
    assert complete(server, request_id="same", key="a")[0] == 200


def test_a_client_that_goes_away_in_mid_stream_frees_its_pages(start):
    server = start(**LONG)
    held = [open_stream(server, request_id=f"r{number}") for number in range(2)]
    hang_up(*held[0])
    hang_up(*held[1])
    assert free_pages(server) == (0, 0)
    assert dict(server.thread.gauges.ended).get(200) is None


def test_a_client_that_goes_away_before_a_whole_answer_frees_its_pages(start):
    server = start(**LONG)
    parts = urlsplit(server.url)
    body = json.dumps({"prompt": "y" * 500, "max_tokens": 60_000, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.sendall(head.encode() + body)
        deadline = time.monotonic() + 10
        while not server.thread.gauges.requests_alive:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    assert free_pages(server) == (0, 0)
    assert dict(server.thread.gauges.ended).get(200) is None


def test_a_body_that_never_comes_whole_harms_nobody(start):
    server = start()
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
        assert complete(server)[0] == 200
    assert complete(server)[0] == 200


def test_a_step_that_fails_ends_its_requests_with_500_and_the_server_goes_on(start, capfd):
    server = start()
    engine = server.thread.engine
    model_step = engine.prefill.step
    engine.prefill.step = lambda *_: 1 / 0
    status, _, body = complete(server)
    assert (status, body["error"]["code"]) == (500, "engine_crashed")
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert engine.prefill.step is not model_step, "reset has made new workers"
    assert complete(server)[0] == 200
    assert server.thread.gauges.crashes == 1


def test_a_stop_ends_streams_in_flight_and_gives_the_port_back(start):
    server = start(**LONG)
    held = open_stream(server, request_id="r")
    port = urlsplit(server.url).port
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 9
    assert not server.is_alive
    hang_up(*held)
    open_port("127.0.0.1", port).close()


def by_hand():
    """Load the script, which knows nothing of this project."""
    path = Path(__file__).with_name("leak_by_hand.py")
    spec = importlib.util.spec_from_file_location("leak_by_hand", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("model", ["tags", pytest.param("copier", marks=pytest.mark.slow)])
def test_under_the_fault_one_tenants_text_comes_out_of_another_tenants_request(start, model):
    script = by_hand()
    secret, status, answer = script.leak(start("reject-not-propagated", model=model).url)
    assert status == 200
    assert script.shared(secret, answer), answer
    assert "flour" not in answer


@pytest.mark.parametrize("model", ["tags", pytest.param("copier", marks=pytest.mark.slow)])
def test_without_the_fault_the_same_requests_are_refused_and_leak_nothing(start, model):
    script = by_hand()
    secret, status, answer = script.leak(start(model=model).url)
    assert status == 400
    assert "1330 tokens" in answer
    assert script.shared(secret, answer) is None


def test_a_transfer_that_was_stopped_is_told_in_the_stream_and_to_a_whole_request(start):
    server = start("reject-not-propagated", ["coverage"])
    prompt = "Q" * 1400
    status, _, body = complete(server, prompt)
    assert (status, body["error"]["code"]) == (500, "kv_transfer_incomplete")
    _, _, text = complete(server, prompt, stream=True)
    (error,) = (
        [chunk["error"] for chunk in chunks_of(text)] if isinstance(text, str) else [text["error"]]
    )
    assert error["code"] == "kv_transfer_incomplete"


def test_a_start_check_refuses_before_anything_listens():
    with pytest.raises(StartRefusedError, match="prefill pool"):
        build("reject-not-propagated", ["start-check"])


def test_a_taken_port_is_told_at_once(server):
    with pytest.raises(ConfigError, match="can't listen") as caught:
        open_port("127.0.0.1", urlsplit(server.url).port)
    assert "--port" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70_000, "is no port"),
        ("127.0.0.1", -1, "is no port"),
        ("no.such.host.invalid", 0, "no host of this machine"),
        ("192.0.2.1", 0, "can't listen"),
    ],
)
def test_a_host_or_port_that_does_not_fit_is_told(host, port, message):
    with pytest.raises(ConfigError, match=message):
        open_port(host, port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_hosts_are_known(host, expected):
    assert is_loopback_host(host) is expected
