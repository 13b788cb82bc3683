"""KVA401: the answer lacks the value that the own prompt holds and asks for."""

from kvaudit.detect.answers import is_cut_short, is_right
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role

RULE_ID = "KVA401"
RECALL_MIN = 0.8


def find_lost_nonces(corpus: Corpus) -> Detection:
    """Return evidence for each answer without its nonce, if the target can answer at all.

    Calibration decides: when the target answers fewer than `RECALL_MIN` of the solo requests
    right, a lost nonce says nothing about its pages, and the oracle is not available.
    """
    calibration = corpus.calibration
    if not calibration:
        return Detection(
            rule_id=RULE_ID, available=False, reason="no calibration request was answered"
        )
    lost_alone = sum(not is_right(record) for record in calibration)
    recall = 1 - lost_alone / len(calibration)
    if recall < RECALL_MIN:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"alone the target answers {recall:.0%} right, under {RECALL_MIN:.0%}",
            null_alarms=lost_alone,
            null_trials=len(calibration),
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
        evidence=tuple(_lost(record, recall) for record in asked if not is_right(record)),
        examined=len(asked),
        null_alarms=lost_alone,
        null_trials=len(calibration),
    )


def _lost(record: RequestRecord, recall: float) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=1.0,
        details={"stratum": record.stratum, "recall_alone": round(recall, 3)},
    )
