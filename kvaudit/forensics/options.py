"""What the user says about the logs."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kvaudit.errors import ConfigError
from kvaudit.forensics.fields import look_up, text_of
from kvaudit.forensics.formats import format_named
from kvaudit.forensics.times import US, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Options of one ingest; a resume must have the same.

    Attributes:
        format: Name of a format, or `auto`.
        tenant_fields: Rules `PATH` or `PATH~REGEX`, first match wins, before the format's default.
        replica_field: Rule for the engine replica.
        same_tenants: Pairs of tenants of one organisation.
        window: Only requests that start in [first, last), microseconds since 1970; None = all.
        assume_tz: Zone of times without one: an IANA name or `+02:00`; None = from a join partner.
        year: Year of times without one; None = from the file's change time or a join partner.
        server_start_us: Start of the server for times that count from it.
        columns: `column -> canonical` for tables and generic records; `table` names a table.
    """

    format: str = "auto"
    tenant_fields: tuple[str, ...] = ()
    replica_field: str | None = None
    same_tenants: tuple[tuple[str, str], ...] = ()
    window: tuple[int, int] | None = None
    assume_tz: str | None = None
    year: int | None = None
    server_start_us: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ConfigError for the first value that does not fit."""
        if self.format != "auto":
            format_named(self.format)
        for rule in (*self.tenant_fields, *([self.replica_field] if self.replica_field else [])):
            FieldRule.parse(rule)
        if self.assume_tz is not None:
            zone_of(self.assume_tz)
        if self.year is not None and not 1990 <= self.year <= 2100:
            raise ConfigError(f"`--year` is {self.year}", hint="give four digits, such as 2026")

    def as_json(self) -> dict[str, Any]:
        """Return the options as JSON values, to compare them on a resume."""
        made = asdict(self)
        made["columns"] = dict(self.columns)
        return made


@dataclass(frozen=True, slots=True)
class FieldRule:
    """Where a value stands in a raw record: a path, and a regex for a part of it.

    Attributes:
        text: As the user wrote it.
        path: Dotted path.
        pattern: Its first group, or its whole match, is the value; None = the whole field.
    """

    text: str
    path: str
    pattern: re.Pattern[str] | None

    @classmethod
    def parse(cls, text: str) -> "FieldRule":
        """Parse `PATH` or `PATH~REGEX`; raises ConfigError for a bad regex."""
        path, mark, pattern = text.partition("~")
        if not path.strip():
            raise ConfigError(f"`{text}` names no field", hint="write `metadata.team_id`")
        try:
            compiled = re.compile(pattern) if mark else None
        except re.error as error:
            raise ConfigError(f"`{pattern}` is no regular expression: {error}") from None
        return cls(text, path.strip(), compiled)

    def value(self, fields: Mapping[str, object]) -> str | None:
        """Return the value in one record, or None."""
        found = text_of(look_up(fields, self.path))
        if found is None or self.pattern is None:
            return found
        match = self.pattern.search(found)
        if match is None:
            return None
        return match.group(1) if match.groups() else match.group()


def zone_of(text: str) -> timezone | ZoneInfo:
    """Return a zone from `+02:00`, `UTC` or an IANA name; raises ConfigError."""
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)?", text)
    if match is not None:
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    if text.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"there is no time zone `{text}`", hint="write `Europe/Berlin` or `+02:00`"
        ) from None


def zone_offset_us(text: str, naive_us: int) -> int:
    """Return how far the zone's wall time is ahead of UTC at that wall time, in microseconds."""
    naive = datetime.fromtimestamp(naive_us / US, tz=UTC).replace(tzinfo=None)
    offset = naive.replace(tzinfo=zone_of(text)).utcoffset() or timedelta()
    return round(offset.total_seconds() * US)


def instant_of(text: str, flag: str) -> int:
    """Return microseconds since 1970 of an option's time; raises ConfigError."""
    found = moment_of(text, naive_is_utc=True)
    if found is None:
        raise ConfigError(
            f"`{flag} {text}` is no time", hint="write `2026-10-02T09:14:00Z` or epoch seconds"
        )
    return found.us


def window_of(text: str) -> tuple[int, int]:
    """Return the window of `FIRST..LAST`; either end may be missing; raises ConfigError."""
    first, mark, last = text.partition("..")
    if not mark:
        raise ConfigError(
            f"`--window {text}` is no window", hint="write `2026-10-02T00:00Z..2026-10-03T00:00Z`"
        )
    low = instant_of(first, "--window") if first.strip() else -(2**62)
    high = instant_of(last, "--window") if last.strip() else 2**62
    if low >= high:
        raise ConfigError(f"`--window {text}` is empty", hint="put the earlier time first")
    return low, high
