"""Seeds through the whole engine: sound without a fault, and every fault found and shrunk."""

import json
from dataclasses import replace
from functools import cache

import pytest

from engine.faults import FAULTS, fault_plan
from engine.sim import PAIRS, FailureKind, Simulation, simulate
from engine.sim_file import as_json, read_scenario
from engine.sim_plan import Side, Turn, draw_scenario, without_trace
from engine.sim_search import Tally, run_seeds, sim_model
from engine.sim_shrink import shrink
from engine.sim_story import numbered, tell
from engine.tags import TagsModel
from kvaudit.errors import ConfigError, StartRefusedError

MODEL = TagsModel()
HEALTHY = fault_plan(None)
F01 = "reject-not-propagated"


@cache
def first_failure(fault, seeds=2_000):
    for run in run_seeds(1, seeds, fault_plan(fault), MODEL):
        if run.outcome.failure is not None:
            return run
    return None


@cache
def smallest(fault):
    run = first_failure(fault)
    return shrink(run.scenario, run.outcome, MODEL)


@cache
def healthy_tally(seeds):
    tally = Tally()
    for run in run_seeds(1, seeds, HEALTHY, MODEL):
        tally.add(run)
    return tally


def test_healthy_seeds_are_sound_and_see_every_kind_of_ending():
    tally = healthy_tally(60)
    assert not tally.failures, tally.failures[0].outcome.failure
    assert {200, 400, 499, 500, 503} <= set(tally.statuses)
    assert None not in tally.statuses


@pytest.mark.slow
def test_two_hundred_seeds_reach_four_fifths_of_the_pairs():
    tally = healthy_tally(200)
    assert len(PAIRS) - len(tally.unreached) >= 0.8 * len(PAIRS)


@pytest.mark.parametrize(
    "fault", [F01, *(pytest.param(name, marks=pytest.mark.slow) for name in FAULTS if name != F01)]
)
def test_every_fault_fails_within_2000_seeds_and_shrinks_to_six_requests(fault):
    small = smallest(fault)
    assert small.outcome.failure.kind is first_failure(fault).outcome.failure.kind
    assert len(small.scenario.requests) <= 6
    assert small.is_minimal


@pytest.mark.parametrize("fault", FAULTS)
def test_the_shrunk_scenario_is_sound_without_its_fault(fault):
    scenario = smallest(fault).scenario
    config = replace(scenario.config, faults=HEALTHY)
    assert simulate(replace(scenario, config=config), MODEL).failure is None


def test_no_request_can_be_left_out_of_a_shrunk_scenario():
    small = smallest(F01)
    for left_out in small.scenario.requests:
        requests = tuple(one for one in small.scenario.requests if one is not left_out)
        failure = simulate(replace(small.scenario, requests=requests), MODEL).failure
        assert failure is None or failure.kind is not small.outcome.failure.kind


def test_a_seed_runs_twice_the_same():
    for seed in (3, 17):
        first, again = (simulate(draw_scenario(seed, HEALTHY, MODEL), MODEL) for _ in range(2))
        assert first.digest == again.digest
        assert first.turns == again.turns
    assert first.digest != simulate(draw_scenario(4, HEALTHY, MODEL), MODEL).digest


def test_a_drawn_run_is_repeated_by_its_own_schedule():
    scenario = draw_scenario(5, HEALTHY, MODEL)
    drawn = simulate(scenario, MODEL)
    again = simulate(replace(scenario, schedule=drawn.turns), MODEL)
    assert again.digest == drawn.digest


def test_the_trace_and_a_watcher_change_no_figure():
    scenario = draw_scenario(9, HEALTHY, MODEL)
    traced = simulate(scenario, MODEL)
    assert simulate(without_trace(scenario), MODEL).digest == traced.digest
    assert tell(scenario, MODEL).outcome.digest == traced.digest


def test_a_foreign_read_names_both_requests_and_the_place():
    for run in run_seeds(1, 60, fault_plan(F01), MODEL):
        failure = run.outcome.failure
        if failure is not None and failure.kind is FailureKind.FOREIGN_READ:
            break
    read = failure.read
    assert read.reader[0] != read.writer[0]
    assert read.slot // run.scenario.config.page_size == read.page
    assert all(name in failure.message for name in (read.reader, read.writer))


def test_the_answer_is_compared_with_the_models_own():
    """A placeholder's first token is wrong, though nothing foreign was read."""
    kinds = {
        run.outcome.failure.kind
        for run in run_seeds(1, 20, fault_plan(F01), MODEL)
        if run.outcome.failure
    }
    assert FailureKind.WRONG_ANSWER in kinds


def test_an_engine_that_trips_is_a_failure_with_its_words():
    class Tripping(TagsModel):
        def step(self, cache, steps):
            assert len(steps[0].tokens) < 8, "the floor is uneven"
            return super().step(cache, steps)

    failure = simulate(draw_scenario(1, HEALTHY, MODEL), Tripping()).failure
    assert failure.kind is FailureKind.BROKEN_BOOKS
    assert "the floor is uneven" in failure.message


def test_the_start_check_refuses_the_simulated_deployment_too():
    with pytest.raises(StartRefusedError):
        simulate(draw_scenario(1, fault_plan(None, ["start-check"]), MODEL), MODEL)


def test_turns_that_can_do_nothing_are_harmless():
    scenario = draw_scenario(2, HEALTHY, MODEL)
    odd = (
        Turn(Side.CLIENT, "cancel", scenario.requests[0].request_id), Turn(Side.OPERATOR),
        Turn(Side.CLIENT, "submit", scenario.requests[1].request_id),
        Turn(Side.CLIENT, "submit", scenario.requests[1].request_id), Turn(Side.CLOCK),
    )  # fmt: skip
    assert simulate(replace(scenario, schedule=odd), MODEL).failure is None


def test_the_story_tells_who_wrote_what_the_other_read():
    story = tell(smallest(F01).scenario, MODEL)
    words = numbered(story.sentences)
    assert words.lstrip().startswith("1. turn 1: tenant ")
    assert "as 1 token, not" in words
    assert story.outcome.failure.message in words


# --- files -----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    small = smallest(F01)
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(as_json(small.scenario, small.outcome, version="0")))
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_saved_scenario_repeats_the_run_exactly(fault, tmp_path):
    small = smallest(fault)
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(as_json(small.scenario, small.outcome, version="0")))
    read = read_scenario(path)
    assert read == small.scenario
    assert simulate(read, MODEL).digest == small.outcome.digest


def test_a_long_schedule_survives_the_file(tmp_path):
    scenario = draw_scenario(7, HEALTHY, MODEL)
    outcome = simulate(scenario, MODEL)
    whole = replace(scenario, schedule=outcome.turns)
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(as_json(whole, outcome, version="0")))
    assert read_scenario(path) == whole


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "format"),
        ({"schema": 9}, "schema"),
        ({"fault": "reject-not-propagate"}, "no fault"),
        ({"fault": 3}, "no name"),
        ({"fixes": "door"}, "no list"),
        ({"requests": []}, "requests"),
        ({"requests": [{"request_id": "A1"}]}, "requests"),
        ({"requests": 2 * [{"request_id": "A1", "prompt_ids": [1], "max_tokens": 1,
                            "adapter": None, "cache_salt": None, "room": None}]}, "one id"),
        ({"schedule": ["jump"]}, "no turn"),
        ({"schedule": ["submit Z9"]}, "no turn"),
        ({"schedule": ["decode 999999999999"]}, "no turn"),
        ({"schedule": ["decode 999999"]}, "turns"),
        ({"config": {}}, "config"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_scenario_is_refused_with_the_reason(saved, change, words):
    held = json.loads(saved.read_text())
    saved.write_text(json.dumps(held | change))
    with pytest.raises(ConfigError, match=words):
        read_scenario(saved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "/etc"),
        ("page_size", "16"),
        ("page_size", 10**9),
        ("decode_pool_tokens", 10**12),
        ("running_max", 10**12),
        ("step_ns", True),
        ("waiting_timeout_s", -1.0),
    ],
)
def test_a_file_with_an_impossible_deployment_is_refused(saved, field, value):
    held = json.loads(saved.read_text())
    held["config"][field] = value
    saved.write_text(json.dumps(held))
    with pytest.raises(ConfigError):
        read_scenario(saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 5_000, "\udcff"])
def test_a_file_that_is_no_json_is_refused(tmp_path, content):
    path = tmp_path / "seed.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="no scenario"):
        read_scenario(path)


# --- a real model ----------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds_run_on_the_built_in_model_and_repeat():
    model = sim_model("copier")
    for seed in (1, 2):
        first, again = (simulate(draw_scenario(seed, HEALTHY, model), model) for _ in range(2))
        assert first.failure is None, first.failure
        assert first.digest == again.digest


def test_every_turn_keeps_the_books():
    """The check is made after every turn: break a pool in the middle and the next turn tells."""
    simulation = Simulation(draw_scenario(1, HEALTHY, MODEL), MODEL, watcher=_Thief())
    failure = simulation.run().failure
    assert failure.kind is FailureKind.BROKEN_BOOKS
    assert failure.turn == 21


class _Thief:
    """Takes a free page of decode at turn 20."""

    def after(self, simulation, turn, events):
        if simulation.turn == 20:
            simulation.engine.roles[1].pool.allocate(1)
