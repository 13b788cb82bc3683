"""Red and green of the faults beside the incident, on the stand-in model, scored on the trace."""

import pytest

from engine.config import EngineConfig, with_needs
from engine.engine import Engine
from engine.faults import FAULTS, fault_plan
from engine.tags import TagsModel
from kvaudit.errors import ConfigError

LOST, EARLY, ADAPTER = "lost-chunk", "early-release", "adapter-not-in-key"


def _answers(run):
    return {name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()}


# --- lost-chunk --------------------------------------------------------------------------------


def _lose(run, text):
    for number in range(3):
        run.submit(f"victim-{number}", text(number, 150))
    run.run()
    run.submit("long", text(10, 600))
    run.submit("short", text(11, 128), max_tokens=20)
    run.run()
    return run


def test_a_lost_chunk_leaves_its_own_slots_stale_and_no_other(bench, text):
    run = _lose(bench(LOST, chunk_tokens=64), text)
    assert run.engine.trace.reads_of("long").positions == tuple(range(64, 128))
    assert set(run.engine.trace.reads_of("long").foreign) <= {f"victim-{n}" for n in range(3)}
    assert run.answers["long"].end.status == 200


def test_prompts_of_one_or_two_chunks_are_never_struck(bench, text):
    run, healthy = (_lose(bench(fault, chunk_tokens=64), text) for fault in (LOST, None))
    assert run.engine.trace.reads_of("short").stale == 0
    assert _answers(run)["short"] == _answers(healthy)["short"]
    assert _answers(run)["long"] != _answers(healthy)["long"]


@pytest.mark.parametrize("fix", ["checksum", "coverage"])
def test_checks_of_the_hand_off_refuse_a_lost_chunk(bench, text, fix):
    run = _lose(bench(LOST, [fix], chunk_tokens=64), text)
    end = run.answers["long"].end
    assert (end.status, end.error.code[:3]) == (500, "kv_")
    assert run.engine.trace.reads_of("long").stale == 0
    assert run.answers["short"].end.status == 200
    assert run.is_whole()


@pytest.mark.parametrize("fix", ["door", "retire", "deferred-release", "generation"])
def test_other_fixes_do_not_help_against_a_lost_chunk(bench, text, fix):
    run = _lose(bench(LOST, [fix], chunk_tokens=64), text)
    assert run.engine.trace.reads_of("long").stale == 64


# --- early-release -----------------------------------------------------------------------------


def _cut(run, text):
    """One request is cut right after its first chunk; the next one takes its pages."""
    run.submit("cut", text(1, 600))
    run.step()
    run.engine.cancel("cut")
    run.submit("next", text(2, 300), max_tokens=40)
    run.submit("beside", text(3, 100), max_tokens=40)
    run.run()
    return run


def test_a_late_write_lands_in_the_next_owners_pages(bench, text):
    run = _cut(bench(EARLY), text)
    reads = run.engine.trace.reads_of("next")
    assert reads.foreign == {"cut": 256}, "the first chunk of 256 tokens was under way"
    assert run.answers["next"].end.status == 200


def test_the_healthy_engine_and_the_fix_keep_the_pages_back(bench, text):
    red = _cut(bench(EARLY), text)
    healthy, fixed = _cut(bench(), text), _cut(bench(EARLY, ["deferred-release"]), text)
    for run in (healthy, fixed):
        assert run.engine.trace.reads_of("next").stale == 0
        assert run.is_whole()
    assert _answers(fixed) == _answers(healthy)
    assert _answers(red)["next"] != _answers(healthy)["next"]
    # The answer is right up to the step in which the late write lands.
    assert _answers(red)["next"][0][:4] == _answers(healthy)["next"][0][:4]
    assert _answers(red)["beside"] == _answers(healthy)["beside"]


@pytest.mark.parametrize("fix", ["door", "retire", "checksum", "coverage", "generation"])
def test_other_fixes_do_not_help_against_an_early_release(bench, text, fix):
    run = _cut(bench(EARLY, [fix]), text)
    assert run.engine.trace.reads_of("next").stale == 256


# --- adapter-not-in-key ------------------------------------------------------------------------


def _adapters(run, text):
    prompt = text(1, 300)
    run.submit("base", prompt)
    run.run()
    run.submit("adapted", prompt, adapter="tags:a")
    run.submit("again", prompt)
    run.submit("other", text(2, 300), adapter="tags:b")
    run.run()
    return run


def test_another_adapters_pages_are_served_and_read(bench, text):
    red = _adapters(bench(ADAPTER), text)
    green = _adapters(bench(prefix_cache=True), text)
    cached = {name: answer.end.usage.cached_tokens for name, answer in red.answers.items()}
    assert cached == {"base": 0, "adapted": 288, "again": 288, "other": 0}
    assert red.engine.trace.reads_of("adapted").foreign == {"base": 288}
    assert green.answers["adapted"].end.usage.cached_tokens == 0
    assert green.engine.trace.reads_of("adapted").stale == 0
    for name in ("base", "again", "other"):
        assert red.engine.trace.reads_of(name).stale == 0
        assert _answers(red)[name] == _answers(green)[name]
    assert _answers(red)["adapted"] != _answers(green)["adapted"]


def test_a_model_without_adapters_is_refused():
    class Plain(TagsModel):
        adapters = ()

    config, switched = with_needs(EngineConfig(model="tags"), fault_plan(ADAPTER))
    assert switched == ("prefix cache",)
    with pytest.raises(ConfigError, match="has no adapters"):
        Engine(config, Plain())


# --- all of them -------------------------------------------------------------------------------


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
