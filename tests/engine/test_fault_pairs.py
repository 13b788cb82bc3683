"""Red and green of the faults beside the incident, on the stand-in model, scored on the trace."""

import pytest

from engine.config import EngineConfig, with_needs
from engine.engine import Engine
from engine.faults import FAULTS, fault_plan
from engine.request import DecodeState
from engine.tags import TagsModel
from engine.transfer import LATE_TURNS, RESENDS_MAX
from kvaudit.errors import ConfigError

PARTIAL, TAIL, EARLY = "partial-transfer", "stale-tail", "early-free-late-writer"
ROW, ADAPTER = "row-reuse", "wrong-adapter-key"


def _answers(run):
    return {name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()}


def _others(fixed_by):
    return sorted({"door", "retire", "checksum", "coverage", "deferred-release"} - {*fixed_by})


# --- partial-transfer --------------------------------------------------------------------------


def _lose(run, text):
    """Seven eighths of prefill's pool of 40 pages are 35: 36 pages are struck, 35 are not."""
    run.submit("victim", text(1, 630))
    run.run()
    run.submit("long", text(10, 570))
    run.submit("shorter", text(12, 560))
    run.run()
    return run


def test_what_is_lost_between_start_and_end_leaves_its_slots_stale_and_no_other(bench, text):
    red, healthy = _lose(bench(PARTIAL), text), _lose(bench(), text)
    reads = red.engine.trace.reads_of("long")
    assert reads.positions == tuple(range(64, 560))
    assert "victim" in reads.foreign
    assert red.answers["long"].end.status == 200
    assert _answers(red)["long"] != _answers(healthy)["long"]
    assert healthy.engine.trace.reads_of("long").stale == 0
    assert red.engine.trace.reads_of("shorter").stale == 0
    assert _answers(red)["shorter"] == _answers(healthy)["shorter"]


@pytest.mark.parametrize("fix", FAULTS[PARTIAL].fixed_by)
def test_checks_of_the_hand_off_ask_for_a_partial_transfer_again(bench, text, fix):
    run, healthy = _lose(bench(PARTIAL, [fix]), text), _lose(bench(), text)
    assert run.answers["long"].end.status == 200
    assert run.engine.trace.reads_of("long").stale == 0
    assert _answers(run) == _answers(healthy)
    assert run.is_whole()


def test_what_is_wrong_when_it_is_sent_again_as_well_is_refused(bench, text, monkeypatch):
    run = bench(PARTIAL, ["checksum"])
    cache = run.engine.wire._destination
    copy, copied = cache.copy_page_from, []

    def tear(source, source_page, page):
        copy(source, source_page, page)
        cache.page(page)[:, 1] += 1
        copied.append(page)

    monkeypatch.setattr(cache, "copy_page_from", tear)
    run.submit("short", text(10, 320))
    run.run()
    end = run.answers["short"].end
    assert (end.status, end.error.code) == (500, "kv_checksum_mismatch")
    assert len(copied) == 20 * (1 + RESENDS_MAX)
    assert run.is_whole()
    monkeypatch.undo()
    run.submit("next", text(11, 320))
    run.run()
    assert run.answers["next"].end.status == 200


@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("fix", FAULTS[PARTIAL].fixed_by)
def test_a_request_may_be_cut_at_any_time_of_its_resending(bench, text, fix, steps):
    run = bench(PARTIAL, [fix])
    run.submit("long", text(10, 600))
    for _ in range(steps):
        run.step()
    run.engine.cancel("long")
    run.submit("next", text(11, 600))
    run.run()
    assert run.engine.trace.reads_of("next").stale == 0
    assert run.is_whole()


@pytest.mark.parametrize("fix", _others(FAULTS[PARTIAL].fixed_by))
def test_other_fixes_do_not_help_against_a_partial_transfer(bench, text, fix):
    run = _lose(bench(PARTIAL, [fix]), text)
    assert run.engine.trace.reads_of("long").stale == 496


# --- stale-tail --------------------------------------------------------------------------------


def _tails(run, text):
    run.submit("before", text(1, 320))
    run.run()
    run.submit("ragged", text(2, 200), max_tokens=20)
    run.submit("whole", text(3, 208), max_tokens=20)
    run.run()
    return run


def test_the_tail_of_the_last_page_is_read_between_prompt_and_answer(bench, text):
    red, healthy = _tails(bench(TAIL), text), _tails(bench(), text)
    reads = red.engine.trace.reads_of("ragged")
    assert reads.positions == tuple(range(200, 208))
    assert reads.foreign == {"before": 8}
    assert healthy.engine.trace.reads_of("ragged").stale == 0
    assert _answers(red)["ragged"][0][0] == _answers(healthy)["ragged"][0][0]
    assert _answers(red)["ragged"] != _answers(healthy)["ragged"]


def test_a_prompt_that_fills_its_last_page_has_no_tail(bench, text):
    red, healthy = _tails(bench(TAIL), text), _tails(bench(), text)
    assert red.engine.trace.reads_of("whole").stale == 0
    assert _answers(red)["whole"] == _answers(healthy)["whole"]


def test_a_rounded_length_stays_within_the_pool(bench, text):
    run = bench(TAIL, prefill_pool_tokens=1024, decode_pool_tokens=1024)
    run.submit("longest", text(1, 1009), max_tokens=40)
    run.run()
    assert len(run.answers["longest"].tokens) == 1, "no room is left behind 1,024 of 1,024"
    assert run.is_whole()


# --- early-free-late-writer --------------------------------------------------------------------


def _cut_on_its_way(run, text):
    """One request is cut right after its first chunk; the next one takes its pages."""
    run.submit("cut", text(1, 600))
    run.step()
    run.engine.cancel("cut")
    run.submit("next", text(2, 300), max_tokens=40)
    run.submit("beside", text(3, 100), max_tokens=40)
    run.run()
    return run


def test_a_late_write_lands_in_the_next_owners_pages(bench, text):
    run = _cut_on_its_way(bench(EARLY), text)
    reads = run.engine.trace.reads_of("next")
    assert reads.foreign == {"cut": 256}, "the first chunk of 256 tokens was under way"
    assert run.answers["next"].end.status == 200


def test_what_has_arrived_already_is_sent_once_more(bench, text):
    run = bench(EARLY)
    run.submit("cut", text(1, 600))
    run.step()
    run.step()
    run.engine.cancel("cut")
    run.submit("next", text(2, 600), max_tokens=40)
    run.run()
    assert run.engine.trace.reads_of("next").foreign == {"cut": 512}


def test_the_healthy_engine_and_the_fix_keep_the_pages_back(bench, text):
    red = _cut_on_its_way(bench(EARLY), text)
    healthy = _cut_on_its_way(bench(), text)
    fixed = _cut_on_its_way(bench(EARLY, FAULTS[EARLY].fixed_by), text)
    for run in (healthy, fixed):
        assert run.engine.trace.reads_of("next").stale == 0
        assert run.is_whole()
    assert _answers(fixed) == _answers(healthy)
    assert _answers(red)["next"] != _answers(healthy)["next"]
    # The answer is right up to the step in which the late write lands.
    assert (
        _answers(red)["next"][0][: LATE_TURNS // 2]
        == (_answers(healthy)["next"][0][: LATE_TURNS // 2])
    )
    assert _answers(red)["beside"] == _answers(healthy)["beside"]


@pytest.mark.parametrize("fix", _others(FAULTS[EARLY].fixed_by))
def test_other_fixes_do_not_help_against_a_late_writer(bench, text, fix):
    run = _cut_on_its_way(bench(EARLY, [fix]), text)
    assert run.engine.trace.reads_of("next").stale == 256


# --- row-reuse ---------------------------------------------------------------------------------


def _cut_while_it_decodes(run, text):
    run.submit("cut", text(1, 300), max_tokens=40)
    while run.engine.states("cut")[1] is not DecodeState.RUNNING:
        run.step()
    run.engine.cancel("cut")
    run.submit("next", text(2, 400), max_tokens=40)
    run.submit("beside", text(3, 100), max_tokens=40)
    run.run()
    return run


def test_the_new_holder_of_a_row_reads_the_pages_of_the_old_one(bench, text):
    run = _cut_while_it_decodes(bench(ROW), text)
    reads = run.engine.trace.reads_of("next")
    # 19 pages were the old holder's; behind its 300 tokens the last of them was never written.
    assert reads.positions == tuple(range(304))
    assert reads.foreign == {"cut": 300}
    assert reads.unwritten == 4
    assert run.answers["next"].end.status == 200
    assert run.is_whole()


def test_with_overlap_the_healthy_engine_and_the_fix_keep_the_row_back(bench, text):
    red = _cut_while_it_decodes(bench(ROW), text)
    healthy = _cut_while_it_decodes(bench(overlap=True), text)
    fixed = _cut_while_it_decodes(bench(ROW, FAULTS[ROW].fixed_by), text)
    for run in (healthy, fixed):
        assert run.engine.trace.reads_of("next").stale == 0
        assert run.is_whole()
    assert _answers(fixed) == _answers(healthy)
    assert _answers(red)["next"][0][0] == _answers(healthy)["next"][0][0]
    assert _answers(red)["next"] != _answers(healthy)["next"]
    assert _answers(red)["beside"] == _answers(healthy)["beside"]


def test_pages_that_wait_for_a_step_that_will_not_come_are_given_out(bench, text):
    """A pool of 40 pages, 38 of them held for a cancelled request's last step."""
    run = bench(overlap=True, decode_pool_tokens=640)
    run.submit("cut", text(1, 600), max_tokens=20)
    while run.engine.states("cut")[1] is not DecodeState.RUNNING:
        run.step()
    run.engine.cancel("cut")
    run.submit("next", text(2, 300))
    run.run()
    assert run.answers["next"].end.status == 200
    assert run.is_whole()


@pytest.mark.parametrize("fix", _others(FAULTS[ROW].fixed_by))
def test_other_fixes_do_not_help_against_a_row_that_is_reused(bench, text, fix):
    run = _cut_while_it_decodes(bench(ROW, [fix]), text)
    assert run.engine.trace.reads_of("next").stale == 304


# --- wrong-adapter-key -------------------------------------------------------------------------


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
