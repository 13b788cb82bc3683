"""When responses came out that are in a finding: window, rate, and a histogram with round steps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvaudit.findings import AuditRun, Kind
from kvaudit.records import RequestRecord
from reports import neutral
from reports.events import Event
from reports.instants import time_text

BARS_MAX = 72
SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
_STEPS = (
    (1, "second"), (10, "10 seconds"), (60, "minute"), (600, "10 minutes"), (3_600, "hour"),
    (21_600, "6 hours"), (86_400, "day"), (604_800, "week"), (2_629_746, "month"),
    (31_556_952, "year"),
)  # fmt: skip


class Bar(NamedTuple):
    """One step of the histogram.

    Attributes:
        start: ISO 8601.
        responses: Responses in a finding that were sent in it.
        place: Index of the step.
    """

    start: str
    responses: int
    place: int


class Mark(NamedTuple):
    """One event on the time axis; `at` is its place in steps, None where it lies outside."""

    number: int
    time: str
    kind: str
    what: str
    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Responses in a finding over time.

    Attributes:
        first, last: When the first and the last were sent, ISO 8601.
        responses: With a known time.
        undated: Without one.
        per_hour: Responses per hour between first and last; None under a minute.
        step: Length of a bar, in words.
        steps: Number of steps from first to last.
        bars: Steps that have responses.
        most: Largest bar.
        marks: Events.
    """

    first: str
    last: str
    responses: int
    undated: int
    per_hour: float | None
    step: str
    steps: int
    bars: tuple[Bar, ...]
    most: int
    marks: tuple[Mark, ...]


def sent_times(run: AuditRun, records: Mapping[str, RequestRecord]) -> dict[str, int | None]:
    """Return when each sink request was sent, by id, hazards and sharing left out."""
    sinks = dict.fromkeys(
        finding.evidence.sink_request_id
        for finding in run.findings
        if finding.kind not in (Kind.HAZARD, Kind.SHARING)
    )
    return {
        sink: records[sink].sent_unix_ns if sink in records else None for sink in sinks
    }  # fmt: skip


def timeline(
    run: AuditRun, records: Mapping[str, RequestRecord], events: Sequence[Event] = ()
) -> Timeline | None:
    """Return the timeline; None if no response in a finding has a known time."""
    sent = sent_times(run, records)
    times = sorted(moment for moment in sent.values() if moment is not None and time_text(moment))
    if not times:
        return None
    first, last = times[0], times[-1]
    step_s, step = next(
        (found for found in _STEPS if (last - first) / SECOND_NS / found[0] <= BARS_MAX - 2),
        _STEPS[-1],
    )
    step_ns = step_s * SECOND_NS
    origin = first - first % step_ns
    counts = Counter((moment - origin) // step_ns for moment in times)
    steps = (last - origin) // step_ns + 1
    hours = (last - first) / HOUR_NS
    return Timeline(
        first=time_text(first),
        last=time_text(last),
        responses=len(times),
        undated=len(sent) - len(times),
        per_hour=len(times) / hours if hours >= 1 / 60 else None,
        step=step,
        steps=steps,
        bars=tuple(
            Bar(time_text(origin + place * step_ns), count, place)
            for place, count in sorted(counts.items())
        ),
        most=max(counts.values()),
        marks=tuple(
            _mark(number, event, (event.unix_ns - origin) / step_ns, steps)
            for number, event in enumerate(events, start=1)
        ),
    )


def _mark(number: int, event: Event, at: float, steps: int) -> Mark:
    return Mark(
        number=number,
        time=time_text(event.unix_ns),
        kind=event.kind,
        what=neutral.sentence(event.what),
        at=round(at, 3) if 0 <= at <= steps else None,
    )
