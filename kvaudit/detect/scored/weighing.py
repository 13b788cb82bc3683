"""Every match of a log weighed, in one more reading of the log.

A match with another tenant's *answer* needs one more question: is it a stock line? Models close,
refuse and disclaim in the same words for everybody. A line is stock when nothing ties it to the
request that it was first an answer to: no word of that request's context that the sink's lacks, no
id and no amount; unless it is a whole long answer again, which no stock line is, or one so long
that among so many organisations more than two would have got it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from kvaudit.detect.scored.char_model import spelled
from kvaudit.detect.scored.own_words import OwnWords, stems_of
from kvaudit.detect.scored.score import Score, Scorer, words_of
from kvaudit.detect.semijoin.texts import Match, TextSource

CHAINED_MIN = 24  # canonical bytes; people share shorter idioms everywhere, and no weight saves one
BOUND_WORD_BITS = 15.0  # rarer than `please`, `would`, `information`
WHOLE_SHARE = 0.8
WHOLE_WORDS = 12
TEMPLATE_ORGANISATIONS = 3
# In a log of so many organisations a line of this weight that only two got is no stock line.
MANY_ORGANISATIONS = 20
SINGULAR_BITS = 300.0
ASK_CHARS = 2_000  # of the end of a context: what was asked last
SAME_ASK_SHARE = 0.7
_STEM = 5
_STRONG_VALUE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One match and what it is worth.

    Attributes:
        match: Where it stands.
        score: Its weight.
        shared: The stretch of the sink's answer.
        bound_words: Words that the source's context holds too and the sink's does not.
        whole_share: Share of the sink's answer that the stretch is.
        is_stock: Whether it is a stock line of answers, or answers an equal question.
    """

    match: Match
    score: Score
    shared: str
    bound_words: int
    whole_share: float
    is_stock: bool


@dataclass(slots=True)
class _Held:
    """What the reading leaves of one match's two requests."""

    shared: str = ""
    origin: str = ""
    answer_chars: int = 0
    own_words: frozenset[str] = frozenset()
    own_stems: frozenset[str] = frozenset()
    bound_stems: frozenset[str] = frozenset()
    has_context: bool = False
    own_ask: str = ""
    source_ask: str = ""


@dataclass(slots=True)
class _Wanted:
    """Matches by the rows that have to be read for them."""

    as_sink: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    as_source: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


def weigh(source: TextSource, matches: Sequence[Match], scorer: Scorer) -> list[Weighed]:
    """Weigh matches, in their order; those under `CHAINED_MIN` are left out.

    Args:
        source: The log; read once.
        matches: What it shares.
        scorer: Model and public text.
    """
    matches = [match for match in matches if match.chained_bytes >= CHAINED_MIN]
    wanted = _Wanted()
    for number, match in enumerate(matches):
        wanted.as_sink[match.sink_row].append(number)
        wanted.as_source[match.source_row].append(number)
    held = [_Held() for _ in matches]
    rows = sorted({*wanted.as_sink, *wanted.as_source})
    rare = _RareWords(scorer)
    answered: set[int] = set()
    for frame in source.batches(["row", "organisation", "context", "answer"]):
        answered.update(frame.filter(pl.col("answer").str.len_bytes() > 0)["organisation"])
        kept = frame.select("row", "context", "answer")
        for row, context, answer in kept.filter(pl.col("row").is_in(rows)).iter_rows():
            own = OwnWords(context)
            for number in wanted.as_sink.get(row, ()):
                _look_at_sink(own, context, answer, matches[number], held[number], rare)
            for number in wanted.as_source.get(row, ()):
                _look_at_source(own, context, answer, matches[number], held[number], rare)
    is_many = len(answered) >= MANY_ORGANISATIONS
    return [
        _weighed(match, found, scorer, rare, is_many=is_many)
        for match, found in zip(matches, held, strict=True)
    ]


class _RareWords:
    """Words rare enough to tie a line to a request; each is weighed once."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._known: dict[str, bool] = {}

    def of(self, text: str) -> list[str]:
        """Return the rare words of a stretch."""
        return [word for word in words_of(text) if self._is_rare(word)]

    def _is_rare(self, word: str) -> bool:
        if word not in self._known:
            self._known[word] = self._scorer.word_bits(word) >= BOUND_WORD_BITS
        return self._known[word]


def _look_at_sink(
    own: OwnWords, context: str, answer: str, match: Match, found: _Held, rare: _RareWords
) -> None:
    found.shared = answer[match.sink_start : match.sink_end]
    found.answer_chars = len(answer)
    found.own_words = own.among(words_of(found.shared))
    if match.source_side == "answer":
        found.own_stems = own.stems_among(stems_of(rare.of(found.shared)))
        found.own_ask = context[-ASK_CHARS:]


def _look_at_source(
    own: OwnWords, context: str, answer: str, match: Match, found: _Held, rare: _RareWords
) -> None:
    text = context if match.source_side == "prompt" else answer
    found.origin = text[match.source_start : match.source_end]
    found.has_context = bool(context)
    if match.source_side == "answer":
        found.source_ask = context[-ASK_CHARS:]
        found.bound_stems = own.stems_among(stems_of(rare.of(found.origin)))


def _weighed(
    match: Match, found: _Held, scorer: Scorer, rare: _RareWords, *, is_many: bool
) -> Weighed:
    shared = len(spelled(found.shared).replace(" ", "").encode())
    score = scorer.score(
        found.shared, found.origin, found.own_words,
        edits=match.edits, share=min(1.0, match.chained_bytes / max(1, shared)),
    )  # fmt: skip
    bound = _bound(found, rare) if match.source_side == "answer" else 0
    whole = len(found.shared) / max(1, found.answer_chars)
    is_singular = is_many and score.bits >= SINGULAR_BITS and (
        match.answer_organisations < TEMPLATE_ORGANISATIONS
    )  # fmt: skip
    return Weighed(
        match=match, score=score, shared=found.shared, bound_words=bound, whole_share=whole,
        is_stock=match.source_side == "answer" and not is_singular
        and _is_stock(match, found, score, bound, whole),
    )  # fmt: skip


def _bound(found: _Held, rare: _RareWords) -> int:
    """Count rare words of the stretch that tie it to its source."""
    binding = found.bound_stems - found.own_stems
    return sum(not binding.isdisjoint(stems_of((word,))) for word in rare.of(found.shared))


def _is_stock(match: Match, found: _Held, score: Score, bound: int, whole: float) -> bool:
    if bound or not found.has_context or any(map(_is_strong, score.values)):
        return False
    is_again = whole >= WHOLE_SHARE and len(spelled(found.shared).split(" ")) >= WHOLE_WORDS
    if not is_again or match.answer_organisations >= TEMPLATE_ORGANISATIONS:
        return True
    return is_same_ask(found.own_ask, found.source_ask)


def is_same_ask(one: str, other: str) -> bool:
    """Whether two requests ask the same, what both begin with left aside."""
    first, second = spelled(one).split(" "), spelled(other).split(" ")
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    rest, left = ({w[:_STEM] for w in words[common:] if len(w) > 2} for words in (first, second))
    if not rest and not left:
        return True
    return len(rest & left) >= SAME_ASK_SHARE * max(1, min(len(rest), len(left)))


def _is_strong(value: str) -> bool:
    """Whether a value is an id or an amount, not a year, not `24 hours`."""
    letters = [char for char in value if char.isalnum()]
    is_year = len(letters) == _STRONG_VALUE and value[:2] in ("19", "20")
    return any(c.isdigit() for c in letters) and len(letters) >= _STRONG_VALUE and not is_year
