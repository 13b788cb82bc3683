"""Every match of a log weighed, in one more reading of the log.

A match with another tenant's *answer* needs one more question: is it a stock line? Models close,
refuse and disclaim in the same words for everybody. A line is stock when nothing ties it to the
request that it was first an answer to: no word of that request's context that the sink's lacks, no
id and no amount; unless it is a whole long answer again, which no stock line is.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from kvaudit.detect.scored.char_model import script_of, spelled
from kvaudit.detect.scored.score import Score, Scorer, words_of
from kvaudit.detect.semijoin.texts import Match, TextSource

BOUND_WORD_BITS = 15.0  # rarer than `please`, `would`, `information`
WHOLE_SHARE = 0.8
WHOLE_WORDS = 12
TEMPLATE_ORGANISATIONS = 3
ASK_CHARS = 2_000  # of the end of a context: what was asked last
SAME_ASK_SHARE = 0.7
_STEM = 5
_STRONG_VALUE = 4
_UNSPACED = frozenset(("cjk", "thai"))


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
    """Weigh matches, in their order.

    Args:
        source: The log; read once.
        matches: What it shares.
        scorer: Model and public text.
    """
    wanted = _Wanted()
    for number, match in enumerate(matches):
        wanted.as_sink[match.sink_row].append(number)
        wanted.as_source[match.source_row].append(number)
    held = [_Held() for _ in matches]
    rows = sorted({*wanted.as_sink, *wanted.as_source})
    for frame in source.batches(["row", "context", "answer"]):
        for row, context, answer in frame.filter(pl.col("row").is_in(rows)).iter_rows():
            if row in wanted.as_sink:
                _look_at_sink(context, answer, wanted.as_sink[row], matches, held)
            if row in wanted.as_source:
                _look_at_source(context, answer, wanted.as_source[row], matches, held)
    return [_weighed(match, found, scorer) for match, found in zip(matches, held, strict=True)]


def _look_at_sink(
    context: str, answer: str, numbers: Sequence[int], matches: Sequence[Match], held: list[_Held]
) -> None:
    own = words_of(context)
    stems = frozenset(_stems(own))
    for number in numbers:
        match, found = matches[number], held[number]
        found.shared = answer[match.sink_start : match.sink_end]
        found.answer_chars = len(answer)
        words = words_of(found.shared)
        found.own_words = words & own
        found.own_stems = frozenset(_stems(words)) & stems
        if match.source_side == "answer":
            found.own_ask = context[-ASK_CHARS:]


def _look_at_source(
    context: str, answer: str, numbers: Sequence[int], matches: Sequence[Match], held: list[_Held]
) -> None:
    stems: frozenset[str] | None = None
    for number in numbers:
        match, found = matches[number], held[number]
        text = context if match.source_side == "prompt" else answer
        found.origin = text[match.source_start : match.source_end]
        found.has_context = bool(context)
        if match.source_side == "answer":
            stems = frozenset(_stems(words_of(context))) if stems is None else stems
            found.source_ask = context[-ASK_CHARS:]
            found.bound_stems = frozenset(_stems(words_of(found.origin))) & stems


def _stems(words: frozenset[str]) -> Iterator[str]:
    """Yield what stands for a word in all its forms: its beginning; pairs where no spaces are."""
    for word in words:
        if script_of(word) in _UNSPACED:
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        elif len(word) >= _STEM - 1 and not word.isdigit():
            yield word[:_STEM]


def _weighed(match: Match, found: _Held, scorer: Scorer) -> Weighed:
    shared = len(spelled(found.shared).replace(" ", "").encode())
    score = scorer.score(
        found.shared, found.origin, found.own_words,
        edits=match.edits, share=min(1.0, match.chained_bytes / max(1, shared)),
    )  # fmt: skip
    bound = _bound(found, scorer)
    whole = len(found.shared) / max(1, found.answer_chars)
    return Weighed(
        match=match, score=score, shared=found.shared, bound_words=bound, whole_share=whole,
        is_stock=match.source_side == "answer" and _is_stock(match, found, score, bound, whole),
    )  # fmt: skip


def _bound(found: _Held, scorer: Scorer) -> int:
    """Count rare words of the stretch that tie it to its source."""
    words = {
        word for word in words_of(found.shared)
        if frozenset(_stems(frozenset((word,)))) & (found.bound_stems - found.own_stems)
    }  # fmt: skip
    return sum(scorer.word_bits(word) >= BOUND_WORD_BITS for word in words)


def _is_stock(match: Match, found: _Held, score: Score, bound: int, whole: float) -> bool:
    if bound or not found.has_context or any(map(_is_strong, score.values)):
        return False
    if is_same_ask(found.own_ask, found.source_ask):
        return True
    is_again = whole >= WHOLE_SHARE and len(spelled(found.shared).split(" ")) >= WHOLE_WORDS
    return not is_again or match.answer_organisations >= TEMPLATE_ORGANISATIONS


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
