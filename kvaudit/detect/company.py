"""KVA406: one known answer, right alone and wrong when the same prompt is sent once more.

Once more means at once again, after another tenant's prompt, or among others. Only whether the
asked value is there counts, never the wording: company moves the last bits of healthy logits, and
with them single tokens.
"""

from collections.abc import Iterable

from kvaudit.detect.answers import is_cut_short, is_right
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.recall import recall_alone
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord

RULE_ID = "KVA406"
ALONE = "alone"  # the stratum of prompts that are sent alone first


def find_lost_in_company(corpus: Corpus) -> Detection:
    """Return evidence for each repeated prompt whose value is lost, though it was known alone.

    The null is every solo request: the calibration and the prompts that were sent alone.
    """
    alone = [record for record in _asked(corpus.records) if record.stratum == ALONE]
    first_of = {_prompt(record): record for record in alone}
    pairs = [
        (first, record)
        for record in _asked(corpus.records)
        if record.stratum != ALONE and (first := first_of.get(_prompt(record))) is not None
    ]
    if not pairs:
        return Detection(
            rule_id=RULE_ID, available=False, reason="no prompt was answered alone and again"
        )
    calibrated = recall_alone(corpus)
    null_alarms = calibrated.lost + sum(not is_right(record) for record in alone)
    known = [(first, record) for first, record in pairs if is_right(first)]
    obstacle = calibrated.obstacle or ("" if known else "no prompt was answered right alone")
    lost = [] if obstacle else [pair for pair in known if not is_right(pair[1])]
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_evidence(first, record) for first, record in lost),
        examined=len(known),
        available=not obstacle,
        reason=obstacle,
        null_alarms=null_alarms,
        null_trials=calibrated.asked + len(alone),
    )


def _asked(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [
        record
        for record in records
        if record.outcome is Outcome.ANSWERED
        and record.expected is not None
        and not is_cut_short(record)
    ]


def _prompt(record: RequestRecord) -> tuple[str, str, str, str]:
    return record.tenant, record.endpoint, record.model, record.prompt_text


def _evidence(first: RequestRecord, record: RequestRecord) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=1.0,
        details={"stratum": record.stratum, "right_in": first.request_id},
    )
