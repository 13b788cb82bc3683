"""KVA203 in a log: the same reply to different prompts of different organisations.

MinHash proposes pairs (datasketch, the bands of `kvaudit.detect.replies`) among the answers that
share runs over at least half their length with a foreign answer: a similarity of .9 leaves one edit
in a hundred characters, so what lies between is shared in long runs. The exact
Jaccard similarity decides; then the prompts differ, the reply is no template, and it holds a value
or a rare word of the other's context while it has none of what was asked last.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from datasketch import MinHash, MinHashLSH

from kvaudit.detect.replies import (
    BANDS,
    MINHASH_SEED,
    NUM_PERM,
    PROMPT_JACCARD_MAX,
    REPLY_JACCARD_MIN,
    ROWS,
    SHINGLES_MIN,
    TEMPLATE_OWNERS,
    jaccard,
    shingles_of,
    values_of,
)
from kvaudit.detect.scored.score import words_of
from kvaudit.detect.scored.weighing import ASK_CHARS, Weighed, is_same_ask
from kvaudit.detect.semijoin.texts import TextSource

COVERED_MIN = 0.5  # of the answer, by all stretches
PROMPT_CHARS = 20_000  # of the end of a context that are compared
_WORD = re.compile(r"[^\W_]*\d[^\W_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SameReply:
    """One reply that two requests got.

    Attributes:
        sink_row, source_row: Who got it later, and first.
        similarity: Exact Jaccard similarity of the shingles.
        shingles: Of the sink's answer.
        holds_foreign_value: Whether it has an id of the source's context that the sink's lacks.
        misses_own_ask: Whether it has no longer word of what the sink asked.
        bound_words: Rare words that tie it to the source's context.
    """

    sink_row: int
    source_row: int
    similarity: float
    shingles: int
    holds_foreign_value: bool
    misses_own_ask: bool
    bound_words: int


@dataclass(frozen=True, slots=True)
class _Reply:
    organisation: int
    answer: str
    context: str
    shingles: frozenset[str]

    @property
    def form(self) -> str:
        """The answer with everything that has a digit masked."""
        return _WORD.sub("#", " ".join(self.answer.casefold().split()))


def find_same_replies(source: TextSource, weighed: Sequence[Weighed]) -> list[SameReply]:
    """Return replies that were given again to a foreign request.

    Args:
        source: The log.
        weighed: Its matches; only those with foreign answers matter.
    """
    bound: dict[tuple[int, int], int] = defaultdict(int)
    covered: dict[tuple[int, int], float] = defaultdict(float)
    for item in weighed:
        if item.match.source_side == "answer" and not item.match.is_decoy:
            pair = item.match.sink_row, item.match.source_row
            covered[pair] += item.whole_share
            if not item.is_stock:
                bound[pair] += item.bound_words
    bound = {pair: words for pair, words in bound.items() if covered[pair] >= COVERED_MIN}
    if not bound:
        return []
    rows = {row for pair in bound for row in pair}
    replies = _replies(source, rows)
    proposed = set(_proposed(replies))
    owners: dict[str, set[int]] = defaultdict(set)
    for reply in replies.values():
        owners[reply.form].add(reply.organisation)
    made = []
    for (sink, first), words in sorted(bound.items()):
        if (min(sink, first), max(sink, first)) in proposed:
            held = (replies[sink], replies[first])
            is_template = len(owners[held[0].form] | owners[held[1].form]) >= TEMPLATE_OWNERS
            found = None if is_template else _judged(sink, first, held, words)
            if found is not None:
                made.append(found)
    return made


def _replies(source: TextSource, rows: set[int]) -> dict[int, _Reply]:
    made: dict[int, _Reply] = {}
    for frame in source.batches(["row", "organisation", "context", "answer"]):
        for row, owner, context, answer in frame.filter(
            pl.col("row").is_in(sorted(rows))
        ).iter_rows():
            shingles = shingles_of(answer)
            if len(shingles) >= SHINGLES_MIN:
                made[row] = _Reply(owner, answer, context[-PROMPT_CHARS:], shingles)
    return made


def _proposed(replies: Mapping[int, _Reply]) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows that MinHash takes for alike, the smaller row first."""
    index = MinHashLSH(num_perm=NUM_PERM, params=(BANDS, ROWS))
    for row in sorted(replies):
        signature = MinHash(num_perm=NUM_PERM, seed=MINHASH_SEED)
        signature.update_batch([shingle.encode() for shingle in sorted(replies[row].shingles)])
        for other in index.query(signature):
            if replies[other].organisation != replies[row].organisation:
                yield other, row
        index.insert(row, signature)


def _judged(sink: int, first: int, held: tuple[_Reply, _Reply], words: int) -> SameReply | None:
    later, earlier = held
    similarity = jaccard(later.shingles, earlier.shingles)
    if similarity < REPLY_JACCARD_MIN or is_same_ask(
        later.context[-ASK_CHARS:], earlier.context[-ASK_CHARS:]
    ):
        return None
    if jaccard(shingles_of(later.context), shingles_of(earlier.context)) >= PROMPT_JACCARD_MAX:
        return None
    answer = "".join(char for char in later.answer.casefold() if char.isalnum())
    foreign = values_of(earlier.context) - values_of(later.context)
    has_value = any(value in answer for value in foreign)
    misses = not _long_words(later.context[-ASK_CHARS:]) & _long_words(later.answer)
    if not has_value and not (misses and words):
        return None
    return SameReply(
        sink_row=sink, source_row=first, similarity=round(similarity, 3),
        shingles=len(later.shingles), holds_foreign_value=has_value, misses_own_ask=misses,
        bound_words=words,
    )  # fmt: skip


def _long_words(text: str) -> frozenset[str]:
    return frozenset(word for word in words_of(text) if len(word) > 3)
