"""The weight of one match, in bits: how unlikely it is that two people wrote it apart.

Every word of the match is paid for by the fixed character model. A word that the sink's own context
holds too costs little, public text and edits count against it, and value-like words (ids, names,
amounts) count more than the model says, since nobody writes another's number by chance.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from importlib import resources

from kvaudit.detect.scored.char_model import CharModel, spelled
from kvaudit.detect.scored.public_text import PublicText

OWN_WORD_BITS = 2.0  # of a word that stands in the own context as well, or of everyday code
VALUE_BITS = 8.0  # on top, for a word with a digit
NAME_BITS = 4.0  # on top, for a word in capitals within a sentence
EDIT_BITS = 8.0  # off, for each gap in the chain
CODE_SHARE = 0.06  # signs of code among the characters of a stretch of it
_CODE_SIGN = re.compile(r"[(){}\[\];=<>_`|\\]|::|->|\bSELECT\b|\bFROM\b|\bWHERE\b")
# Everybody's numbers: dates, times, addresses of every network, counting.
_COMMON_NUMBER = re.compile(
    r"(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:0?[1-9]|[12]\d|3[01])"
    r"(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?)?"
    r"|(?:0?[1-9]|[12]\d|3[01])[-/.](?:0?[1-9]|1[0-2])[-/.](?:19|20)\d\d|\b(?:19|20)\d\d\b"
    r"|\b(?:127|10|192\.168|172\.(?:1[6-9]|2\d|3[01])|0)(?:\.\d{1,3}){1,3}\b|\b\d\d?:\d\d(?::\d\d)?\b"
    r"|\b0?1?23456789?0?\b|\b(\d)\1{3,}\b|\b[1-9]0{2,}\b|\b24/7\b"
)
_VALUE = re.compile(r"[^\W_]*\d[^\W_]*(?:[-_.:/,][^\W_]*\d[^\W_]*)*")
_NAME = re.compile(r"(?<=[\w,;:)] )[A-Z][^\W\d_]{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one match weighs.

    Attributes:
        bits: The weight.
        words: Words that carry it: not own, not public.
        values: Value-like words among them, as the source writes them.
        public_share: Share of the text that is public.
    """

    bits: float
    words: int
    values: tuple[str, ...]
    public_share: float


@dataclass(frozen=True, slots=True)
class Scorer:
    """Weighs matches under the shipped model and public text."""

    model: CharModel
    public: PublicText

    def score(
        self, shared: str, origin: str, own_words: Set[str], *, edits: int, share: float
    ) -> Score:
        """Weigh one match.

        Args:
            shared: The stretch of the sink's answer.
            origin: The stretch of the source, in whose letters names are told.
            own_words: Words of the sink's context, as `words_of` makes them.
            edits: Gaps in the chain.
            share: Share of the stretch that matched.
        """
        text = spelled(shared)
        bits = self.model.bits_of(text)
        covered = self.public.covered(text)
        total = 0.0
        carrying = 0
        public_chars = at = 0
        distinct: set[str] = set()
        cheap = own_words | common_words(shared)
        for word in text.split(" "):
            end = at + len(word)
            cost = sum(bits[max(0, at - 1) : end])
            if all(covered[at:end]):
                cost = 0.0
                public_chars += len(word)
            elif word in cheap or word in distinct:
                cost = min(cost, OWN_WORD_BITS)
            else:
                carrying += 1
                distinct.add(word)
            total += cost
            at = end + 1
        values = values_in(origin, distinct)
        raised = sum(VALUE_BITS if any(c.isdigit() for c in v) else NAME_BITS for v in values)
        return Score(
            bits=max(0.0, (total + raised) * share - EDIT_BITS * edits),
            words=carrying,
            values=values,
            public_share=public_chars / max(1, len(text)),
        )

    def word_bits(self, word: str) -> float:
        """Return the bits of one spelled word alone."""
        return sum(self.model.bits_of(f" {word} ")[1:])


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text as the score compares them."""
    return frozenset(spelled(text).split(" "))


def common_words(text: str) -> frozenset[str]:
    """Return words of a stretch that are everybody's: of everyday code, dates, round numbers."""
    found = set(spelled(" ".join(m[0] for m in _COMMON_NUMBER.finditer(text))).split(" "))
    if len(_CODE_SIGN.findall(text)) >= CODE_SHARE * len(text):
        found |= code_words()
    return frozenset(found)


@cache
def code_words() -> frozenset[str]:
    """Return keywords and the names that every program has."""
    text = resources.files("kvaudit.detect.scored").joinpath("code_words.txt").read_text("utf-8")
    return frozenset(text.split())


def values_in(origin: str, distinct: Set[str]) -> tuple[str, ...]:
    """Return ids, amounts and names of a stretch that are no words of the own context."""
    found = [m[0] for m in (*_VALUE.finditer(origin), *_NAME.finditer(origin))]
    return tuple(dict.fromkeys(v for v in found if set(spelled(v).split(" ")) & distinct))
