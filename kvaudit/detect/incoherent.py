"""KVA402-405 on a live run: answers that make no sense, against the target's own solo answers.

They never convict. A target that loops or mumbles by itself is told by its calibration: then a rule
needs more than that level, not just one case.
"""

from functools import partial

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.incoherence import Incoherence, find_incoherence, is_empty_answer
from kvaudit.findings import Evidence, Span
from kvaudit.records import Outcome, RequestRecord
from kvaudit.stats import fisher_greater

RULE_IDS = ("KVA402", "KVA403", "KVA404", "KVA405")
LEVEL_P = 1e-3


def find_incoherent(corpus: Corpus, *, rule_id: str) -> Detection:
    """Return evidence of one of the rules, unless the target does so by itself."""
    answered = [record for record in corpus.records if record.outcome is Outcome.ANSWERED]
    if not answered:
        return Detection(rule_id=rule_id, available=False, reason="nothing was answered")
    null = corpus.calibration
    known = {record.request_id for record in null}
    judged = [record for record in answered if record.request_id not in known]
    evidence = [item for record in judged if (item := _evidence(record, rule_id)) is not None]
    by_itself = sum(_evidence(record, rule_id) is not None for record in null)
    level = fisher_greater(len(evidence), len(judged), by_itself, len(null)) if judged else 1.0
    is_usual = by_itself > 0 and level >= LEVEL_P
    return Detection(
        rule_id=rule_id,
        evidence=() if is_usual else tuple(evidence),
        examined=len(judged),
        available=not is_usual,
        reason=f"alone the target does so in {by_itself} of {len(null)} answers" * is_usual,
        null_alarms=by_itself if null else None,
        null_trials=len(null),
    )


FIND_INCOHERENT = {rule_id: partial(find_incoherent, rule_id=rule_id) for rule_id in RULE_IDS}


def _evidence(record: RequestRecord, rule_id: str) -> Evidence | None:
    found = _seen(record)
    if found is None or found.rule_id != rule_id:
        return None
    return Evidence(
        rule_id=rule_id,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        sink_span=Span(start=found.start, end=found.end),
        excerpt=(record.output_text or "")[found.start : found.end],
        score=round(found.score, 3),
        details={"why": found.why, "stratum": record.stratum},
    )


def _seen(record: RequestRecord) -> Incoherence | None:
    text = record.output_text or ""
    if text.strip():
        return find_incoherence(text, record.own_context)
    produced = record.completion_tokens
    if produced is None and record.output_token_ids is not None:
        produced = len(record.output_token_ids)
    reasons = (record.finish_reason,) if record.finish_reason else ()
    if is_empty_answer(text, other_text="", produced=produced, finish_reasons=reasons):
        return Incoherence("KVA405", 1.0, 0, 0, f"{produced} tokens and no text")
    return None
