"""The events file."""

import pytest

from kvaudit.errors import ConfigError, UnknownNameError
from reports.events import read_events

GOOD = """
[incident]
controller = "Example Ltd"

[[event]]
time = 2026-09-09T19:04:00+02:00
kind = "fixed"
what = "rejection fix deployed"

[[event]]
time = 2026-09-09T13:22:00Z
kind = "aware"
"""


def test_events_come_back_in_the_order_of_time_and_in_utc():
    facts = read_events(GOOD)
    assert [event.kind for event in facts.events] == ["aware", "fixed"]
    assert facts.events[0].unix_ns == 1_788_960_120_000_000_000
    assert facts.events[1].unix_ns - facts.events[0].unix_ns == (3 * 3600 + 42 * 60) * 10**9
    assert facts.facts == {"controller": "Example Ltd"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[event]\n", "is no TOML"),
        ("[[event]]\nkind = 'fixed'\n", "has no time"),
        ("[[event]]\ntime = 2026-09-09T13:22:00\n", "has no zone"),
        ("[[event]]\ntime = '2026-09-09T13:22:00Z'\n", "has no time"),
        ("[[event]]\ntime = 2026-09-09\n", "has no zone"),
        ("event = 3\n", "must be a list"),
        ("[incident]\ncontact = ['a']\n", "must be a text"),
        ("incident = 3\n", "must be a table"),
        (f"[incident]\ncontact = '{'x' * 5000}'\n", "is longer than"),
    ],
)
def test_what_does_not_fit_is_told(text, told):
    with pytest.raises(ConfigError, match=told):
        read_events(text)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[[event]]\ntime = 2026-09-09T13:22:00Z\nkind = 'fixd'\n", "fixed"),
        ("[incident]\ncontroler = 'x'\n", "controller"),
        ("[[events]]\n", "event"),
        ("[[event]]\ntim = 2026-09-09T13:22:00Z\n", "time"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(text, nearest):
    with pytest.raises(UnknownNameError) as caught:
        read_events(text)
    assert caught.value.nearest == nearest
