"""The pure parts of the client: addresses, event streams, answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.errors import ConfigError
from probes.address import is_loopback, server_address
from probes.answer import Answer
from probes.replay import scores_of
from probes.sse import EVENT_BYTES_MAX, EventStream, EventTooLargeError


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://h:1/v1", "http://h:1"),
        ("https://H.example/v1/", "https://h.example"),
        ("https://h/openai/v1/chat/completions", "https://h/openai"),
        ("http://h/v1/models", "http://h"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_a_base_url_may_end_in_v1_or_in_one_endpoint(url, root):
    address = server_address(url)
    assert (address.root, address.api) == (root, f"{root}/v1")


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://h", "http://", "http://h:port", "http://h?x=1", "http://h/a b", ""],
)
def test_what_is_no_base_url_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        server_address(url)
    assert "base URL" in caught.value.hint or "white space" in caught.value.message


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as caught:
        server_address("http://me:hunter2@h")
    assert "hunter2" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:1", True),
        ("http://a.localhost", True),
        ("http://127.8.9.1", True),
        ("http://[::1]", True),
        ("http://0.0.0.0:8000", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://10.0.0.1", False),
    ],
)
def test_only_this_machine_is_loopback(url, expected):
    assert is_loopback(url) is expected


@given(
    texts=st.lists(st.text(alphabet="aß€𝄞: \t", max_size=8), max_size=6),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
    data=st.data(),
)
def test_events_do_not_depend_on_where_packets_are_cut(texts, ending, data):
    raw = "".join(
        f": comment{ending}data: {text}{ending}id: 4{ending}{ending}" for text in texts
    ).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    stream = EventStream()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        got.extend(stream.feed(raw[start:end]))
    got.extend(stream.finish())
    assert got == texts


def test_lines_of_one_event_are_joined_and_an_unfinished_event_is_given_at_the_end():
    stream = EventStream()
    assert list(stream.feed(b"data:one\ndata: two\n\nevent: x\ndata: last")) == ["one\ntwo"]
    assert list(stream.finish()) == ["last"]


def test_an_event_without_end_is_refused():
    stream = EventStream()
    with pytest.raises(EventTooLargeError):
        list(stream.feed(b"data: " + b"x" * (EVENT_BYTES_MAX + 1)))


def test_many_short_lines_of_one_event_are_bounded_too():
    stream = EventStream()
    line = b"data: " + b"x" * 1000 + b"\n"
    lines = line * (EVENT_BYTES_MAX // 1000 + 2)
    with pytest.raises(EventTooLargeError):
        list(stream.feed(lines))


def test_a_whole_chat_body_gives_all_channels():
    answer = Answer()
    answer.add(
        {
            "id": "c1",
            "system_fingerprint": "fp",
            "choices": [
                {
                    "message": {
                        "reasoning": "hm",
                        "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
                        "tool_calls": [
                            {"id": "t", "function": {"name": "f", "arguments": "{}"}},
                        ],
                    },
                    "logprobs": {"content": [{"token": "A", "logprob": -0.25}]},
                    "finish_reason": {"type": "length", "length": 3},
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2},
        }
    )
    assert answer.text == "hm\nAB\nf\n{}"
    assert answer.logprobs == (-0.25,)
    assert (answer.finish_reason, answer.response_id, answer.fingerprint) == ("length", "c1", "fp")
    assert answer.usage.cached_tokens == 2


def test_a_log_probability_that_is_no_number_makes_them_all_unknown():
    answer = Answer()
    answer.add({"choices": [{"text": "x", "logprobs": {"token_logprobs": [-1.0, None]}}]})
    assert answer.logprobs is None
    nan = Answer()
    nan.add(json.loads('{"choices": [{"text": "x", "logprobs": {"token_logprobs": [NaN]}}]}'))
    assert nan.logprobs is None


def test_a_second_choice_is_kept_apart_and_not_lost():
    answer = Answer()
    answer.add({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]})
    assert answer.text == "a\nb"


def test_scores_are_taken_only_where_every_token_is_there_by_its_id():
    def body(*entries):
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}

    good = body({"5": {"logprob": -1}}, {"6": {"logprob": -0.5, "rank": 1}, "9": {"logprob": -0.1}})
    assert scores_of(good, [4, 5, 6], last=2) == [-1.0, -0.5]
    assert scores_of(good, [4, 5, 7], last=2) is None, "another token was scored"
    assert scores_of(good, [4, 5, 6, 6], last=2) is None, "shifted by one"
    assert scores_of(body({"5": {"logprob": None}}), [4, 5], last=1) is None
    assert scores_of(body({"5": {"logprob": float("nan")}}), [4, 5], last=1) is None
    for other in (None, {}, {"choices": []}, {"choices": [{"text": "x"}]}):
        assert scores_of(other, [4, 5], last=1) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "text", "content", "usage", "error", "tool_calls",
                 "function", "logprobs", "token_logprobs", "token_ids", "finish_reason", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(chunks=st.lists(JSON, max_size=3))
def test_no_chunk_whatever_its_shape_breaks_the_answer(chunks):
    answer = Answer()
    for chunk in chunks:
        answer.add(chunk)
    assert isinstance(answer.text, str)
    assert answer.usage.prompt_tokens is None or answer.usage.prompt_tokens >= 0
