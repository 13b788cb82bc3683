"""Times as logs write them, to microseconds since 1970 UTC."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from kvaudit.forensics.fields import float_of
from kvaudit.forensics.row import TimeBasis

US = 1_000_000
_TICKS_TO_UNIX_US = 62_135_596_800 * US
_LEAP_YEAR = 2024  # holds every month and day; stands where nothing at all tells the year
# 1990 to 2100; what lies outside is no time. A number counts from 2000 on: the .NET ticks of our
# days would be nanoseconds of 1990.
_UNIX_S_MIN, _UNIX_S_MAX = 631_152_000, 4_102_444_800
_NUMBER_S_MIN = 946_684_800


class Moment(NamedTuple):
    """An instant as the log tells it.

    Attributes:
        us: Microseconds since 1970; of a naive time as if it were UTC.
        precision_us: The log's own resolution.
        basis: ABSOLUTE, or NAIVE when the log names no zone.
    """

    us: int
    precision_us: int
    basis: TimeBasis


_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-]\d\d:?\d\d|[+-]\d\d)?$",
    re.ASCII,
)


def moment_of(value: object, *, naive_is_utc: bool = False) -> Moment | None:
    """Return the instant that a number, a quoted number or an ISO text means; None if none.

    Numbers are read as seconds, milliseconds, microseconds or nanoseconds since 1970 by their
    size, or as .NET ticks (100 ns since year 1).

    Args:
        value: As logged.
        naive_is_utc: A time without a zone is known to be UTC.
    """
    if isinstance(value, str):
        found = _iso_moment(value.strip())
        if found is not None:
            return found._replace(basis=TimeBasis.ABSOLUTE) if naive_is_utc else found
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= 20:
        value = int(value)
    return _number_moment(value)


def _number_moment(value: object) -> Moment | None:
    number = value if isinstance(value, int) and not isinstance(value, bool) else float_of(value)
    if number is None:
        return None
    for scale, precision in ((1, US), (1_000, 1_000), (1_000_000, 1), (1_000_000_000, 1)):
        if _NUMBER_S_MIN * scale <= number <= _UNIX_S_MAX * scale:
            if isinstance(number, int):
                us = number * US // scale
            else:
                us = round(number * US / scale)
                precision = min(precision, 1_000)
            return Moment(us, precision, TimeBasis.ABSOLUTE)
    us = int(number) // 10 - _TICKS_TO_UNIX_US
    if _UNIX_S_MIN * US <= us <= _UNIX_S_MAX * US:
        return Moment(us, 1, TimeBasis.ABSOLUTE)
    return None


def _iso_moment(text: str) -> Moment | None:
    match = _ISO.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0),
            min(int(second or 0), 59), tzinfo=UTC,
        )  # fmt: skip
    except ValueError:
        return None
    us = int(moment.timestamp()) * US + int((fraction or "")[:6].ljust(6, "0"))
    precision = 10 ** (6 - min(6, len(fraction or "")))
    if not _UNIX_S_MIN * US <= us <= _UNIX_S_MAX * US:
        return None
    if zone is None:
        return Moment(us, precision, TimeBasis.NAIVE)
    return Moment(us - _zone_offset_us(zone), precision, TimeBasis.ABSOLUTE)


def _zone_offset_us(zone: str) -> int:
    if zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return (-seconds if zone[0] == "-" else seconds) * US


def month_day_moment(text: str, year: int) -> Moment | None:
    """Return the naive instant of `MM-DD HH:MM:SS` in the given year; None if there is none."""
    return _iso_moment(f"{year:04}-{text}")


def year_for(month_day: str, modified_us: int | None, year: int | None) -> int:
    """Return the year of a `MM-DD …` time.

    It is the given one, else the latest that does not lie more than a day after the file's last
    change, so that a December line in a file closed in January falls into the old year.
    """
    if year is not None:
        return year
    if modified_us is None:
        return _LEAP_YEAR
    last = datetime.fromtimestamp(modified_us / US, tz=UTC)
    moment = month_day_moment(month_day, last.year)
    late = moment is not None and moment.us > modified_us + 86_400 * US
    return last.year - 1 if late else last.year


def us_after(start_us: int | None, seconds: object) -> int | None:
    """Return the instant so many seconds later; None if either is not known."""
    duration = float_of(seconds)
    if start_us is None or duration is None or abs(duration) > 10**9:
        return None
    return start_us + round(duration * US)
