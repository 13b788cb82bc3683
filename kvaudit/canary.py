"""Canary: a secret string minted for one tenant, with a known chance of turning up by accident.

A canary is `WORDS` words of a shuffled list of our own, pairwise at least 3 edits apart, and a code
of `CODE_LENGTH` characters of an alphabet of 32 without look-alikes. Each is minted from the run's
secret and a label, so a plan can be made again without sending anything again. Detectors are given
minted canaries and nothing else: no string is a canary because it looks like one.

Entropy for the built-in list and alphabet: 12 words x 9 bits + 16 characters x 5 bits = 188 bits.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

WORDS = 12
CODE_LENGTH = 16
CODE_GROUP = 4
CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # no I, O, 0, 1
CODE_EDITS_APART = 6
PARTIAL_WORDS = 6  # so many words in order are accepted as a match


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One minted secret.

    Attributes:
        label: Unique in the run; also what it was minted from.
        tenant: Alias of its owner.
        words: `WORDS` words, lower case.
        code: `CODE_LENGTH` characters, without hyphens.
        word_bits, code_symbol_bits: Entropy of one word and of one code character, in bits.
    """

    label: str
    tenant: str
    words: tuple[str, ...]
    code: str
    word_bits: float = 9.0
    code_symbol_bits: float = 5.0

    @property
    def phrase(self) -> str:
        """The words, separated by single spaces."""
        return " ".join(self.words)

    @property
    def code_text(self) -> str:
        """The code as it is planted, in groups: `K7QX-2MNP-ABCD-EFGH`."""
        return "-".join(
            self.code[start : start + CODE_GROUP] for start in range(0, len(self.code), CODE_GROUP)
        )

    @property
    def entropy_bits(self) -> float:
        """Entropy of the whole canary, in bits."""
        return len(self.words) * self.word_bits + len(self.code) * self.code_symbol_bits


class CanaryMint:
    """Mints canaries from one secret; the same secret and label always give the same canary.

    Invariant: the codes of all canaries minted so far are pairwise at least `CODE_EDITS_APART`
    edits apart. A label whose first draw is too near an earlier one is drawn again, so the *order*
    of labels belongs to the plan.
    """

    def __init__(
        self,
        secret: str,
        *,
        words: Sequence[str] | None = None,
        alphabet: str = CODE_ALPHABET,
    ) -> None:
        self._secret = secret
        self._words = tuple(words) if words is not None else word_list()
        self._alphabet = alphabet
        self._minted: dict[str, Canary] = {}
        assert len(self._words) > WORDS, "too few words to draw from"

    def mint(self, label: str, tenant: str) -> Canary:
        """Return the canary of `label`, owned by `tenant`."""
        known = self._minted.get(label)
        if known is not None:
            assert known.tenant == tenant, "one label, two tenants"
            return known
        for attempt in range(100):
            canary = self._draw(label, tenant, attempt)
            if all(
                edit_distance(canary.code, other.code) >= CODE_EDITS_APART
                for other in self._minted.values()
            ):
                self._minted[label] = canary
                return canary
        raise AssertionError(
            "100 draws in a row too near an earlier code: the alphabet is too small"
        )

    def check_integrity(self) -> None:
        """Assert that all codes are far enough apart."""
        codes = [canary.code for canary in self._minted.values()]
        for index, code in enumerate(codes):
            for other in codes[:index]:
                assert edit_distance(code, other) >= CODE_EDITS_APART, "two codes too near"

    def _draw(self, label: str, tenant: str, attempt: int) -> Canary:
        seed = hashlib.blake2b(
            f"{self._secret}\x00{label}\x00{attempt}".encode(), digest_size=16
        ).digest()
        rng = random.Random(seed)
        return Canary(
            label=label,
            tenant=tenant,
            words=tuple(rng.sample(self._words, WORDS)),
            code="".join(rng.choice(self._alphabet) for _ in range(CODE_LENGTH)),
            word_bits=math.log2(len(self._words)),
            code_symbol_bits=math.log2(len(self._alphabet)),
        )


@cache
def word_list() -> tuple[str, ...]:
    """Return our own list: 512 words, pairwise at least 3 edits apart."""
    text = resources.files("kvaudit").joinpath("canary_words.txt").read_text(encoding="utf-8")
    return tuple(text.split())


def chance_of_code(canary: Canary, *, positions: int, canaries: int, edits: int = 0) -> float:
    """Bound the chance that a code turns up in text by accident.

    Args:
        canary: Any canary of the run; only its entropies matter.
        positions: Characters searched, in all answers together.
        canaries: Live foreign canaries.
        edits: Edits allowed; the ball of that radius is bounded by substitutions, insertions and
            deletions chosen freely.

    Returns:
        Union bound, at most 1.
    """
    length = len(canary.code)
    symbols = math.pow(2.0, canary.code_symbol_bits)
    ball = sum(math.comb(2 * length + 1, count) * symbols**count for count in range(edits + 1))
    return min(1.0, positions * canaries * ball * math.pow(2.0, -length * canary.code_symbol_bits))


def chance_of_words(canary: Canary, *, words: int, positions: int, canaries: int) -> float:
    """Bound the chance that `words` words of a canary turn up in order (union bound)."""
    starts = max(len(canary.words) - words + 1, 1)
    return min(1.0, positions * canaries * starts * math.pow(2.0, -words * canary.word_bits))


def edit_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance, bit-parallel (Myers 1999, Hyyro 2003)."""
    if not first:
        return len(second)
    full = (1 << len(first)) - 1
    masks: dict[str, int] = {}
    for index, char in enumerate(first):
        masks[char] = masks.get(char, 0) | (1 << index)
    plus, minus, distance, top = full, 0, len(first), 1 << (len(first) - 1)
    for char in second:
        mask = masks.get(char, 0)
        vertical = mask | minus
        horizontal = (((mask & plus) + plus) ^ plus) | mask | minus
        rise, fall = (minus | ~(horizontal | plus)) & full, plus & horizontal
        distance += bool(rise & top) - bool(fall & top)
        rise, fall = (rise << 1) | 1, fall << 1
        plus, minus = (fall | ~(vertical | rise)) & full, rise & vertical & full
    return distance


def all_canaries(groups: Iterable[Iterable[Canary]]) -> dict[str, Canary]:
    """Return every canary of several plantings by label."""
    return {canary.label: canary for group in groups for canary in group}
