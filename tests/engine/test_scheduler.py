from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import choose_retraction, may_reserve, plan_chunks


@dataclass
class Leg:
    length: int
    computed: int = 0
    ordinal: int = 0


def _borders(leg: Leg, others: list[Leg], chunk: int) -> list[tuple[int, int]]:
    """Compute a leg to its end beside others, first in line; returns its chunks."""
    found = []
    while leg.computed < leg.length:
        for planned in plan_chunks([leg, *others], chunk):
            if planned.leg == 0:
                found.append((planned.start, planned.end))
                leg.computed = planned.end
            else:
                others[planned.leg - 1].computed = planned.end
        others = [other for other in others if other.computed < other.length]
    return found


LENGTHS = st.integers(1, 100)


@given(length=LENGTHS, others=st.lists(LENGTHS, max_size=4), chunk=st.integers(1, 32))
def test_chunk_borders_do_not_depend_on_company(length, others, chunk):
    alone = _borders(Leg(length), [], chunk)
    assert _borders(Leg(length), [Leg(other) for other in others], chunk) == alone


@given(legs=st.lists(LENGTHS, min_size=1, max_size=6), chunk=st.integers(1, 32))
def test_a_step_keeps_to_its_budget_and_always_takes_the_first(legs, chunk):
    plan = plan_chunks([Leg(length) for length in legs], chunk)
    assert sum(part.end - part.start for part in plan) <= chunk
    assert plan[0].leg == 0
    assert plan[0].end > 0


def test_a_cached_prefix_shortens_the_first_chunk_to_the_next_border():
    (chunk,) = plan_chunks([Leg(100, computed=16)], 64)
    assert (chunk.start, chunk.end) == (16, 64)


def test_short_prompts_share_one_step():
    assert [part.leg for part in plan_chunks([Leg(10), Leg(20), Leg(30)], 64)] == [0, 1, 2]


def test_none_is_passed_by_a_later_one():
    assert [part.leg for part in plan_chunks([Leg(60), Leg(60), Leg(2)], 64)] == [0]


def test_a_page_is_kept_for_each_running_request_to_grow_into():
    assert may_reserve(pages=5, free=7, running=2, is_alone=False)
    assert not may_reserve(pages=6, free=7, running=2, is_alone=False)
    assert may_reserve(pages=7, free=7, running=0, is_alone=True)


def test_the_latest_arrival_gives_its_pages_back():
    assert choose_retraction([Leg(1, ordinal=3), Leg(1, ordinal=9), Leg(1)]).ordinal == 9
