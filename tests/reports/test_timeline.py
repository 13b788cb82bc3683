"""When it happened."""

from dataclasses import replace

import pytest

from reports.instants import duration_text, time_text
from reports.timeline import BARS_MAX, timeline

HOUR = 3_600_000_000_000


def moved(records, step_ns):
    """Put the triggers `step_ns` apart."""
    start = records["trigger-0"].sent_unix_ns
    return {
        name: replace(record, sent_unix_ns=start + record.block * step_ns)
        for name, record in records.items()
    }


@pytest.mark.parametrize("step_ns", [0, 10**6, 10**9, 60 * 10**9, HOUR, 24 * HOUR, 9_000 * HOUR])
def test_every_response_is_in_one_bar_and_the_bars_are_few(incident, records, step_ns):
    found = timeline(incident, moved(records, step_ns))
    assert sum(bar.responses for bar in found.bars) == found.responses == 6
    assert found.steps <= BARS_MAX
    assert all(0 <= bar.place < found.steps for bar in found.bars)


def test_the_rate_is_that_of_the_observed_window(incident, records):
    assert timeline(incident, moved(records, HOUR)).per_hour == pytest.approx(6 / 5)
    assert timeline(incident, moved(records, 10**9)).per_hour is None


def test_a_response_without_a_time_is_counted_apart(incident, records):
    without = {**records, "trigger-3": replace(records["trigger-3"], sent_unix_ns=None)}
    assert timeline(incident, without).undated == 1
    assert timeline(incident, {}) is None


def test_a_time_that_is_no_date_is_no_time():
    assert time_text(None) == time_text(-1) == time_text(10**30) == ""
    assert time_text(0) == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(1, "1 second"), (61, "61 seconds"), (3_600, "1 hour"), (90_061, "1 day 1 hour"),
     (86_401, "1 day"), (13 * 86_400 + 4 * 3_600, "13 days 4 hours")],
)  # fmt: skip
def test_a_duration_is_told_in_its_two_largest_units(seconds, told):
    assert duration_text(seconds * 10**9) == told
