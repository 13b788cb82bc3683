"""What only people know of an incident: a TOML file of events and of facts for the report.

[incident]
controller = "Example Ltd"
contact = "privacy@example.com"

[[event]]
time = 2026-09-09T13:22:00Z
kind = "detected"
what = "Incident opened"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

from kvaudit.errors import ConfigError, UnknownNameError

EVENTS_MAX = 1_000
VALUE_CHARS_MAX = 4_000

# Kinds that a report asks for, in the order in which they usually happen.
EVENT_KINDS: dict[str, str] = {
    "deployed": "a version or configuration went live",
    "reported": "somebody told of it",
    "aware": "the controller became aware; the 72 hours start here",
    "detected": "it was detected, or the incident was opened",
    "contained": "no further answers could be affected",
    "cause": "the cause was found",
    "fixed": "the fix was fully live",
    "restored": "the service was back to normal",
    "authority": "the supervisory authority was notified",
    "notified": "the tenants concerned were told",
    "other": "anything else",
}

# Facts that no run can hold; each fills one field of the incident report.
FACT_NAMES: dict[str, str] = {
    "controller": "name of the controller",
    "processor": "name of the processor, if another",
    "contact": "data protection officer or other contact point",
    "reference": "own reference of the incident",
    "subjects": "people concerned: categories and, if known, number",
    "categories": "categories of personal data concerned",
    "cause": "cause as found",
    "consequences": "likely consequences for the people concerned",
    "measures": "measures taken or proposed",
    "prevention": "measures against a repetition",
    "notification": "how the tenants or people concerned are told",
    "cross_border": "countries concerned",
    "population": "requests served in the window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        unix_ns: When, in nanoseconds since 1970-01-01 UTC.
        kind: One of `EVENT_KINDS`.
        what: In words.
    """

    unix_ns: int
    kind: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFacts:
    """Everything of one events file.

    Attributes:
        events: In the order of time.
        facts: By name, as in `FACT_NAMES`.
    """

    events: tuple[Event, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def first(self, *kinds: str) -> Event | None:
        """Return the first event of one of these kinds; None if there is none."""
        return next((event for event in self.events if event.kind in kinds), None)


def read_events(text: str, name: str = "events.toml") -> IncidentFacts:
    """Return what an events file says.

    Args:
        text: The file's text.
        name: What to call the file in an error.

    Raises:
        ConfigError: It is no TOML, or a key, a kind or a time does not fit.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"`{name}` is no TOML: {error}") from None
    for key in tables:
        if key not in ("incident", "event"):
            raise UnknownNameError(f"table in `{name}`", key, ("incident", "event"))
    listed = tables.get("event", [])
    if not isinstance(listed, list) or len(listed) > EVENTS_MAX:
        raise ConfigError(
            f"`event` in `{name}` must be a list of at most {EVENTS_MAX} tables",
            hint="write `[[event]]` before each",
        )
    events = [_event(entry, name) for entry in listed]
    return IncidentFacts(
        events=tuple(sorted(events, key=lambda event: event.unix_ns)),
        facts=_facts(tables.get("incident", {}), name),
    )


def _event(entry: Any, name: str) -> Event:
    if not isinstance(entry, dict):
        raise ConfigError(f"an event in `{name}` is no table", hint="write `[[event]]` before each")
    for key in entry:
        if key not in ("time", "kind", "what"):
            raise UnknownNameError(f"key of an event in `{name}`", key, ("time", "kind", "what"))
    kind = str(entry.get("kind", "other"))
    if kind not in EVENT_KINDS:
        raise UnknownNameError("kind of event", kind, EVENT_KINDS)
    return Event(
        unix_ns=_unix_ns(entry.get("time"), name),
        kind=kind,
        what=_text("what", entry.get("what", EVENT_KINDS[kind]), name),
    )


def _unix_ns(value: Any, name: str) -> int:
    """Return a TOML time as wall time; one without a zone could be any hour and is refused."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if isinstance(value, (datetime, date, time)):
        problem = f"the time `{value}` of an event in `{name}` has no zone"
    else:
        problem = f"an event in `{name}` has no time"
    raise ConfigError(problem, hint="write it as `time = 2026-09-09T13:22:00Z`, without quotes")


def _facts(table: Any, name: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ConfigError(f"`incident` in `{name}` must be a table", hint="write `[incident]`")
    for key in table:
        if key not in FACT_NAMES:
            raise UnknownNameError("fact of an incident", key, FACT_NAMES)
    return {key: _text(key, value, name) for key, value in table.items()}


def _text(key: str, value: Any, name: str) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ConfigError(f"`{key}` in `{name}` must be a text")
    text = str(value)
    if len(text) > VALUE_CHARS_MAX:
        raise ConfigError(f"`{key}` in `{name}` is longer than {VALUE_CHARS_MAX:,} characters")
    return text
