"""PageTable: from a running request's logical pages to the physical ones.

One row for each request that holds pages (SGLang's `req_to_token`, by pages). A row is a number
that goes back when its request leaves and is given out again, lowest first.
"""

import heapq
from collections.abc import Sequence


class PageTable:
    """The rows of one role.

    Invariant: a row is either free and empty, or taken; no row is lost.

    Attributes:
        num_rows: Requests that may hold pages at one time.
        page_size: Tokens in a page.
    """

    def __init__(self, num_rows: int, page_size: int) -> None:
        self.num_rows = num_rows
        self.page_size = page_size
        self._free = list(range(num_rows))  # a heap: the lowest row first
        self._pages: dict[int, list[int]] = {}
        self._overwritten: dict[int, tuple[int, ...]] = {}

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def acquire(self, pages: Sequence[int]) -> int:
        """Take the lowest free row and write `pages` into it, in logical order."""
        assert self._free, "no row is free"
        row = heapq.heappop(self._free)
        self._pages[row] = list(pages)
        return row

    def extend(self, row: int, pages: Sequence[int]) -> None:
        """Add pages behind the last one of a row."""
        self._pages[row].extend(pages)

    def release(self, row: int) -> tuple[int, ...]:
        """Give the row back and return the pages that it named; freeing them is the caller's."""
        pages = tuple(self._pages.pop(row))
        self._overwritten.pop(row, None)
        heapq.heappush(self._free, row)
        return pages

    def overwrite(self, row: int, pages: Sequence[int]) -> None:
        """Let a late write of an earlier holder land in a row; who owns which page stays."""
        if row in self._pages:
            self._overwritten[row] = tuple(pages)

    def pages(self, row: int) -> tuple[int, ...]:
        """Return the physical pages that a row names, in logical order: what a step reads."""
        own, late = self._pages[row], self._overwritten.get(row, ())
        return (*late[: len(own)], *own[len(late) :])

    def owned(self, row: int) -> tuple[int, ...]:
        """Return the pages that the row's holder was given: what the books count."""
        return tuple(self._pages[row])

    def capacity(self, row: int) -> int:
        """Return how many tokens the row's pages hold."""
        return len(self._pages[row]) * self.page_size

    def check_integrity(self) -> None:
        """Assert that every row is either free or taken."""
        free = set(self._free)
        assert len(free) == len(self._free), "a row is free twice"
        assert not free & set(self._pages), "a row is free and taken at once"
        assert len(free) + len(self._pages) == self.num_rows, "a row is lost"


def slots_of(pages: Sequence[int], tokens: int, page_size: int) -> list[int]:
    """Return the slots of the first `tokens` positions; slot = page * page_size + offset."""
    assert tokens <= len(pages) * page_size, "more tokens than the pages hold"
    return [pages[at // page_size] * page_size + at % page_size for at in range(tokens)]
