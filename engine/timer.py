"""EngineClock: the caller's clock plus the time that was skipped, and engine time for timers.

Two times, on purpose. What is *reported* (first token, end) is the caller's clock, moved on by
every wait that was skipped. What timers *decide* by is engine time, which counts steps and skips
and nothing else: the same seed fires the same timers on a fast machine and on a slow one.
"""

from kvaudit.clock import Clock


class EngineClock:
    """A Clock whose waits can be skipped.

    Attributes:
        engine_ns: Engine time since the start, in nanoseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._skipped_ns = 0
        self.engine_ns = 0

    def unix_ns(self) -> int:
        """Return the wall time, skipped waits added."""
        return self._clock.unix_ns() + self._skipped_ns

    def monotonic_ns(self) -> int:
        """Return the monotonic time, skipped waits added."""
        return self._clock.monotonic_ns() + self._skipped_ns

    def tick(self, duration_ns: int) -> None:
        """Let engine time pass: a step was made, or the caller really waited so long."""
        assert duration_ns >= 0, "time does not run backwards"
        self.engine_ns += duration_ns

    def skip(self, duration_ns: int) -> None:
        """Jump over a wait of `duration_ns` in which nothing else would have happened."""
        self.tick(duration_ns)
        self._skipped_ns += duration_ns
