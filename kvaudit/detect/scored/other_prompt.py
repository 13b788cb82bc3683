"""KVA204: an answer that fits another tenant's prompt better than its own.

No run of words need be shared: a paraphrase or a translation keeps names and numbers. Rare words of
an answer that its own context lacks are looked for in all contexts; those that one foreign
organisation alone holds count for its request. Alone that is a suspicion; it passes only when an
id or amount and two names are among them and the answer has nothing of what was asked last.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvaudit.detect.scored.char_model import spelled
from kvaudit.detect.scored.score import Scorer, values_in, words_of
from kvaudit.detect.scored.weighing import ASK_CHARS
from kvaudit.detect.semijoin.texts import TextSource

RARE_BITS = 22.0
RARE_CHARS_MIN = 4
WORDS_MIN = 3
NAMES_MIN = 2
WORDS_OF_ANSWER_MAX = 400
HOLDERS_MAX = 32


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
    organisation: int
    last_us: int | None
    rare: frozenset[str]
    own_words: int
    values: frozenset[str]
    names: frozenset[str]


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
    for frame in source.batches(["row", "organisation", "start_us", "context"]):
        for row, owner, start, context in frame.iter_rows():
            for word in words_of(context) & wanted.keys():
                held = wanted[word].first
                if owner in held:
                    held[owner] = min(held[owner], (start, row), key=_when)
                elif len(held) < HOLDERS_MAX:
                    held[owner] = (start, row)
    made = [_judged(row, sink, wanted, scorer, skew_us) for row, sink in sinks.items()]
    return [item for item in made if item is not None]


def _when(place: tuple[int | None, int]) -> tuple[bool, int, int]:
    return place[0] is None, place[0] or 0, place[1]


def _sinks(source: TextSource, scorer: Scorer) -> dict[int, _Sink]:
    made: dict[int, _Sink] = {}
    columns = ["row", "organisation", "start_us", "end_us", "context", "answer"]
    bits: dict[str, float] = {}
    for frame in source.batches(columns):
        for row, owner, start, end, context, answer in frame.iter_rows():
            words = words_of(answer)
            long = {w for w in words if len(w) >= RARE_CHARS_MIN}
            if len(long) > WORDS_OF_ANSWER_MAX or len(long) < WORDS_MIN:
                continue
            for word in long:
                if word not in bits:
                    bits[word] = scorer.word_bits(word)
            rare = {w for w in long if bits[w] >= RARE_BITS or any(c.isdigit() for c in w)}
            if len(rare) < WORDS_MIN:
                continue
            rare -= words_of(context)
            if len(rare) >= WORDS_MIN:
                ask = {w for w in words_of(context[-ASK_CHARS:]) if len(w) >= RARE_CHARS_MIN}
                told = values_in(answer, rare)
                spelt = {v: set(spelled(v).split(" ")) for v in told}
                made[row] = _Sink(
                    owner, end if end is not None else start, frozenset(rare), len(ask & words),
                    frozenset(w for v in told if any(map(str.isdigit, v)) for w in spelt[v]),
                    frozenset(w for v in told if not any(map(str.isdigit, v)) for w in spelt[v]),
                )  # fmt: skip
    return made


def _judged(
    row: int, sink: _Sink, wanted: Mapping[str, _Holders], scorer: Scorer, skew_us: int
) -> OtherPrompt | None:
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
    counted = Counter({at: len(words) for at, words in held.items()})
    source, count = min(counted.items(), key=lambda item: (-item[1], item[0]))
    if count < WORDS_MIN:
        return None
    words = held[source]
    return OtherPrompt(
        sink_row=row, source_row=source, words=count, own_words=sink.own_words,
        values=sum(w in sink.values and len(w) >= RARE_CHARS_MIN for w in words),
        names=sum(w in sink.names for w in words),
        bits=round(sum(scorer.word_bits(word) for word in words), 1),
    )  # fmt: skip
