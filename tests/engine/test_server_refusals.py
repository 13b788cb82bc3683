"""What the reference server refuses, and that it stays up."""

import re

import pytest
from reference_server import build, call, complete


@pytest.fixture(scope="module")
def server():
    running = build(prefix_cache=True)
    running.start()
    yield running
    assert running.thread.gauges.crashes == 0
    running.stop()


ANY = {"prompt": "x"}
BAD_BODIES = [
    (b"{oops", 400, "invalid_json", "no JSON"),
    (b'{"prompt": "\xff"}', 400, "invalid_utf8", "byte 12"),
    (b"[1]", 400, "invalid_json", "object"),
    (b"[" * 100_000, 400, "invalid_json", "nested|JSON"),
    (b'{"prompt": "x", "temperature": NaN}', 400, "invalid_json", "NaN"),
    (b"", 400, "invalid_json", "no JSON"),
    (b'{"prompt": "\\ud800"}', 400, "invalid_value", "surrogate"),
    ({}, 400, "invalid_value", "`prompt`"),
    ({"prompt": ""}, 400, "invalid_value", "empty"),
    ({"prompt": []}, 400, "invalid_value", "empty"),
    ({"prompt": [1, 999_999]}, 400, "invalid_value", "below 257"),
    ({"prompt": [1, True]}, 400, "invalid_value", "token ids"),
    ({"prompt": ["a", "b"]}, 400, "invalid_value", "One prompt"),
    ({"prompt": {"a": 1}}, 400, "invalid_value", "`prompt`"),
    (ANY | {"promtp": 1}, 400, "unknown_parameter", "Did you mean `prompt`"),
    (ANY | {"n": 2}, 400, "unsupported_parameter", "`n`"),
    (ANY | {"tools": [{"type": "function"}]}, 400, "unsupported_parameter", "`tools`"),
    (ANY | {"max_tokens": 0}, 400, "invalid_value", "at least 1"),
    (ANY | {"max_tokens": "9"}, 400, "invalid_value", "whole number"),
    (ANY | {"max_tokens": True}, 400, "invalid_value", "whole number"),
    (ANY | {"temperature": 3}, 400, "invalid_value", "from 0 to 2"),
    (ANY | {"temperature": -1}, 400, "invalid_value", "from 0 to 2"),
    (ANY | {"top_p": 0}, 400, "invalid_value", "above 0"),
    (ANY | {"logprobs": 21}, 400, "invalid_value", "from 0 to 20"),
    (ANY | {"seed": 2**64}, 400, "invalid_value", "`seed`"),
    (ANY | {"stream": "yes"}, 400, "invalid_value", "true or false"),
    (ANY | {"stream_options": {}}, 400, "invalid_value", "needs `stream`"),
    (ANY | {"cache_salt": ""}, 400, "invalid_value", "`cache_salt`"),
    (ANY | {"model": 7}, 404, "model_not_found", "Served here"),
    (ANY | {"prompt": "x" * 2048}, 400, "context_length_exceeded", "2048 tokens"),
    (ANY | {"prompt": "x" * 1400}, 400, "context_length_exceeded", "1400 tokens.*prefill"),
    ({"prompt": "x" * 1400, "prompt_logprobs": 0}, 400, "context_length_exceeded", "1400 tokens"),
    (ANY | {"prompt_logprobs": 0, "max_tokens": -1}, 400, "invalid_value", "at least 0"),
    (ANY | {"prompt_logprobs": 0, "max_tokens": 0, "stream": True}, 400, "invalid_value", "only"),
    (
        {"prompt": "x" * 2049, "prompt_logprobs": 0, "max_tokens": 0},
        400,
        "context_length_exceeded",
        "2049 tokens.*2048",
    ),
    ({"prompt": "x" * 10_000_000}, 413, "request_too_large", "larger than"),
    ({"prompt": "x" * 5_000_000}, 400, "context_length_exceeded", "5000000 tokens"),
]


@pytest.mark.parametrize(("body", "status", "code", "message"), BAD_BODIES)
def test_a_bad_request_gets_a_clear_error_and_the_server_stays_up(
    server, body, status, code, message
):
    got, _, answer = call(server, "/v1/completions", body, request_id="bad")
    error = answer["error"]
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert re.search(message, error["message"])
    assert set(error) == {"message", "type", "param", "code"}
    assert complete(server)[0] == 200


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        ["hello"],
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": "\ud800"}],
    ],
)
def test_a_bad_chat_gets_a_clear_error(server, messages):
    status, _, body = call(server, "/v1/chat/completions", {"messages": messages})
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["param"].startswith("messages")


@pytest.mark.parametrize(
    ("path", "status"), [("/nowhere", 404), ("/v1/models/nobody", 404), ("/v1/completions", 405)]
)
def test_a_wrong_path_or_method_is_told_in_the_same_shape(server, path, status):
    got, _, body = call(server, path)
    assert got == status
    assert body["error"]["message"]


def test_an_id_with_control_characters_is_refused(server):
    status, headers, body = call(
        server, "/v1/completions", ANY, headers=[("X-Request-Id", "\u00e9\u00e9")]
    )
    assert (status, body["error"]["param"]) == (400, "X-Request-Id")
    assert "x-request-id" not in headers
