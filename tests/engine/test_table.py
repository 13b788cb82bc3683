import pytest

from engine.table import PageTable, slots_of


def test_a_row_names_its_pages_in_logical_order():
    table = PageTable(2, page_size=4)
    row = table.acquire((7, 3))
    table.extend(row, (5,))
    assert table.pages(row) == (7, 3, 5)
    assert table.capacity(row) == 12


def test_the_lowest_free_row_is_given_out_first():
    table = PageTable(3, page_size=4)
    rows = [table.acquire(()) for _ in range(3)]
    table.release(rows[2])
    table.release(rows[0])
    assert table.acquire(()) == 0
    table.check_integrity()


def test_a_released_row_gives_back_what_it_named():
    table = PageTable(1, page_size=4)
    assert table.release(table.acquire((9, 2))) == (9, 2)
    assert table.num_free == 1


def test_no_row_is_given_out_twice():
    table = PageTable(1, page_size=4)
    table.acquire(())
    with pytest.raises(AssertionError, match="no row is free"):
        table.acquire(())


def test_slots_follow_the_pages_and_stop_inside_the_last_one():
    assert slots_of((5, 2), 6, page_size=4) == [20, 21, 22, 23, 8, 9]


def test_slots_past_the_pages_are_refused():
    with pytest.raises(AssertionError, match="more tokens"):
        slots_of((5,), 5, page_size=4)
