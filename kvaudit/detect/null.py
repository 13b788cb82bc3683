"""Requests from before the first fill: nothing could leak into them, so they are the null."""

from kvaudit.detect.corpus import Corpus
from kvaudit.records import Outcome, RequestRecord, Role


def before_first_fill(corpus: Corpus) -> tuple[RequestRecord, ...]:
    """Return the answered in-limit requests of the waves before the first fill."""
    first_fill = min(
        (record.wave for record in corpus.records if record.role is Role.FILL), default=None
    )
    return tuple(
        record
        for record in corpus.records
        if record.role in (Role.CALIBRATION, Role.CONTROL)
        and record.outcome is Outcome.ANSWERED
        and (first_fill is None or record.wave < first_fill)
    )
