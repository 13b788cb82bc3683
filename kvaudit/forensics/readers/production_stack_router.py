"""vLLM production-stack router log, text with colours or JSON: who went to which replica, when."""

import re
from collections.abc import Iterable, Iterator

from kvaudit.forensics.fields import int_of, parse_json, text_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.times import US, Moment, moment_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[(?:3\d|9\d);\d\dm|\[\d{1,2}m")
_ROUTE = re.compile(
    r"Routing request (?P<id>[\w.:@/+-]{1,200})(?: with session id (?P<session>\S{1,200}))?"
    r" to (?P<url>\S{1,300})(?: \(attempt (?P<attempt>\d{1,4})/\d{1,4}\))?"
    r"(?: at (?P<at>\d{9,11}(?:\.\d+)?))?"
)
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\]")
_MARK = "Routing request "
_ZONE_STEP_US = 15 * 60 * US


def _message(line: str) -> str | None:
    """Return the message of a routing line, colours off; None for any other line."""
    if _MARK not in line[:400]:
        return None
    if line.lstrip().startswith("{"):
        item = parse_json(line)
        message = text_of(item.get("message")) if isinstance(item, dict) else None
        stamp = text_of(item.get("timestamp")) if isinstance(item, dict) else None
        return f"[{stamp}] {message}" if message and message.startswith(_MARK) else None
    return _COLOUR.sub("", line)


def _sniff(sample: Sample) -> float:
    return 0.9 if any(_message(line) for line in sample.lines) else 0.0


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    ahead_us: int | None = None
    for record in records:
        message = _message(record.line)
        if message is None:
            continue
        match = _ROUTE.search(message)
        if match is None:
            context.damage("routing line is cut or damaged")
            continue
        stamp = _STAMP.search(message)
        logged = moment_of(stamp.group(1).replace(",", ".")) if stamp else None
        start = moment_of(match["at"]) or logged
        is_exact = match["at"] is not None and start is not logged
        if is_exact and start is not None and logged is not None:
            ahead_us = round((logged.us - start.us) / _ZONE_STEP_US) * _ZONE_STEP_US
        elif logged is not None and ahead_us is not None:
            # The line of a retry, or a cut one, has no epoch; those before tell its stamp's zone.
            start = Moment(logged.us - ahead_us, logged.precision_us, TimeBasis.ABSOLUTE)
        session = match["session"]
        yield LogRow(
            source_row=record.row,
            source_byte_offset=record.offset,
            request_id=match["id"],
            is_partner=True,
            conversation_id=None,
            attempt=int_of(match["attempt"]) or 1,
            tenant_id=session if session != "None" else None,
            tenant_id_source="session id" if session and session != "None" else None,
            start_us=start.us if start else None,
            time_precision_us=1_000 if start else None,
            time_basis=start.basis if start else TimeBasis.NONE,
            server_address=match["url"],
            replica=match["url"],
            fields={"session_id": session, "url": match["url"]},
        )


FORMAT = Format(
    name="production-stack-router",
    title="vLLM production-stack router log (no text)",
    shape=Shape.LINES,
    layer=Layer.ROUTER,
    sniff=_sniff,
    read=_read,
    is_stateful=True,
)
