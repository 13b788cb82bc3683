"""PagePool: which pages are free, which are held, and by how many.

Pages are only numbers here; nothing is cleared when a page changes hands, as in real engines. The
lowest free page is always given out first, so freed pages come back in ascending order and a large
reservation takes long intact stretches of what one earlier request left.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol


class PoolWatcher(Protocol):
    """Hears of pages that change hands."""

    def reserved(self, pages: Sequence[int]) -> None:
        """Pages are given out."""
        ...

    def freed(self, pages: Sequence[int]) -> None:
        """Pages are nobody's any more."""
        ...


class PagePool:
    """The pages of one role.

    Invariant: each page is either free, or held by one or more holders; none is lost.

    Attributes:
        num_pages: Size of the pool, in pages.
        watcher: Hears of pages that change hands; None = nobody does.
        quarantine: So many freed pages wait, first in first out, before they are given out again;
            they count as free, and are taken all the same where no other is left.
    """

    def __init__(
        self, num_pages: int, *, watcher: PoolWatcher | None = None, quarantine: int = 0
    ) -> None:
        assert num_pages > 0, "a pool without a page"
        self.num_pages = num_pages
        self.watcher = watcher
        self.quarantine = quarantine
        self._waiting: deque[int] = deque()
        self._free = list(range(num_pages))  # a heap: the lowest page first
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free) + len(self._waiting)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take the `count` lowest free pages, each with one holder, in ascending order."""
        assert 0 <= count <= self.num_free, "more pages than are free"
        self._let_out(keep=max(0, self.num_free - count))
        pages = tuple(heapq.heappop(self._free) for _ in range(count))
        for page in pages:
            assert self._holders[page] == 0, f"page {page} given out twice"
            self._holders[page] = 1
        if self.watcher is not None:
            self.watcher.reserved(pages)
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add a holder to each of `pages`, which must be held already."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Take a holder from each of `pages`; the last one frees the page."""
        freed = []
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is freed twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                freed.append(page)
        self._waiting.extend(freed)
        self._let_out(keep=self.quarantine)
        if self.watcher is not None:
            self.watcher.freed(freed)

    def holders(self, page: int) -> int:
        """Return how many hold `page`; 0 = free."""
        return self._holders[page]

    def check_integrity(self) -> None:
        """Assert that no page is lost and none is both free and held."""
        held = {page for page, count in enumerate(self._holders) if count > 0}
        free = {*self._free, *self._waiting}
        assert min(self._holders) >= 0, "a page has fewer than no holders"
        assert len(free) == self.num_free, "a page is free twice"
        assert not held & free, f"free and held at once: {sorted(held & free)}"
        assert len(held) + len(free) == self.num_pages, "a page is lost"

    def _let_out(self, keep: int) -> None:
        """End the quarantine of all but the last `keep` pages."""
        while len(self._waiting) > keep:
            heapq.heappush(self._free, self._waiting.popleft())
