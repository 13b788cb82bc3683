"""KVA401: the answer lacks the value that the own prompt holds and asks for."""

from dataclasses import dataclass

from kvaudit.detect.answers import is_cut_short, is_right
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role

RULE_ID = "KVA401"
RECALL_MIN = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAlone:
    """How well the target answers solo requests from before the first fill.

    Attributes:
        lost: Answers without what was asked for, of so many `asked`.
    """

    lost: int
    asked: int

    @property
    def share(self) -> float:
        """Share of right answers; 0 without any."""
        return 1 - self.lost / self.asked if self.asked else 0.0

    @property
    def obstacle(self) -> str:
        """Why a lost value says nothing about this target; "" if it does."""
        if not self.asked:
            return "no calibration request was answered"
        if self.share < RECALL_MIN:
            return f"alone the target answers {self.share:.0%} right, under {RECALL_MIN:.0%}"
        return ""


def recall_alone(corpus: Corpus) -> RecallAlone:
    """Return how well the calibration was answered."""
    calibration = corpus.calibration
    lost = sum(not is_right(record) for record in calibration)
    return RecallAlone(lost=lost, asked=len(calibration))


def find_lost_nonces(corpus: Corpus) -> Detection:
    """Return evidence for each answer without its nonce, if the target can answer at all.

    Calibration decides: when the target answers fewer than `RECALL_MIN` of the solo requests
    right, a lost nonce says nothing about its pages, and the oracle is not available.
    """
    alone = recall_alone(corpus)
    if alone.obstacle:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=alone.obstacle,
            null_alarms=alone.lost if alone.asked else None,
            null_trials=alone.asked,
        )
    asked = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.expected is not None
        and record.role is not Role.CALIBRATION
        and not is_cut_short(record)
    ]
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_lost(record, alone.share) for record in asked if not is_right(record)),
        examined=len(asked),
        null_alarms=alone.lost,
        null_trials=alone.asked,
    )


def _lost(record: RequestRecord, recall: float) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=1.0,
        details={"stratum": record.stratum, "recall_alone": round(recall, 3)},
    )
