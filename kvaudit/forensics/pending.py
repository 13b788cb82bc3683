"""Requests that are still open while a log goes on, in bounded memory."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

OPEN_MAX = 20_000
OPEN_CHARS_MAX = 256 << 20

T = TypeVar("T")


class Pending(Generic[T]):
    """Open requests by key, oldest first.

    Whatever exceeds a limit is handed out as far as it came; what comes later for the same id
    becomes a row of its own, and the joins bring the two together again.

    Invariant: `chars` is the sum of the sizes held, and both limits hold after `overflow`.
    """

    def __init__(self, *, items_max: int = OPEN_MAX, chars_max: int = OPEN_CHARS_MAX) -> None:
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._items_max = items_max
        self._chars_max = chars_max
        self.chars = 0

    def __contains__(self, key: str) -> bool:
        """Whether the request is open."""
        return key in self._held

    def get(self, key: str) -> T | None:
        """Return the open request, or None."""
        found = self._held.get(key)
        return found[0] if found is not None else None

    def put(self, key: str, item: T, chars: int = 0) -> None:
        """Open a request, or note that it grew by so many characters."""
        held = self._held.get(key)
        self._held[key] = (item, (held[1] if held else 0) + chars)
        self.chars += chars

    def pop(self, key: str) -> T | None:
        """Close a request and return it."""
        found = self._held.pop(key, None)
        if found is None:
            return None
        self.chars -= found[1]
        return found[0]

    def overflow(self) -> Iterator[T]:
        """Hand out the oldest until both limits hold."""
        while len(self._held) > self._items_max or (self.chars > self._chars_max and self._held):
            _, (item, chars) = self._held.popitem(last=False)
            self.chars -= chars
            yield item

    def drain(self) -> Iterator[T]:
        """Hand out everything, oldest first; for the end of the file."""
        while self._held:
            _, (item, chars) = self._held.popitem(last=False)
            self.chars -= chars
            yield item

    def check_integrity(self) -> None:
        """Assert that the sizes add up."""
        assert self.chars == sum(chars for _, chars in self._held.values()), "sizes do not add up"
