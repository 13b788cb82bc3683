"""Progress on stderr: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

import sys
from typing import Any

from kvaudit.cli.terminal import escape, has_colour, say
from kvaudit.clock import Clock
from kvaudit.target import Wave

MEGABYTE = 1_000_000

LINE_EVERY_NS = 2_000_000_000


class Progress:
    """Tells how far a run is; knows nothing but counts and the names of the plan."""

    def __init__(self, clock: Clock, *, quiet: bool, planned: int) -> None:
        self._clock = clock
        self._quiet = quiet
        self._planned = planned
        self._ended = 0
        self._told_ns: int | None = None
        self._bar: Any = None
        self._task: Any = None
        if not quiet and has_colour(sys.stderr):
            self._start_bar()

    def wave(self, wave: Wave) -> None:
        """A wave is about to be sent."""
        what = escape(f"{wave.scenario}, wave {wave.index}")
        if self._bar is not None:
            self._bar.update(self._task, description=what)
        elif not self._quiet and self._is_due():
            say(f"{self._ended} of {self._planned} requests done; now {what}")

    def ended(self, count: int = 1) -> None:
        """So many requests have ended."""
        self._ended += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._ended)

    def close(self) -> None:
        """Leave the screen as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _is_due(self) -> bool:
        now = self._clock.monotonic_ns()
        if self._told_ns is not None and now - self._told_ns < LINE_EVERY_NS:
            return False
        self._told_ns = now
        return True

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("starting", total=self._planned)
        self._bar.start()


class ScanProgress:
    """Tells how far a scan is: bytes, bytes a second, time to go, then the steps after it."""

    def __init__(self, clock: Clock, *, quiet: bool) -> None:
        self._clock = clock
        self._quiet = quiet
        self._told_ns: int | None = None
        self._bar: Any = None
        self._task: Any = None

    def ingested(self, progress: Any) -> None:
        """So much has been read: an `IngestProgress`."""
        if self._quiet:
            return
        done, total = progress.bytes_done / MEGABYTE, (progress.bytes_total or 0) / MEGABYTE
        rate = progress.bytes_per_s / MEGABYTE
        if has_colour(sys.stderr):
            self._show(done, total, f"{progress.rows:,} records, {rate:.1f} MB/s")
            return
        now = self._clock.monotonic_ns()
        if self._told_ns is not None and now - self._told_ns < LINE_EVERY_NS:
            return
        self._told_ns = now
        of = f" of {total:.1f}" if total else ""
        eta = f", about {progress.eta_s:.0f} s to go" if progress.eta_s is not None else ""
        say(f"read {done:.1f}{of} MB, {progress.rows:,} records, {rate:.1f} MB/s{eta}")

    def step(self, text: str) -> None:
        """A step after the reading begins."""
        self.close()
        if not self._quiet:
            say(escape(text))

    def close(self) -> None:
        """Leave the screen as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, done: float, total: float, text: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("reading", total=total or None)
            self._bar.start()
        self._bar.update(self._task, completed=done, description=text)
