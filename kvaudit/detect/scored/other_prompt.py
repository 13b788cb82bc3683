"""KVA204: an answer that fits another tenant's prompt better than its own.

No run of words need be shared: a paraphrase or a translation keeps names and numbers. Rare words of
an answer that its own context lacks are looked for in all contexts; those that one foreign
organisation alone holds count for its request. Alone that is a suspicion; it passes only when an
id or amount and two names are among them and the answer has nothing of what was asked last.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from kvaudit.detect.scored.char_model import spelled
from kvaudit.detect.scored.fresh_text import Fresh, fresh_contexts
from kvaudit.detect.scored.score import Scorer, values_in, words_of
from kvaudit.detect.scored.weighing import ASK_CHARS
from kvaudit.detect.semijoin.texts import TextSource

RARE_BITS = 22.0
RARE_CHARS_MIN = 4
WORDS_MIN = 3
NAMES_MIN = 2
WORDS_OF_ANSWER_MAX = 400
HOLDERS_MAX = 32
WORD_MAX = 200  # letters of one word that may begin in text sent before


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrompt:
    """One answer, and the foreign prompt that it seems to answer.

    Attributes:
        sink_row, source_row: The two requests.
        words: Rare words that only the source's organisation holds.
        values: Ids and amounts among them, and `names`.
        own_words: Longer words of the own ask that the answer has.
        bits: Weight of the rare words.
    """

    sink_row: int
    source_row: int
    words: int
    values: int
    names: int
    own_words: int
    bits: float

    @property
    def is_strong(self) -> bool:
        """Whether it is more than a suspicion."""
        return self.values >= 1 and self.names >= NAMES_MIN and not self.own_words


@dataclass(slots=True)
class _Sink:
    """One answer's rare words; those of its own context are among them, held there first."""

    organisation: int
    last_us: int | None
    rare: frozenset[str]


@dataclass(slots=True)
class _Holders:
    """Where one rare word stands: by organisation, its first request."""

    first: dict[int, tuple[int | None, int]] = field(default_factory=dict)


def find_other_prompts(source: TextSource, scorer: Scorer, *, skew_us: int) -> list[OtherPrompt]:
    """Return answers with at least `WORDS_MIN` rare words of one foreign prompt."""
    sinks = _sinks(source, scorer)
    wanted: dict[str, _Holders] = {word: _Holders() for s in sinks.values() for word in s.rare}
    if not wanted:
        return []
    for fresh in fresh_contexts(source):
        place = fresh.start_us, fresh.row
        for word in _new_words(fresh) & wanted.keys():
            held = wanted[word].first
            if fresh.organisation in held:
                held[fresh.organisation] = min(held[fresh.organisation], place, key=_when)
            elif len(held) < HOLDERS_MAX:
                held[fresh.organisation] = place
    found = {row: best for row, sink in sinks.items() if (best := _best(sink, wanted, skew_us))}
    rows = sorted(found)
    answers, contexts = (source.fetch(rows, side) if rows else {} for side in ("answer", "context"))
    return [
        _told(row, found[row], sinks[row].rare, answers[row], contexts[row], scorer) for row in rows
    ]


def _new_words(fresh: Fresh) -> frozenset[str]:
    """Return the words of the new text, the one that it goes on with among them."""
    begin = max(0, fresh.begin - WORD_MAX)
    return words_of(fresh.context[begin:])


def _when(place: tuple[int | None, int]) -> tuple[bool, int, int]:
    return place[0] is None, place[0] or 0, place[1]


def _sinks(source: TextSource, scorer: Scorer) -> dict[int, _Sink]:
    made: dict[int, _Sink] = {}
    is_rare = cache(lambda word: any(map(str.isdigit, word)) or scorer.word_bits(word) >= RARE_BITS)
    for frame in source.batches(["row", "organisation", "start_us", "end_us", "answer"]):
        for row, owner, start, end, answer in frame.iter_rows():
            long = {word for word in words_of(answer) if len(word) >= RARE_CHARS_MIN}
            if not WORDS_MIN <= len(long) <= WORDS_OF_ANSWER_MAX:
                continue
            rare = frozenset(word for word in long if is_rare(word))
            if len(rare) >= WORDS_MIN:
                made[row] = _Sink(owner, end if end is not None else start, rare)
    return made


def _best(
    sink: _Sink, wanted: Mapping[str, _Holders], skew_us: int
) -> tuple[int, list[str]] | None:
    """Return the foreign request that alone holds most of the rare words, and these."""
    held: dict[int, list[str]] = defaultdict(list)
    for word in sorted(sink.rare):
        before = {
            owner: place for owner, place in wanted[word].first.items()
            if sink.last_us is None or place[0] is None or place[0] <= sink.last_us + skew_us
        }  # fmt: skip
        if len(before) == 1 and sink.organisation not in before:
            held[next(iter(before.values()))[1]].append(word)
    if not held:
        return None
    source = min(held, key=lambda row: (-len(held[row]), row))
    return (source, held[source]) if len(held[source]) >= WORDS_MIN else None


def _told(
    row: int, best: tuple[int, list[str]], rare: frozenset[str], answer: str, context: str,
    scorer: Scorer,
) -> OtherPrompt:  # fmt: skip
    source, words = best
    ask = {word for word in words_of(context[-ASK_CHARS:]) if len(word) >= RARE_CHARS_MIN}
    values: set[str] = set()
    names: set[str] = set()
    for value in values_in(answer, rare):
        (values if any(map(str.isdigit, value)) else names).update(spelled(value).split(" "))
    return OtherPrompt(
        sink_row=row, source_row=source, words=len(words), own_words=len(ask & words_of(answer)),
        values=sum(word in values and len(word) >= RARE_CHARS_MIN for word in words),
        names=sum(word in names for word in words),
        bits=round(sum(scorer.word_bits(word) for word in words), 1),
    )  # fmt: skip
