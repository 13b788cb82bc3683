"""Whether a server's silent cut of the own prompt explains what other oracles saw.

Cutting a prompt is a fault of its own and no leak, so it explains a wrong length (KVA301), an
answer above a limit (KVA302) and a lost nonce (KVA401) away.
"""

from collections.abc import Sequence

from kvaudit.detect.answers import is_right
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.runs import GRAM, fold
from kvaudit.records import Outcome, RequestRecord, Role

EXPLAINED_RULES = frozenset({"KVA301", "KVA302", "KVA401", "KVA408"})
CUT_TOKENS_MIN = 64  # fewer reported tokens are a placeholder, not the rest of a long prompt
CUT_SHARE_MAX = 0.95  # reported / sent; templates and tokenisers explain the rest
OWN_SHARE_MIN = 0.6  # of the answer's characters stand in the own prompt


def find_truncation(corpus: Corpus) -> dict[str, str]:
    """Return, by request id, why a cut of the own prompt explains its answer.

    A prompt no longer than an in-limit one that was answered right is not cut, so only longer ones
    are explained by their text; usage that shows a cut explains at any length.
    """
    longest_right = max(
        (
            record.prompt_tokens_sent or 0
            for record in corpus.records
            if is_right(record) and record.role is not Role.TRIGGER
        ),
        default=0,
    )
    long = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.prompt_tokens_sent is not None
        and record.prompt_tokens_sent > longest_right
    ]
    explained = _shown_by_depth(long)
    for record in long:
        if not is_right(record) and (reason := _shown_by_text(record)) is not None:
            explained[record.request_id] = reason
    for record in corpus.records:
        if record.outcome is Outcome.ANSWERED and (reason := _shown_by_usage(record)) is not None:
            explained[record.request_id] = reason
    return explained


def _shown_by_depth(long: Sequence[RequestRecord]) -> dict[str, str]:
    """Whether all codes near the end of long prompts are known and all others lost."""
    asked = [record for record in long if record.expected]
    known = [_from_end(record) for record in asked if is_right(record)]
    lost = [record for record in asked if not is_right(record)]
    if not known or not lost or max(known) >= min(_from_end(record) for record in lost):
        return {}
    reason = f"only the last {max(known)} characters of a long prompt are known"
    return {record.request_id: reason for record in lost}


def _from_end(record: RequestRecord) -> int:
    """Return how far from the end of its prompt the value lies that was asked for."""
    at = record.prompt_text.find(record.expected or "")
    return len(record.prompt_text) - max(at, 0)


def _shown_by_usage(record: RequestRecord) -> str | None:
    reported, sent = record.prompt_tokens, record.prompt_tokens_sent
    if reported is None or not sent or reported < CUT_TOKENS_MIN:
        return None
    if reported >= CUT_SHARE_MAX * sent:
        return None
    return f"usage reports {reported} of {sent} prompt tokens"


def _shown_by_text(record: RequestRecord) -> str | None:
    """Whether the answer is right for a part of the own prompt: another own nonce, or own text."""
    answer = record.output_text or ""
    asked = record.expected or ""
    for canary in record.canaries:
        if canary.code_text != asked and canary.code_text in answer:
            return "the answer is right for a part of the own prompt"
    if _own_share(answer, record.own_context) >= OWN_SHARE_MIN:
        return "the answer continues a part of the own prompt"
    return None


def _own_share(answer: str, own_context: str) -> float:
    text, own = fold(answer).text.strip(), fold(own_context).text
    if len(text) < GRAM:
        return 0.0
    covered = [False] * len(text)
    for start in range(len(text) - GRAM + 1):
        if text[start : start + GRAM] in own:
            covered[start : start + GRAM] = [True] * GRAM
    return sum(covered) / len(text)
