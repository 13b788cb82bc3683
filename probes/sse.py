"""Server-sent events off a byte stream: pure, incremental, bounded.

Reads what servers really send: UTF-8 split across packets, comments as keep-alive, `data:` with and
without a space, several `data` lines in one event, CR, LF and CRLF.
"""

from collections.abc import Iterator

EVENT_BYTES_MAX = 8 * 1024 * 1024


class EventTooLargeError(ValueError):
    """One event is longer than `EVENT_BYTES_MAX`."""


class EventStream:
    """Takes bytes, gives the data of whole events.

    Invariant: what is kept between two calls holds no whole line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._ended_with_cr = False

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that `piece` completes.

        Raises:
            EventTooLargeError: The event or its line does not end in time.
        """
        if self._ended_with_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a CRLF that a packet border cut
        if piece:
            self._ended_with_cr = piece.endswith(b"\r")
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            event = self._take_line(line)
            if event is not None:
                yield event
        self._bound(len(self._rest))

    def finish(self) -> Iterator[str]:
        """Yield the last event where the server closed without the empty line that ends it."""
        rest, self._rest = self._rest, b""
        for line in (rest, b""):
            event = self._take_line(line)
            if event is not None:
                yield event

    def _take_line(self, line: bytes) -> str | None:
        if line:
            name, _, value = line.partition(b":")
            if name in (b"data", b"\xef\xbb\xbfdata"):
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
                self._bound(self._size)
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data).decode("utf-8", errors="replace")
        self._data = []
        self._size = 0
        return event

    def _bound(self, size: int) -> None:
        if size > EVENT_BYTES_MAX:
            raise EventTooLargeError(f"an event of over {EVENT_BYTES_MAX} bytes")
