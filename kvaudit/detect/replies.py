"""KVA203: different prompts got the same reply.

MinHash proposes pairs, exact Jaccard similarity decides. 16 bands of 8 rows of a signature of 128
values propose a pair of similarity s with chance 1 - (1 - s^8)^16: .95 at .8, over .999 at .9.

The same words alone are no misdelivery: stock lines and refusals are shared by right. A pair counts
when the prompts differ, the reply is no template, and for one of the two requests it holds a value
of the other's context or misses what the own prompt asks for. Only a foreign value has a computed
chance of accident, so only that convicts; the rest are candidates.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from datasketch import MinHash, MinHashLSH

from kvaudit.detect.answers import is_right
from kvaudit.detect.corpus import Corpus, Detection, could_reach, is_foreign
from kvaudit.findings import Evidence, Side, Source, Span
from kvaudit.records import RequestRecord

RULE_ID = "KVA203"
NUM_PERM = 128
BANDS, ROWS = 16, 8
MINHASH_SEED = 1
SHINGLE = 5  # folded characters
SHINGLES_MIN = 30
REPLY_JACCARD_MIN = 0.9
PROMPT_JACCARD_MAX = 0.5
TEMPLATE_OWNERS = 3  # whose reply, values masked, is everybody's
_VALUE = re.compile(r"[A-Za-z0-9]+(?:[-_.:/][A-Za-z0-9]+)*")
_MIXED_MIN, _DIGITS_MIN = 10, 8
_MIXED_BITS, _DIGIT_BITS = 5.0, 3.3  # of one character of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """One answer as it is compared.

    Attributes:
        shingles: Of its folded text.
        form: The folded text with its values masked.
        values: Value-like tokens of its prompt, folded.
    """

    record: RequestRecord
    shingles: frozenset[str]
    form: str
    values: frozenset[str]


def find_same_replies(corpus: Corpus) -> Detection:
    """Return evidence for each answer that belongs to another tenant's request."""
    replies = [
        _reply(record, shingles)
        for record in corpus.sinks
        if len(shingles := shingles_of(record.output_text or "")) >= SHINGLES_MIN
    ]
    if len(replies) < 2:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"fewer than two answers have {SHINGLES_MIN} shingles",
        )
    owners_of: dict[str, set[str]] = defaultdict(set)
    for reply in replies:
        owners_of[reply.form].add(reply.record.owner)
    size = sum(len(reply.record.output_text or "") for reply in replies)
    evidence = []
    for first, second in _alike(replies):
        if len(owners_of[first.form] | owners_of[second.form]) >= TEMPLATE_OWNERS:
            continue
        for sink, source in ((first, second), (second, first)):
            item = _judged(sink, source, size)
            if item is not None:
                evidence.append(item)
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(evidence),
        examined=len(replies),
        null_alarms=_twin_alarms(corpus, replies) if corpus.twins else None,
        null_trials=len(replies) if corpus.twins else 0,
    )


def is_long_enough(record: RequestRecord) -> bool:
    """Whether the answer is long enough to be compared as a whole."""
    return len(shingles_of(record.output_text or "")) >= SHINGLES_MIN


def shingles_of(text: str) -> frozenset[str]:
    """Return the shingles of a text in lower case, white space runs as one space."""
    folded = " ".join(text.casefold().split())
    return frozenset(folded[at : at + SHINGLE] for at in range(len(folded) - SHINGLE + 1))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the exact Jaccard similarity; 0 for two empty sets."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def values_of(text: str) -> frozenset[str]:
    """Return value-like tokens: letters and digits mixed, or many digits; folded."""
    found = set()
    for match in _VALUE.finditer(text):
        value = "".join(char for char in match[0].casefold() if char.isalnum())
        digits = sum(char.isdigit() for char in value)
        if (0 < digits < len(value) and len(value) >= _MIXED_MIN) or (
            digits == len(value) >= _DIGITS_MIN
        ):
            found.add(value)
    return frozenset(found)


def _reply(record: RequestRecord, shingles: frozenset[str]) -> _Reply:
    folded = " ".join((record.output_text or "").casefold().split())
    form = _VALUE.sub(lambda match: "#" if values_of(match[0]) else match[0], folded)
    return _Reply(record=record, shingles=shingles, form=form, values=values_of(record.own_context))


def _alike(replies: Sequence[_Reply]) -> Iterable[tuple[_Reply, _Reply]]:
    """Yield each pair of foreign requests with the same reply to different prompts, once."""
    index = MinHashLSH(num_perm=NUM_PERM, params=(BANDS, ROWS))
    for at, reply in enumerate(replies):
        signature = MinHash(num_perm=NUM_PERM, seed=MINHASH_SEED)
        signature.update_batch([shingle.encode() for shingle in sorted(reply.shingles)])
        for other in sorted(index.query(signature)):
            first = replies[other]
            if (
                is_foreign(first.record, reply.record)
                and jaccard(first.shingles, reply.shingles) >= REPLY_JACCARD_MIN
                and jaccard(
                    shingles_of(first.record.own_context), shingles_of(reply.record.own_context)
                )
                < PROMPT_JACCARD_MAX
            ):
                yield first, reply
        index.insert(at, signature)


def _judged(sink: _Reply, source: _Reply, size: int) -> Evidence | None:
    """Return evidence if the reply is the source's and not the sink's."""
    if not could_reach(source.record, sink.record):
        return None
    answer = "".join(char for char in (sink.record.output_text or "").casefold() if char.isalnum())
    foreign = [value for value in source.values - sink.values if value in answer]
    asks = sink.record.expected
    misses = asks is not None and not is_right(sink.record) and is_right(source.record)
    if not foreign and not misses:
        return None
    longest = max(foreign, key=len, default="")
    text = sink.record.output_text or ""
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=sink.record.request_id,
        sink_tenant=sink.record.tenant,
        source=Source(
            request_id=source.record.request_id, tenant=source.record.tenant, side=Side.ANSWER
        ),
        sink_span=Span(start=0, end=len(text)),
        excerpt=text,
        score=round(jaccard(sink.shingles, source.shingles), 3),
        chance=_chance(longest, size) if longest else None,
        details={
            "shingles": len(sink.shingles),
            "holds_foreign_value": bool(foreign),
            "misses_what_was_asked": misses,
        },
    )


def _chance(value: str, size: int) -> float:
    """Bound the chance that this value turns up anywhere in all replies by accident."""
    bits = len(value) * (_DIGIT_BITS if value.isdigit() else _MIXED_BITS)
    return min(1.0, math.exp2(math.log2(max(1, size)) - bits))


def _twin_alarms(corpus: Corpus, replies: Iterable[_Reply]) -> int:
    """Return how many replies hold a value of a request that was never sent."""
    never = frozenset().union(*(values_of(twin.prompt_text) for twin in corpus.twins))
    return sum(bool(values_of(r.record.output_text or "") & never - r.values) for r in replies)
