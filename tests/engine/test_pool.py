import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.pool import PagePool

PAGES = 12


class PoolAgainstSets(RuleBasedStateMachine):
    """PagePool against a slow twin: a set of free pages and a count for each holder."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.free = set(range(PAGES))
        self.holders: dict[int, int] = {}

    @rule(data=st.data())
    def allocate(self, data):
        count = data.draw(st.integers(0, len(self.free)))
        expected = tuple(sorted(self.free)[:count])
        assert self.pool.allocate(count) == expected
        self.free -= set(expected)
        self.holders.update(dict.fromkeys(expected, 1))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def retain(self, data):
        page = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.retain((page,))
        self.holders[page] += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        page = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.release((page,))
        self.holders[page] -= 1
        if not self.holders[page]:
            del self.holders[page]
            self.free.add(page)

    @invariant()
    def agrees(self):
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.free)
        assert all(self.pool.holders(page) == self.holders.get(page, 0) for page in range(PAGES))


PoolAgainstSets.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestPoolAgainstSets = PoolAgainstSets.TestCase


def test_freed_pages_come_back_in_ascending_order():
    pool = PagePool(8)
    pages = pool.allocate(8)
    pool.release((pages[6], pages[1], pages[4]))
    assert pool.allocate(3) == (1, 4, 6)


def test_a_page_freed_twice_is_noticed():
    pool = PagePool(2)
    (page,) = pool.allocate(1)
    pool.release((page,))
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release((page,))


def test_more_pages_than_are_free_are_never_given_out():
    pool = PagePool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="more pages than are free"):
        pool.allocate(2)


def test_a_lost_page_is_noticed():
    pool = PagePool(3)
    pool.allocate(1)
    pool._holders[0] = 0
    with pytest.raises(AssertionError, match="a page is lost"):
        pool.check_integrity()
