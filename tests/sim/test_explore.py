"""Every interleaving of a small protocol: counted, and leaking exactly where a fix is missing."""

import random
from collections import deque
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.explore import World, explore
from engine.faults import FaultPlan, fault_plan
from engine.protocol import FIXES, explore_protocol, scenario
from engine.sim_plan import Scenario, SimRequest
from engine.tags import TagsModel
from kvaudit.cli import main as door

MODEL = TagsModel()
SIZES = EngineConfig(
    model="tags", device="cpu", context_tokens=24, page_size=8, prefill_pool_tokens=16,
    decode_pool_tokens=24, chunk_tokens=8, running_max=2, wire_pages_per_step=1, wire_late_turns=1,
    step_ns=1, deterministic=True, trace=True,
)  # fmt: skip


def world(plan=None, lengths=(9,), cancellable=("A1",), max_tokens=1):
    requests = tuple(
        SimRequest(
            request_id=f"{'AB'[number]}{number + 1}",
            prompt_ids=tuple(b"abcdefghijklmnop"[:length]),
            max_tokens=max_tokens,
            room=number,
        )
        for number, length in enumerate(lengths)
    )
    config = replace(SIZES, faults=plan or FaultPlan())
    return World(Scenario(seed=1, config=config, requests=requests), MODEL, cancellable)


def reach(start):
    """The same states by the plainest search: every move is followed, and compared by its key."""
    seen, moves, frontier = {start.key()}, 0, deque([start])
    while frontier:
        here = frontier.popleft()
        for move in here.moves():
            after = here.copied()
            after.take(move)
            key = after.key()
            moves += key != here.key()
            if key not in seen:
                seen.add(key)
                if after.engine.trace.first_bad is None:
                    frontier.append(after)
    return seen, moves


def test_no_state_is_missed_by_leaving_out_moves_that_change_nothing():
    seen, moves = reach(world())
    found = explore(world())
    assert (found.states, found.leaking) == (len(seen), 0)
    assert found.is_whole
    assert found.ended > 1
    assert found.moves >= moves


def test_every_random_walk_stays_within_the_states_that_were_found():
    seen, _ = reach(world())
    for seed in range(20):
        rng, walker = random.Random(seed), world()
        for _ in range(60):
            walker.take(rng.choice(list(walker.moves())))
            assert walker.key() in seen


def test_a_copy_shares_nothing_that_changes():
    first = world()
    key = first.key()
    second = first.copied()
    assert second.key() == key
    for move in ("submit", "decode.reserve", "prefill.follow", "prefill.admit", "prefill.compute"):
        second.take(move)
    assert first.key() == key != second.key()


def test_a_leak_is_found_by_its_shortest_way_and_that_way_repeats_it():
    plan = fault_plan("reject-not-propagated")
    over_limit = {"lengths": (10,), "cancellable": (), "max_tokens": 2}
    found = explore(world(plan, **over_limit))
    assert found.leaking > 0
    walker = world(plan, **over_limit)
    for move in found.first_leak.path:
        assert walker.engine.trace.first_bad is None
        walker.take(move)
    assert walker.engine.trace.first_bad == found.first_leak.read


def test_a_search_that_gives_up_says_so():
    found = explore(world(), states_max=5)
    assert not found.is_whole
    assert found.states < 20


def test_each_scenario_of_the_protocol_leaves_out_one_fix():
    for left_out in FIXES:
        assert scenario(left_out).config.faults.fixes == set(FIXES) - {left_out}
    assert scenario(None).config.faults.fixes == set(FIXES)


@pytest.mark.slow
def test_the_protocol_leaks_without_each_fix_and_never_with_all():
    done = {one.left_out: one for one in explore_protocol()}
    assert done.keys() == {None, *FIXES}
    assert all(one.found.is_whole for one in done.values())
    assert done[None].found.leaking == 0
    assert all(done[fix].found.leaking >= 1 for fix in FIXES)
    assert done["retire"].found.first_leak.read.reader == "A1"
    for fix in ("deferred-release", "generation"):
        read = done[fix].found.first_leak.read
        assert (read.reader, read.writer) == ("B3", "A2")


def test_exploring_takes_no_other_setting(capsys):
    assert door.run(["sim", "--explore", "--seeds", "9"]) == 2
    assert "`--explore`" in capsys.readouterr().err
