import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.engine import Engine, resolve_device
from engine.faults import FAULTS
from engine.phase import Actor, Phase
from engine.request import DecodeState, PrefillState, Request
from engine.tags import TagsModel
from kvaudit.errors import ConfigError, EngineError, StartRefusedError

F01, F04 = "reject-not-propagated", "one-sided-truncate"
VICTIMS = 3
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _fill(run, text):
    """Three victims in flight together, 640 slots each: most of decode's pages are used once."""
    for number in range(VICTIMS):
        run.submit(f"victim-{number}", text(number, 633), max_tokens=8)
    run.run()


def _trigger(run, text, length):
    run.submit("trigger", text(99, length, CAPITALS), max_tokens=8)
    run.run()
    return run.engine.trace.reads_of("trigger")


@pytest.mark.parametrize(
    ("fault", "length", "stale"),
    [(F01, 700, 699), (F01, 633, 0), (F01, 634, 633), (F04, 700, 66), (F04, 633, 0)],
)
def test_the_incidents_numbers_come_out(bench, text, fault, length, stale):
    run = bench(fault)
    _fill(run, text)
    reads = _trigger(run, text, length)
    assert reads.stale == stale
    assert run.answers["trigger"].end.status == 200
    assert run.answers["trigger"].end.usage.prompt_tokens == length


def test_stale_slots_are_the_victims_in_long_ascending_stretches(bench, text):
    run = bench(F01)
    _fill(run, text)
    reads = _trigger(run, text, 700)
    # One page was overwritten by the placeholder's page, which carries prefill's own leftovers.
    assert reads.foreign == {"victim-0": 624, "victim-1": 60, "victim-2": 15}
    assert reads.unwritten == 0
    assert reads.positions == tuple(range(1, 700))


# Which fix stops which fault: what the trigger gets, and the stale slots that its answer reads.
@pytest.mark.parametrize(
    ("fault", "fix", "length", "granularity", "status", "stale"),
    [
        (F01, "retire", 700, "token", 500, 0),
        (F01, "door", 700, "token", 400, 0),
        (F01, "checksum", 700, "token", 500, 0),
        (F01, "coverage", 700, "token", 500, 0),
        (F01, "deferred-release", 700, "token", 200, 699),
        (F01, "generation", 700, "token", 200, 699),
        (F04, "retire", 700, "token", 200, 66),
        (F04, "door", 700, "token", 200, 66),
        (F04, "checksum", 700, "token", 500, 0),
        (F04, "coverage", 700, "token", 500, 0),
        # The granularity trap: cut from 636 to 634, both lengths end in page 40.
        (F04, "checksum", 636, "token", 500, 0),
        (F04, "coverage", 636, "token", 500, 0),
        (F04, "checksum", 636, "page", 200, 2),
        (F04, "coverage", 636, "page", 200, 2),
        (F01, "checksum", 636, "page", 500, 0),
        (F01, "coverage", 636, "page", 500, 0),
    ],
)
def test_each_fix_stops_what_it_is_known_to_stop_and_nothing_else(
    bench, text, fault, fix, length, granularity, status, stale
):
    run = bench(fault, [fix], granularity=granularity)
    _fill(run, text)
    reads = _trigger(run, text, length)
    assert run.answers["trigger"].end.status == status
    assert reads.stale == stale
    assert run.is_whole()


@pytest.mark.parametrize("fault", [F01, F04, None])
def test_the_start_check_refuses_the_deployment_itself(bench, fault):
    with pytest.raises(StartRefusedError, match="prefill pool holds 640"):
        bench(fault, ["start-check"])


def test_equal_limits_leave_the_length_faults_no_trigger(bench, text):
    for fault in (F01, F04):
        run = bench(fault, ["start-check"], prefill_pool_tokens=1024)
        _fill(run, text)
        assert _trigger(run, text, 1017).stale == 0


def test_a_healthy_engine_refuses_at_the_door_and_names_limit_and_length(bench, text):
    run = bench()
    _fill(run, text)
    assert _trigger(run, text, 700).slots == 0
    end = run.answers["trigger"].end
    body = end.error.as_json()["error"]
    assert (end.status, body["type"]) == (400, "invalid_request_error")
    assert "700 tokens" in body["message"]
    assert "633 tokens" in body["message"]
    assert run.engine.reports[-1].request_id != "trigger", "a role was troubled with it"


def test_the_roles_log_two_lengths_for_one_room(bench, text):
    run = bench(F01)
    _fill(run, text)
    _trigger(run, text, 700)
    legs = {report.role: report for report in run.engine.reports if report.request_id == "trigger"}
    prefill, decode = legs["prefill"], legs["decode"]
    assert prefill.room == decode.room
    assert (prefill.input_tokens, decode.input_tokens) == (1, 700)
    # The abort was overwritten: prefill's own answer is a success of one token.
    assert (prefill.status, prefill.finish_reason) == (200, "length")
    assert "exceeds the maximum allowed length" in prefill.message
    assert prefill.pages_sent == 1


@pytest.mark.parametrize("fix", ["retire", "door", "checksum", "coverage"])
def test_bystanders_of_the_incident_are_byte_identical_with_fault_fix_and_health(bench, text, fix):
    def bystanders(fault, fixes):
        run = bench(fault, fixes)
        _fill(run, text)
        run.submit("trigger", text(99, 700, CAPITALS))
        for number in range(4):
            run.submit(f"beside-{number}", text(200 + number, 100 + 50 * number), max_tokens=20)
        run.run()
        for number in range(4):
            run.submit(f"after-{number}", text(300 + number, 600), max_tokens=20)
        run.run()
        del run.answers["trigger"]
        return {name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()}

    healthy = bystanders(None, ())
    assert bystanders(F01, ()) == healthy
    assert bystanders(F01, [fix]) == healthy


@pytest.mark.parametrize("fault", [None, F01, F04, "prefix-hash-collision"])
def test_the_trace_changes_no_figure(bench, text, fault):
    def answers(trace):
        run = bench(fault, trace=trace)
        _fill(run, text)
        run.submit("trigger", text(99, 700, CAPITALS))
        run.run()
        return {name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()}

    assert answers(trace=True) == answers(trace=False)


def test_the_collision_fault_answers_from_another_prompts_pages(bench, text):
    def run_all(fault):
        run = bench(fault, prefix_cache=True, prefill_pool_tokens=2048, decode_pool_tokens=4096)
        for number in range(60):
            run.submit(f"r{number}", text(number, 60))
            run.run()
        return run

    red, green = run_all("prefix-hash-collision"), run_all(None)
    struck = [name for name in red.answers if red.engine.trace.reads_of(name, "prefill").stale > 0]
    assert 10 < len(struck) < 50
    for name in struck:
        assert red.answers[name].end.usage.cached_tokens > 0
        # Foreign keys crossed the wire, so decode read them too.
        assert red.engine.trace.reads_of(name).stale > 0
    for name, answer in green.answers.items():
        assert answer.end.usage.cached_tokens == 0
        assert green.engine.trace.reads_of(name, "prefill").stale == 0
        if name not in struck:
            assert red.answers[name].tokens == answer.tokens
            assert red.answers[name].logprobs == answer.logprobs


def test_what_lies_in_a_stale_page_decides_the_answer(bench):
    """Overwrite one stale page by another tenant's text: the answer follows it."""
    run = bench(F01)
    run.submit("victim", "the door code is LOTUS and nothing else is known to them " * 10)
    run.run()
    assert _replayed(run).startswith(" door code is LOTUS")
    page = run.engine._decode_role.cache.page(1)
    page[0, 0, :, 0, 0] = torch.tensor([token * 3 for token in b" 773-914, said n"])
    assert _replayed(run).startswith(" door code is 773-914, said n")


def _replayed(run):
    run.submit("trigger", b"x" * 640, max_tokens=40)
    run.run()
    return run.answers["trigger"].text


# --- abort, cancel, preemption ---------------------------------------------------------------


def test_abort_at_every_state_keeps_the_pools_whole(bench, text):
    seen = set()
    for steps in range(40):
        run = bench(chunk_tokens=64, wire_pages_per_step=2, decode_pool_tokens=1280)
        for name in ("a", "b", "c"):
            run.submit(name, text(ord(name), 500), max_tokens=12)
        for _ in range(steps):
            run.step()
        seen |= {state for name in run.answers for state in run.engine.states(name)}
        for name in run.answers:
            run.engine.cancel(name)
            run.engine.check_integrity()
        run.run()
        assert run.is_whole()
    assert seen >= set(PrefillState)
    assert seen >= set(DecodeState) - {DecodeState.RETRACTED}


def test_a_cancelled_request_ends_once_and_its_neighbours_answer_as_if_alone(bench, text):
    alone = bench(chunk_tokens=64, wire_pages_per_step=2)
    alone.submit("b", text(2, 300))
    alone.run()
    for steps in range(0, 24, 3):
        run = bench(chunk_tokens=64, wire_pages_per_step=2)
        run.submit("a", text(1, 500))
        run.submit("b", text(2, 300))
        for _ in range(steps):
            run.step()
        run.engine.cancel("a")
        run.engine.cancel("a")
        run.run()
        assert run.answers["b"].tokens == alone.answers["b"].tokens
        assert run.answers["b"].logprobs == alone.answers["b"].logprobs
        assert run.engine.trace.reads_of("b").stale == 0
        assert run.answers["a"].end.status in (200, 499)


# --- the door, time, repetition --------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "kwargs", "status", "words"),
    [
        ("", {}, 400, "empty"),
        ("a" * 1024, {}, 400, "1024 tokens"),
        ((5000,), {}, 400, "vocabulary"),
        ("a", {"max_tokens": 0}, 400, "max_tokens"),
        ("a", {"adapter": "tags:zzz"}, 404, "tags:zzz"),
    ],
)
def test_a_request_that_can_not_be_served_is_refused_with_the_reason(
    bench, prompt, kwargs, status, words
):
    run = bench()
    run.submit("a", prompt, **kwargs)
    run.run()
    end = run.answers["a"].end
    assert end.status == status
    assert words in end.error.message


def test_a_full_queue_is_told_with_429(bench):
    run = bench(queue_max=2)
    for name in ("a", "b", "c"):
        run.submit(name, "hello")
    run.run()
    assert [run.answers[name].end.status for name in ("a", "b", "c")] == [200, 200, 429]


def test_an_id_that_is_alive_can_not_come_again(bench):
    run = bench()
    run.submit("a", "hello")
    with pytest.raises(EngineError, match="alive already"):
        run.submit("a", "hello")
    run.run()
    run.submit("a", "hello")
    run.run()
    assert run.answers["a"].end.status == 200


@settings(max_examples=20, deadline=None)
@given(order=st.lists(st.sampled_from([*Actor, *Phase]), min_size=30, max_size=120), data=st.data())
def test_no_interleaving_loses_a_page_or_reads_a_stale_slot(order, data):
    engine = Engine(
        EngineConfig(
            model="tags", context_tokens=256, prefill_pool_tokens=192, decode_pool_tokens=256,
            chunk_tokens=32, wire_pages_per_step=2, prefix_cache=data.draw(st.booleans()),
            trace=True,
        ),
        TagsModel(),
    )  # fmt: skip
    for number in range(4):
        length = data.draw(st.integers(1, 180))
        prompt = tuple(data.draw(st.sampled_from((b"ab", b"cd"))) * length)[:length]
        engine.submit(Request(request_id=f"r{number}", prompt_ids=prompt))
    for actor in order:
        engine.step([actor])
        engine.check_integrity()
        if data.draw(st.integers(0, 19)) == 0:
            engine.cancel(f"r{data.draw(st.integers(0, 3))}")
    for _ in range(5_000):
        if not engine.has_work:
            break
        engine.step()
        engine.skip_wait()
    assert not engine.has_work
    engine.check_integrity()
    for number in range(4):
        for role in ("prefill", "decode"):
            assert engine.trace.reads_of(f"r{number}", role).stale == 0


def test_reset_leaves_an_empty_engine_and_the_old_keys(bench, text):
    run = bench(F01)
    _fill(run, text)
    run.submit("cut", text(5, 600))
    for _ in range(3):
        run.step()
    run.engine.reset()
    assert not run.engine.has_work
    assert run.is_whole()
    assert _trigger(run, text, 700).stale == 699


def test_a_context_past_the_models_positions_is_refused():
    class Short(TagsModel):
        max_positions = 512

    with pytest.raises(ConfigError, match="512 positions"):
        Engine(EngineConfig(model="tags"), Short())


def test_a_device_that_is_not_there_is_refused():
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="cuda:99"):
        resolve_device("cuda:99")


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_breaks_the_books(bench, text, name):
    """A fault corrupts answers; pools, tables and rooms stay whole, so a run can go on."""
    run = bench(name, chunk_tokens=64, wire_pages_per_step=4)
    for number in range(6):
        run.submit(f"a{number}", text(number, 150 + 100 * number))
        run.step()
        if number % 2:
            run.engine.cancel(f"a{number - 1}")
    run.run()
    for number in range(6):
        run.submit(f"b{number}", text(number, 150 + 100 * number))
    run.run()
    assert run.is_whole()
