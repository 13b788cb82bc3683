"""Records to Looks: what an answer says about the length of its prompt.

Right means that the own code is in the answer and that the usage fits the prompt sent. Usage of
right answers is also the ruler: plans count in the client's tokens, servers in their own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvaudit.records import Outcome, RequestRecord
from probes.edge import Look, Value

CUT_TOKENS_MIN = 32  # fewer reported tokens are a placeholder, not the rest of a long prompt
SLACK_TOKENS = 4  # where the two counts differ by a constant, such as a chat template
SLACK_SHARE = 0.04  # where lengths are estimated
OWN_TEXT_MIN = 24  # characters of an answer's beginning that stand in its own prompt
NAMED_MIN = 64
STATUS_CODES = range(400, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """How the server counts what the client counts: tokens = offset + slope x own tokens.

    Attributes:
        is_exact: Two answers or more agreed on an offset at slope 1.
    """

    slope: float = 1.0
    offset: float = 0.0
    is_exact: bool = False

    def server_tokens(self, own: int) -> int:
        """Return the server's count of what the client counted."""
        return round(self.offset + self.slope * own)

    def own_tokens(self, server: int) -> int:
        """Return the client's count of what the server would count, at least 1."""
        return max(1, round((server - self.offset) / self.slope))


def ruler_of(records: Sequence[RequestRecord]) -> Ruler:
    """Fit the ruler on right answers; the two longest prompts decide."""
    pairs = sorted(
        {
            (record.prompt_tokens_sent, record.prompt_tokens)
            for record in records
            if _holds_code(record) and record.prompt_tokens_sent and record.prompt_tokens
        }
    )
    plausible = [(own, said) for own, said in pairs if 0.25 < said / own < 4]
    if not plausible:
        return Ruler()
    offsets = {said - own for own, said in plausible}
    if max(offsets) - min(offsets) <= SLACK_TOKENS:
        is_exact = len(plausible) > 1 or offsets == {0}
        return Ruler(offset=float(max(offsets)), is_exact=is_exact)
    (first, first_said), (last, last_said) = plausible[-2:]
    if last > 1.2 * first and last_said > first_said:
        slope = (last_said - first_said) / (last - first)
        return Ruler(slope=slope, offset=last_said - slope * last)
    return Ruler(slope=last_said / last)


def look_of(records: Sequence[RequestRecord], ruler: Ruler) -> Look:
    """Return what the records of one step show, in the order of its prompts."""
    values = tuple(value_of(record, ruler) for record in records)
    cut = [
        record.prompt_tokens
        for record, value in zip(records, values, strict=True)
        if value is Value.TRUNCATED
    ]
    reads_start = any(
        _continues_own_text(record)
        for record, value in zip(records, values, strict=True)
        if value is Value.WRONG
    )
    named = [limit for record in records if (limit := named_limit(record)) is not None]
    return Look(
        values=values,
        named_limit=min(named, default=None),
        kept_tokens=max((tokens for tokens in cut if tokens), default=None),
        kept_part="start" if reads_start else None,
    )


def value_of(record: RequestRecord, ruler: Ruler) -> Value:
    """Return what a server did with one prompt."""
    if record.outcome is Outcome.REFUSED:
        return Value.REFUSED
    if record.outcome is not Outcome.ANSWERED:
        return Value.SILENT
    said, own = record.prompt_tokens, record.prompt_tokens_sent
    if said is not None and own is not None:
        expected = ruler.server_tokens(own)
        slack = SLACK_TOKENS if ruler.is_exact else max(SLACK_TOKENS, SLACK_SHARE * expected)
        if said < CUT_TOKENS_MIN < expected - slack:
            return Value.WRONG
        if said < expected - slack:
            return Value.TRUNCATED
    return Value.RIGHT if _holds_code(record) else Value.WRONG


def named_limit(record: RequestRecord) -> int | None:
    """Return the length limit that a refusal names: its least number that can be one."""
    if record.outcome is not Outcome.REFUSED or not record.error_message:
        return None
    sent = record.prompt_tokens_sent or 0
    numbers = [
        int(text.replace(",", ""))
        for text in re.findall(r"(?<![\w.])\d[\d,]{1,12}(?![\w]|\.\d)", record.error_message)
    ]
    fitting = [number for number in numbers if NAMED_MIN <= number < 2 * sent]
    likely = [number for number in fitting if number not in STATUS_CODES]
    return min(likely or fitting, default=None)


def _holds_code(record: RequestRecord) -> bool:
    return (
        record.outcome is Outcome.ANSWERED
        and record.expected is not None
        and record.expected in (record.output_text or "").upper()
    )


def _continues_own_text(record: RequestRecord) -> bool:
    """Whether the answer begins with a piece of the own prompt: that much of it was read."""
    beginning = " ".join((record.output_text or "").split())[:OWN_TEXT_MIN]
    own = " ".join(record.prompt_text.split())
    return len(beginning) == OWN_TEXT_MIN and beginning in own
