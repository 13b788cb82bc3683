"""KVA301 and KVA302: the server's own numbers against what was sent."""

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts

RATIO_LOW, RATIO_HIGH = 0.5, 2.0  # reported / sent; templates and tokenisers differ by less
PLACEHOLDER_TOKENS = 5  # what a replaced prompt is reported as
LONG_PROMPT_TOKENS = 200


def find_prompt_tokens_mismatch(corpus: Corpus) -> Detection:
    """Return evidence where the reported prompt length is far from the one sent."""
    told = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.prompt_tokens is not None
        and record.prompt_tokens_sent
    ]
    if not told:
        return Detection(
            rule_id="KVA301", available=False, reason="no answer reports a prompt length"
        )
    fired = [record for record in told if _is_far(record)]
    null = [record for record in told if record.role is Role.CALIBRATION]
    return Detection(
        rule_id="KVA301",
        evidence=tuple(_mismatch(record) for record in fired),
        examined=len(told),
        null_alarms=sum(record.role is Role.CALIBRATION for record in fired) if null else None,
        null_trials=len(null),
    )


def find_over_capacity(corpus: Corpus) -> Detection:
    """Return evidence where a prompt that some role can't hold was answered with success."""
    limit = admissible_tokens(corpus.facts)
    if limit is None:
        return Detection(
            rule_id="KVA302", available=False, reason="the server states no pool or input limit"
        )
    counted = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED and record.prompt_tokens_sent is not None
    ]
    null = [record for record in counted if record.role is Role.CALIBRATION]
    fired = [record for record in counted if (record.prompt_tokens_sent or 0) > limit]
    return Detection(
        rule_id="KVA302",
        evidence=tuple(_over(record, limit) for record in fired),
        examined=len(counted),
        null_alarms=sum(record.role is Role.CALIBRATION for record in fired) if null else None,
        null_trials=len(null),
    )


def admissible_tokens(facts: ServerFacts) -> int | None:
    """Return the longest prompt that every role can hold, in tokens; None if not stated."""
    limits = [
        value
        for role in facts.roles
        for value in (role.max_input_tokens, role.pool_tokens)
        if value is not None
    ]
    if not limits:
        return None
    return min([*limits, *([facts.context_tokens] if facts.context_tokens else [])])


def _is_far(record: RequestRecord) -> bool:
    reported, sent = record.prompt_tokens, record.prompt_tokens_sent
    assert reported is not None, "only records that report a length"
    assert sent, "only records whose length is known"
    if reported <= PLACEHOLDER_TOKENS and sent >= LONG_PROMPT_TOKENS:
        return True
    # A chat template outweighs a short prompt, so short ones say nothing.
    return sent >= LONG_PROMPT_TOKENS and not RATIO_LOW <= reported / sent <= RATIO_HIGH


def _mismatch(record: RequestRecord) -> Evidence:
    reported, sent = record.prompt_tokens or 0, record.prompt_tokens_sent or 1
    return Evidence(
        rule_id="KVA301",
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=round(reported / sent, 4),
        details={"prompt_tokens": reported, "prompt_tokens_sent": sent},
    )


def _over(record: RequestRecord, limit: int) -> Evidence:
    sent = record.prompt_tokens_sent or 0
    return Evidence(
        rule_id="KVA302",
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=round(sent / limit, 4),
        details={"prompt_tokens_sent": sent, "admissible_tokens": limit},
    )
