"""KVA304: tokens came out of a cache on a prefix that this tenant never sent.

It tells that a cache is shared across tenants, never that text was; it decides no verdict.
"""

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.null import before_first_fill
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role

RULE_ID = "KVA304"
PAGE_ASSUMED = 16  # where the server does not tell
SLACK = 1.1  # characters are no tokens: the own prefix may weigh so much more


def find_shared_cache_hits(corpus: Corpus) -> Detection:
    """Return evidence for cached tokens beyond a page, the vendor's template and the own past."""
    told = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.cached_tokens is not None
        and record.prompt_tokens_sent
    ]
    if not told:
        return Detection(rule_id=RULE_ID, available=False, reason="no answer tells cached tokens")
    page = max((role.page_size or 0 for role in corpus.facts.roles), default=0) or PAGE_ASSUMED
    null = [record for record in before_first_fill(corpus) if record.cached_tokens is not None]
    alone = (record for record in null if record.role is Role.CALIBRATION)
    template = max((record.cached_tokens or 0 for record in alone), default=0)
    evidence = []
    for record in told:
        own = _own_prefix_tokens(corpus, record)
        allowed = template + page + SLACK * own
        if (record.cached_tokens or 0) > allowed:
            evidence.append(_evidence(record, own=own, template=template))
    fired = {item.sink_request_id for item in evidence}
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(evidence),
        examined=len(told),
        reason="" if any(record.cached_tokens for record in told) else "no cache hit was reported",
        null_alarms=sum(record.request_id in fired for record in null) if null else None,
        null_trials=len(null),
    )


def _own_prefix_tokens(corpus: Corpus, record: RequestRecord) -> float:
    """Return the length of the longest prefix that this tenant had sent before, about."""
    if not record.cached_tokens:
        return 0.0
    text = record.prompt_text
    longest = max(
        (
            _common_prefix(text, other.prompt_text + (other.output_text or ""))
            for other in corpus.records
            if other.owner == record.owner
            and other.request_id != record.request_id
            and (other.sent_unix_ns or 0) <= (record.ended_unix_ns or 2**63)
        ),
        default=0,
    )
    return longest / max(1, len(text)) * (record.prompt_tokens_sent or 0)


def _common_prefix(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _evidence(record: RequestRecord, *, own: float, template: int) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=float(record.cached_tokens or 0),
        details={
            "cached_tokens": record.cached_tokens,
            "own_prefix_tokens": round(own),
            "template_tokens": template,
        },
    )
