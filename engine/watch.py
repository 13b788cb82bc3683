"""SlotWatcher: whoever follows the slots of both pools: the trace, the sanitizer, or both.

Tags lie beside the keys and values and travel with their pages over the wire, to the host and back.
"""

from collections.abc import Sequence
from typing import Any, Protocol


class SlotWatcher(Protocol):
    """What is told of every write, read and move; what it keeps of a page is its own affair."""

    def wrote(
        self,
        role: str,
        ordinal: int,
        pages: Sequence[int],
        first_position: int,
        tokens: Sequence[int],
    ) -> None:
        """Hear that a request is about to write `tokens` from `first_position` on."""
        ...

    def read(
        self, role: str, ordinal: int, pages: Sequence[int], kv_len: int, *, cached_tokens: int
    ) -> None:
        """Hear that a request is about to read the first `kv_len` slots of its pages."""
        ...

    def take(self, role: str, pages: Sequence[int]) -> Any:
        """Return the tags of `pages`, to travel with them."""
        ...

    def put(self, role: str, pages: Sequence[int], moved: Any) -> None:
        """Lay tags that travelled beside their new place."""
        ...


class Both:
    """Two watchers, told the same; the first one hears first."""

    def __init__(self, first: SlotWatcher, second: SlotWatcher) -> None:
        self._watchers = (first, second)

    def wrote(
        self,
        role: str,
        ordinal: int,
        pages: Sequence[int],
        first_position: int,
        tokens: Sequence[int],
    ) -> None:
        """Tell both."""
        for watcher in self._watchers:
            watcher.wrote(role, ordinal, pages, first_position, tokens)

    def read(
        self, role: str, ordinal: int, pages: Sequence[int], kv_len: int, *, cached_tokens: int
    ) -> None:
        """Tell both."""
        for watcher in self._watchers:
            watcher.read(role, ordinal, pages, kv_len, cached_tokens=cached_tokens)

    def take(self, role: str, pages: Sequence[int]) -> tuple[Any, Any]:
        """Return the tags of both."""
        first, second = self._watchers
        return first.take(role, pages), second.take(role, pages)

    def put(self, role: str, pages: Sequence[int], moved: tuple[Any, Any]) -> None:
        """Lay the tags of both."""
        for watcher, tags in zip(self._watchers, moved, strict=True):
            watcher.put(role, pages, tags)
