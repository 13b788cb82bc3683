"""Which requests say nothing about the server, and why. Missing is never clean."""

from collections import defaultdict
from collections.abc import Iterable

from kvaudit.detect.accounting import admissible_tokens
from kvaudit.detect.answers import is_right
from kvaudit.detect.corpus import Corpus, is_foreign
from kvaudit.records import Outcome, RequestRecord, Role

CREDENTIAL_STATUSES = frozenset({401, 403})


def find_censored(corpus: Corpus) -> dict[str, str]:
    """Return why a request says nothing about the server, by request id."""
    limit = admissible_tokens(corpus.facts)
    longest_right = max(
        (record.prompt_tokens_sent or 0 for record in corpus.records if is_right(record)),
        default=0,
    )
    filled = _answered_fills(corpus.records)
    reasons = {}
    for record in corpus.records:
        if record.outcome not in (Outcome.ANSWERED, Outcome.REFUSED):
            reasons[record.request_id] = record.outcome.value
        elif record.outcome is Outcome.REFUSED and (
            record.status in CREDENTIAL_STATUSES
            or not _is_over(record, limit=limit, longest_right=longest_right)
        ):
            reasons[record.request_id] = "a prompt within the limit was refused"
        elif record.role is Role.TRIGGER and not any(
            is_foreign(fill, record) for fill in filled[(record.scenario, record.block)]
        ):
            reasons[record.request_id] = "no other tenant's fill was answered before it"
    return reasons


def _is_over(record: RequestRecord, *, limit: int | None, longest_right: int) -> bool:
    """Whether a refusal can be for length: over the known limit, or longer than any right one."""
    sent = record.prompt_tokens_sent
    if sent is None:
        return False
    return sent > (limit if limit is not None else longest_right)


def _answered_fills(
    records: Iterable[RequestRecord],
) -> dict[tuple[str, int], list[RequestRecord]]:
    filled: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.role is Role.FILL and record.outcome is Outcome.ANSWERED:
            filled[(record.scenario, record.block)].append(record)
    return filled
