"""Wall times as text; what is no date of years 1970 to 9999 is "" and never an error."""

from kvaudit.clock import iso_utc

_YEAR_10000_NS = 253_402_300_800_000_000_000


def time_text(unix_ns: int | None) -> str:
    """Return a wall time as ISO 8601 in UTC, or "" if it is not known or no date."""
    if unix_ns is None or not 0 <= unix_ns < _YEAR_10000_NS - 1_000_000:
        return ""
    return iso_utc(unix_ns)


def duration_text(duration_ns: int) -> str:
    """Return a duration in its two largest units: `13 days 4 hours`, `61 seconds`."""
    seconds = max(duration_ns, 0) // 1_000_000_000
    if seconds < 120:
        return f"{seconds} second" if seconds == 1 else f"{seconds} seconds"
    parts: list[str] = []
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s")
        elif parts:
            break
    return " ".join(parts[:2])
