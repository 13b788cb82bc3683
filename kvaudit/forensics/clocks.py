"""Clocks put side by side: zone and year of naive times, start of relative ones, skew per pair."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from kvaudit.forensics.grouping import Group, Seen
from kvaudit.forensics.options import IngestOptions, zone_offset_us
from kvaudit.forensics.row import TimeBasis
from kvaudit.forensics.times import US

ClockKey = tuple[str, str]
_ZONE_STEP_US = 15 * 60 * US
_SAMPLES_MAX = 10_000
_DAY_US = 86_400 * US


@dataclass(frozen=True, slots=True)
class Skew:
    """How far one clock runs ahead of another, from requests seen by both.

    Attributes:
        first, second: The clocks.
        median_us: Median of second minus first, after zones and years are taken off.
        requests: How many requests it rests on.
    """

    first: ClockKey
    second: ClockKey
    median_us: int
    requests: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """What is known of all clocks.

    Attributes:
        ahead_us: Microseconds to take off the times of a clock; clocks that are right are absent.
        skews: Per pair.
        notes: What was taken from where, in the user's words.
    """

    ahead_us: Mapping[ClockKey, int]
    skews: tuple[Skew, ...]
    notes: tuple[str, ...]


class ClockPairs:
    """Differences of start times between clocks, gathered group by group."""

    def __init__(self, starts: Mapping[str, int] | None = None) -> None:
        self._starts = starts or {}
        self._differences: dict[tuple[ClockKey, ClockKey], list[int]] = {}
        self._bases: dict[ClockKey, str] = {}
        self._naive_us: dict[ClockKey, int] = {}

    def know(self, clock: ClockKey, basis: str, first_us: int | None) -> None:
        """Note a clock, how its log tells time, and one of its times."""
        self._bases[clock] = basis
        if first_us is not None:
            self._naive_us[clock] = first_us

    def add(self, group: Group) -> None:
        """Take the differences between the rows of one request."""
        timed: dict[ClockKey, Seen] = {}
        for row in group.rows:
            if row.start_us is not None and self._tells_as_its_clock(row):
                timed.setdefault(row.clock, row)
        for first, second in combinations(sorted(timed), 2):
            a, b = timed[first].start_us, timed[second].start_us
            assert a is not None, "only timed rows are kept"
            assert b is not None, "only timed rows are kept"
            known = self._differences.setdefault((first, second), [])
            if len(known) < _SAMPLES_MAX:
                known.append(b - a)

    def _tells_as_its_clock(self, row: Seen) -> bool:
        """Whether the row's time needs what its clock needs; one with a zone needs nothing."""
        unsure = (TimeBasis.NAIVE, TimeBasis.RELATIVE)
        return self._bases.get(row.clock) not in unsure or row.time_basis in unsure

    def solve(self, options: IngestOptions) -> Clocks:
        """Return the corrections and skews."""
        ahead: dict[ClockKey, int] = {}
        notes: list[str] = []
        for clock in sorted(self._bases):
            basis = self._bases[clock]
            if basis == TimeBasis.NAIVE:
                offset, note = self._naive(clock, options)
            elif basis == TimeBasis.RELATIVE:
                offset, note = self._relative(clock, options)
            else:
                continue
            if offset:
                ahead[clock] = offset
            if note not in notes:
                notes.append(note)
        return Clocks(ahead, tuple(self._skews(ahead)), tuple(notes))

    def _against_absolute(self, clock: ClockKey) -> tuple[int, ClockKey] | None:
        """Return (median of this clock minus an absolute one, that clock), the best attested."""
        found: list[tuple[int, int, ClockKey]] = []
        for (first, second), values in self._differences.items():
            if clock not in (first, second):
                continue
            other = second if clock == first else first
            if self._bases.get(other) in (TimeBasis.ABSOLUTE, TimeBasis.INFERRED):
                middle = round(median(values))
                found.append((len(values), -middle if clock == first else middle, other))
        if not found:
            return None
        _, middle, other = max(found)
        return middle, other

    def _naive(self, clock: ClockKey, options: IngestOptions) -> tuple[int, str]:
        name = clock[0]
        if options.assume_tz is not None:
            offset = zone_offset_us(options.assume_tz, self._naive_us.get(clock, 0))
            return offset, f"`{name}`: times read in zone `{options.assume_tz}`, as told"
        partner = self._against_absolute(clock)
        if partner is None:
            return 0, (
                f"`{name}`: its times name no zone and no other log tells it; UTC assumed"
                " (say `--assume-tz` and, where the year is missing too, `--year`)"
            )
        offset = round(partner[0] / _ZONE_STEP_US) * _ZONE_STEP_US
        return offset, f"`{name}`: {_zone_words(offset)} taken from the clock of `{partner[1][0]}`"

    def _relative(self, clock: ClockKey, options: IngestOptions) -> tuple[int, str]:
        name = clock[0]
        if options.server_start_us is not None:
            return -options.server_start_us, f"`{name}`: times count from `--server-start`, as told"
        partner = self._against_absolute(clock)
        if partner is None and name in self._starts:
            return -self._starts[name], (
                f"`{name}`: server start taken to the second from its answers' `created`"
            )
        if partner is None:
            return 0, (
                f"`{name}`: its times count from the server's start, which it does not tell;"
                " order holds within the file only (say `--server-start`)"
            )
        return partner[0], f"`{name}`: server start taken from the clock of `{partner[1][0]}`"

    def _skews(self, ahead: Mapping[ClockKey, int]) -> Iterator[Skew]:
        for (first, second), values in sorted(self._differences.items()):
            correction = ahead.get(first, 0) - ahead.get(second, 0)
            yield Skew(first, second, round(median(values)) + correction, len(values))


def _zone_words(offset_us: int) -> str:
    days = round(offset_us / _DAY_US) if abs(offset_us) > 2 * _DAY_US else 0
    rest = offset_us - days * _DAY_US
    minutes = round(abs(rest) / (60 * US))
    zone = f"zone {'-' if rest < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{zone} and a year that is {days} days off" if days else zone


def skew_of(skews: Sequence[Skew]) -> int:
    """Return the largest skew between two clocks, in microseconds: the tolerance of 'earlier'."""
    return max((abs(skew.median_us) for skew in skews), default=0)
