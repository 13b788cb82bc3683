"""KVA408: log-probabilities recorded while generating against those of a replay.

Both are of the same tokens; the replay reads them behind the prompt really sent, past every cache.
An answer computed from other state keeps the log-probabilities of that state, however fluent it is.

Two statistics, in nat: the mean gap and the largest gap of one token. Batch composition alone moves
bfloat16 logits, so the threshold is the target's own: `FACTOR` times the largest gap of at least
`CONTROLS_MIN` in-limit requests from before the first fill, alone and in company, and never under a
floor for the number format.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.null import before_first_fill
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role

RULE_ID = "KVA408"
OUTPUT_TOKENS_MIN = 16
CONTROLS_MIN = 30
FACTOR = 2.0
FLOOR_FP32 = 1e-3
FLOOR_MEAN, FLOOR_TOKEN = 0.05, 0.5  # bfloat16, and every format that the server does not name
_FP32 = frozenset({"float32", "fp32", "float"})


class Gap(NamedTuple):
    """How far two lists of log-probabilities of the same tokens lie apart, in nat."""

    mean: float
    token: float


class Threshold(NamedTuple):
    """A gap above either is evidence, in nat."""

    mean: float
    token: float

    def is_passed_by(self, gap: Gap) -> bool:
        """Whether a gap is above the threshold."""
        return gap.mean > self.mean or gap.token > self.token


def find_replay_gaps(corpus: Corpus) -> Detection:
    """Return evidence for each answer whose gap is above the target's own threshold."""
    controls = [(record, gap) for record in before_first_fill(corpus) if (gap := gap_of(record))]
    obstacle = _obstacle(corpus, controls)
    if obstacle is not None:
        return Detection(rule_id=RULE_ID, available=False, reason=obstacle)
    gaps = [gap for _, gap in controls]
    threshold = threshold_of(gaps, dtype=corpus.facts.dtype)
    known = {record.request_id for record, _ in controls}
    judged = [
        (record, gap)
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.request_id not in known
        and (gap := gap_of(record)) is not None
    ]
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(
            _evidence(record, gap, threshold)
            for record, gap in judged
            if threshold.is_passed_by(gap)
        ),
        examined=len(judged),
        reason=_note(corpus, threshold),
        null_alarms=_alarms_left_out(gaps, dtype=corpus.facts.dtype),
        null_trials=len(gaps),
    )


def gap_of(record: RequestRecord) -> Gap | None:
    """Return the gap of one answer; None if it has no replay or is too short to tell."""
    made, again = record.output_logprobs, record.replay_logprobs
    if made is None or again is None or len(made) != len(again) or len(made) < OUTPUT_TOKENS_MIN:
        return None
    gaps = [abs(one - other) for one, other in zip(made, again, strict=True)]
    if not all(math.isfinite(gap) for gap in gaps):
        return None
    return Gap(mean=math.fsum(gaps) / len(gaps), token=max(gaps))


def threshold_of(gaps: Sequence[Gap], *, dtype: str | None) -> Threshold:
    """Return the threshold that these controls give, at least the floor of the number format."""
    is_fp32 = dtype in _FP32
    return Threshold(
        mean=max(
            FLOOR_FP32 if is_fp32 else FLOOR_MEAN,
            FACTOR * max((gap.mean for gap in gaps), default=0.0),
        ),
        token=max(
            FLOOR_FP32 if is_fp32 else FLOOR_TOKEN,
            FACTOR * max((gap.token for gap in gaps), default=0.0),
        ),
    )


def _alarms_left_out(gaps: Sequence[Gap], *, dtype: str | None) -> int:
    """Return how many controls are above the threshold that the others give."""
    return sum(
        threshold_of([*gaps[:at], *gaps[at + 1 :]], dtype=dtype).is_passed_by(gap)
        for at, gap in enumerate(gaps)
    )


def _obstacle(corpus: Corpus, controls: Sequence[tuple[RequestRecord, Gap]]) -> str | None:
    if len(controls) < CONTROLS_MIN:
        reasons = Counter(
            record.replay_reason
            for record in corpus.records
            if record.role in (Role.CALIBRATION, Role.CONTROL) and record.replay_reason
        )
        if reasons and not controls:
            return reasons.most_common(1)[0][0]
        return (
            f"{len(controls)} in-limit controls from before the first fill have a replay,"
            f" {CONTROLS_MIN} are needed"
        )
    alone = sum(record.role is Role.CALIBRATION for record, _ in controls)
    if not alone or alone == len(controls):
        return "controls are needed both alone and in company"
    return None


def _note(corpus: Corpus, threshold: Threshold) -> str:
    """Tell the threshold, and what could not be replayed."""
    skipped = Counter(
        record.replay_reason
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED and record.role is Role.TRIGGER
        if record.replay_reason
    )
    parts = [f"threshold: mean {threshold.mean:.3g}, token {threshold.token:.3g} nat"]
    parts += [f"{count} triggers not replayed: {reason}" for reason, count in skipped.items()]
    return "; ".join(parts)


def _evidence(record: RequestRecord, gap: Gap, threshold: Threshold) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=round(gap.token / threshold.token, 3),
        details={
            "gap_mean": round(gap.mean, 6),
            "gap_token": round(gap.token, 6),
            "threshold_mean": round(threshold.mean, 6),
            "threshold_token": round(threshold.token, 6),
            "tokens": len(record.output_logprobs or ()),
            "stratum": record.stratum,
        },
    )
