"""PagePool: which pages are free, which are held, and by how many.

Pages are only numbers here; nothing is cleared when a page changes hands, as in real engines. The
lowest free page is always given out first, so freed pages come back in ascending order and a large
reservation takes long intact stretches of what one earlier request left.
"""

import heapq
from collections.abc import Iterable


class PagePool:
    """The pages of one role.

    Invariant: each page is either free, or held by one or more holders; none is lost.

    Attributes:
        num_pages: Size of the pool, in pages.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0, "a pool without a page"
        self.num_pages = num_pages
        self._free = list(range(num_pages))  # a heap: the lowest page first
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take the `count` lowest free pages, each with one holder, in ascending order."""
        assert 0 <= count <= len(self._free), "more pages than are free"
        pages = tuple(heapq.heappop(self._free) for _ in range(count))
        for page in pages:
            assert self._holders[page] == 0, f"page {page} given out twice"
            self._holders[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add a holder to each of `pages`, which must be held already."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Take a holder from each of `pages`; the last one frees the page."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is freed twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                heapq.heappush(self._free, page)

    def holders(self, page: int) -> int:
        """Return how many hold `page`; 0 = free."""
        return self._holders[page]

    def check_integrity(self) -> None:
        """Assert that no page is lost and none is both free and held."""
        held = {page for page, count in enumerate(self._holders) if count > 0}
        free = set(self._free)
        assert min(self._holders) >= 0, "a page has fewer than no holders"
        assert len(free) == len(self._free), "a page is free twice"
        assert not held & free, f"free and held at once: {sorted(held & free)}"
        assert len(held) + len(free) == self.num_pages, "a page is lost"
