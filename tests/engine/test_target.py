import itertools
from dataclasses import replace

import pytest

from engine.config import EngineConfig, with_needs
from engine.engine import build_engine
from engine.faults import fault_plan
from engine.target import ReferenceTarget, reference_target
from kvaudit.clock import SimulatedClock
from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError, StartRefusedError, UnknownNameError
from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Target, Wave

LINE = "the door code of tenant {} is K{}XQ and no other; "


def planned(name, text="hello hello", **kwargs):
    values = {
        "request_id": name, "tenant": "a", "messages": (Message(role="user", content=text),),
        "scenario": "test", "stratum": "test", "role": Role.TRIGGER, "max_tokens": 8,
    }  # fmt: skip
    return PlannedRequest(**{**values, **kwargs})


def wave(*requests, index=0, concurrency=None):
    return Wave(index=index, scenario="test", requests=requests, concurrency=concurrency)


def send(target, *requests, **kwargs):
    left = []
    replies = list(target.send(wave(*requests, **kwargs), lambda p: left.append(p.request_id)))
    assert left == [request.request_id for request in requests]
    return {reply.request_id: reply for reply in replies}


def make_target(fault=None, fixes=(), clock=None, **changes):
    config, _ = with_needs(
        EngineConfig(model="tags", trace=True, **changes), fault_plan(fault, fixes)
    )
    return ReferenceTarget(*build_engine(config, clock=clock))


@pytest.fixture
def target():
    return make_target()


def test_the_reference_engine_is_a_target(target):
    as_protocol: Target = target
    assert as_protocol.count_tokens("abc") == 3


def test_it_says_what_it_is(target):
    facts = target.facts()
    assert facts.kind == "kvaudit-reference"
    assert facts.context_tokens == 2048
    assert facts.models == ("tags", "tags:a", "tags:b")
    assert facts.role("prefill").pool_tokens == 1328
    assert facts.role("prefill").max_input_tokens == 1321
    assert facts.role("decode").max_input_tokens == 2041
    assert facts.prefix_cache is False


def test_the_longest_prompt_it_names_is_answered_and_one_token_more_is_refused(target):
    longest = target.facts().role("prefill").max_input_tokens
    replies = send(target, planned("in", "x" * longest), planned("over", "x" * (longest + 1)))
    assert replies["in"].outcome is Outcome.ANSWERED
    assert replies["over"].outcome is Outcome.REFUSED
    assert replies["over"].status == 400
    assert "1322 tokens" in replies["over"].error_message
    assert replies["over"].output_text is None


def test_an_answer_carries_text_ids_log_probabilities_and_usage(target):
    reply = send(target, planned("a", "one two one t"))["a"]
    assert reply.output_text == "wo one t"
    assert target.model.decode(reply.output_token_ids) == reply.output_text
    assert len(reply.output_logprobs) == 8
    assert all(logprob <= 0 for logprob in reply.output_logprobs)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (13, 8, 0)
    assert (reply.status, reply.finish_reason) == (200, "length")
    assert reply.ttft_ms is not None


def test_the_end_token_is_counted_and_not_shown(target):
    target.model.encode = lambda text: [*b"ab", 256, *b"cdab"]
    reply = send(target, planned("a"))["a"]
    assert reply.finish_reason == "stop"
    assert reply.output_text == ""
    assert reply.completion_tokens == 1


def test_replay_in_process_agrees_with_what_a_healthy_engine_recorded(target):
    request = planned("a", "some words come again, some words come")
    reply = send(target, request)["a"]
    replayed = target.replay_logprobs(request, reply.output_token_ids)
    assert replayed == pytest.approx(list(reply.output_logprobs), abs=1e-6)


def test_a_chat_is_told_from_a_plain_prompt(target):
    chat = planned("a", is_chat=True)
    assert target._prompt_ids(chat) != target._prompt_ids(planned("a"))
    expected = target.model.encode_chat([{"role": "user", "content": "hello hello"}])
    assert send(target, chat)["a"].prompt_tokens == len(expected)


def test_log_probabilities_stay_home_when_nobody_asked(target):
    assert send(target, planned("a", logprobs=False))["a"].output_logprobs is None


def test_an_adapter_is_chosen_by_model_name_and_an_unknown_one_is_refused(target):
    replies = send(target, planned("a", model="tags:a"), planned("b", model="tags:z"))
    assert replies["a"].outcome is Outcome.ANSWERED
    assert (replies["b"].outcome, replies["b"].status) == (Outcome.REFUSED, 404)


def test_replies_come_in_the_order_in_which_they_end(target):
    order = list(
        target.send(
            wave(planned("long", max_tokens=30), planned("short", max_tokens=2)), lambda _: None
        )
    )
    assert [reply.request_id for reply in order] == ["short", "long"]
    assert order[0].ended_unix_ns <= order[1].ended_unix_ns


@pytest.mark.parametrize("concurrency", [1, 2, None])
def test_no_more_are_in_flight_than_the_wave_allows(target, concurrency):
    in_flight, most = set(), 0
    requests = [planned(f"r{number}") for number in range(6)]

    def departing(request):
        nonlocal most
        in_flight.add(request.request_id)
        most = max(most, len(in_flight))

    for reply in target.send(wave(*requests, concurrency=concurrency), departing):
        in_flight.discard(reply.request_id)
    assert most == (concurrency or 6)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_planned_cut_comes_after_so_many_tokens(target, after):
    reply = send(target, planned("a", max_tokens=30, cancel_after_tokens=after))["a"]
    assert reply.outcome is Outcome.CANCELLED
    assert reply.status is None
    assert len(reply.output_token_ids or ()) == after
    # What was under way when it was cut still runs; the next wave finds nothing of it.
    assert send(target, planned("b", max_tokens=40))["b"].completion_tokens == 40
    assert not target.engine.has_work


def test_a_cut_in_the_middle_of_a_transfer_leaves_neighbours_right(target):
    text = LINE.format("b", "7") * 20
    alone = send(make_target(), planned("b", text))["b"]
    cuts = [planned(f"c{n}", "x" * 1300, cancel_after_tokens=0) for n in range(3)]
    replies = send(target, *cuts, planned("b", text))
    assert replies["b"].output_text == alone.output_text
    assert all(replies[cut.request_id].outcome is Outcome.CANCELLED for cut in cuts)
    target.engine.check_integrity()


def test_retire_is_refused_by_name_after_a_wait_that_is_counted_and_not_slept():
    clock = SimulatedClock()
    target = make_target("reject-not-propagated", ["retire"], clock=clock)
    started = clock.now_ns
    reply = send(target, planned("over", "x" * 1400))["over"]
    assert (reply.outcome, reply.status) == (Outcome.REFUSED, 500)
    assert "waiting timeout" in reply.error_message
    assert clock.now_ns == started
    assert reply.ended_unix_ns - reply.sent_unix_ns >= 1_990_000_000


def test_the_incident_shows_in_text_and_the_door_stops_it():
    for fixes, leaks in (((), True), (("door",), False)):
        target = make_target("reject-not-propagated", fixes)
        fills = [
            planned(f"fill-{n}", LINE.format(n, n) * 25, tenant=f"t{n}", role=Role.FILL)
            for n in range(3)
        ]
        send(target, *fills)
        reply = send(target, planned("over", "Z" * 1340, max_tokens=60), index=1)["over"]
        text = reply.output_text or ""
        assert ("door code of tenant" in text) is leaks
        assert reply.outcome is (Outcome.ANSWERED if leaks else Outcome.REFUSED)
        assert (target.engine.trace.reads_of("over").stale > 0) is leaks


def test_other_server_errors_are_censored_and_not_refusals(target, monkeypatch):
    from engine.request import ApiError, EndEvent
    from engine.target import _outcome

    def end(status, code):
        error = ApiError(status=status, type="server_error", code=code, message="m")
        return EndEvent(request_id="a", at_ns=0, status=status, error=error)

    assert _outcome(end(500, "internal")) is Outcome.ERROR
    assert _outcome(end(500, "kv_transfer_timeout")) is Outcome.REFUSED
    assert _outcome(end(429, "queue_full")) is Outcome.RATE_LIMITED


# --- cut short ---------------------------------------------------------------------------------


def _interrupting(model, at):
    """Wrap the model's step so that Ctrl-C hits its `at`-th call."""
    calls, inner = itertools.count(), type(model).step

    def step(cache, steps):
        if next(calls) == at:
            raise KeyboardInterrupt
        return inner(model, cache, steps)

    return step


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_ctrl_c_in_the_middle_of_a_step_leaves_a_usable_engine(at):
    target = make_target(chunk_tokens=128)
    expected = send(make_target(chunk_tokens=128), planned("again", "some words, some"))["again"]
    target.model.step = _interrupting(target.model, at)
    requests = [planned(f"r{n}", f"{n} words " * 60, max_tokens=20) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        list(target.send(wave(*requests), lambda _: None))
    del target.model.step
    assert not target.engine.has_work
    target.engine.check_integrity()
    assert target.engine.decode._role.pool.num_free == 256
    assert target.engine.prefill._role.pool.num_free == 83
    again = send(target, planned("again", "some words, some"))["again"]
    assert again.output_token_ids == expected.output_token_ids


def test_ctrl_c_between_two_entries_of_the_books_leaves_a_usable_engine(target, monkeypatch):
    table = target.engine.decode._role.table

    def acquire(pages):
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "acquire", acquire)  # its pages are taken already
    with pytest.raises(KeyboardInterrupt):
        list(target.send(wave(planned("a"), planned("b")), lambda _: None))
    assert not target.engine.has_work
    target.engine.check_integrity()
    assert target.engine.decode._role.pool.num_free == 256
    assert send(target, planned("a"))["a"].outcome is Outcome.ANSWERED


def test_ctrl_c_while_a_request_departs_leaves_a_usable_engine(target):
    def departing(request):
        if request.request_id == "r2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(target.send(wave(*(planned(f"r{n}") for n in range(4))), departing))
    assert not target.engine.has_work
    assert send(target, planned("r0"))["r0"].outcome is Outcome.ANSWERED


def test_a_consumer_that_stops_leaves_an_empty_engine(target):
    replies = target.send(
        wave(planned("short", max_tokens=2), planned("long", max_tokens=500)), lambda _: None
    )
    assert next(replies).request_id == "short"
    replies.close()
    assert not target.engine.has_work
    target.engine.check_integrity()


# --- built from an audit's configuration -------------------------------------------------------


def test_a_fault_says_on_stderr_what_it_switches_on(capsys):
    target = reference_target(AuditConfig(model="tags", fault="prefix-hash-collision"))
    captured = capsys.readouterr()
    assert "fault `prefix-hash-collision` needs the prefix cache: switched on" in captured.err
    assert captured.out == ""
    assert target.facts().prefix_cache is True


def test_a_healthy_audit_says_nothing(capsys):
    reference_target(AuditConfig(model="tags"))
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


def test_names_that_stand_nowhere_are_refused():
    with pytest.raises(UnknownNameError) as caught:
        reference_target(AuditConfig(model="tags", fault="one-sided-truncat"))
    assert caught.value.nearest == "one-sided-truncate"
    with pytest.raises(StartRefusedError):
        reference_target(AuditConfig(model="tags", fixes=("start-check",)))
    with pytest.raises(ConfigError, match="cuda:77"):
        reference_target(AuditConfig(model="tags", decode_device="cuda:77"))


def test_two_runs_of_one_seed_are_the_same_to_the_last_bit():
    def run():
        target = make_target("reject-not-propagated", deterministic=True)
        fills = [planned(f"fill-{n}", LINE.format(n, n) * 25) for n in range(3)]
        replies = {**send(target, *fills), **send(target, planned("over", "Z" * 1340))}
        return {
            name: replace(reply, sent_unix_ns=None, ttft_ms=None, ended_unix_ns=None)
            for name, reply in replies.items()
        }

    assert run() == run()
