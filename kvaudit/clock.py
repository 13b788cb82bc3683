"""Wall time or simulated time, always passed in.

Nothing in this project reads the time by itself, so that a run can be repeated to the nanosecond.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def unix_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never run backwards; only differences mean something."""
        ...


class WallClock:
    """The machine's clock."""

    def unix_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return the machine's monotonic time in nanoseconds."""
        return time.perf_counter_ns()


class SimulatedClock:
    """A clock that moves only when told to.

    Attributes:
        now_ns: The simulated time, in nanoseconds since 1970-01-01 UTC.
    """

    def __init__(self, start_unix_ns: int = 1_790_000_000_000_000_000) -> None:
        self.now_ns = start_unix_ns

    def unix_ns(self) -> int:
        """Return the simulated wall time in nanoseconds."""
        return self.now_ns

    def monotonic_ns(self) -> int:
        """Return the same time: simulated time never runs backwards."""
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        """Move on by `duration_ns` nanoseconds, at least 0."""
        assert duration_ns >= 0, "time does not run backwards"
        self.now_ns += duration_ns


def iso_utc(unix_ns: int) -> str:
    """Return a wall time as ISO 8601 in UTC with milliseconds, ending in Z."""
    moment = datetime.fromtimestamp(unix_ns / 1e9, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
