"""Synthetic documents: natural sentences, canaries planted in them, lengths exact to the token.

A document has four canaries, a short one has one. One paragraph, at the head, in the middle or at
the tail, names their codes ("The gate number of the amber falcon is K7QX-..."); every other one
begins with the words of one of them. The last line is a stem that asks for the first code again.
Every sentence is drawn anew from the request's own seed, so two documents share sentence patterns
and nothing else.

A short document is made of everyday notes, one a line, and names its one code twice: at the head,
in the middle or at the tail, and again in the last line before the stem.

Why this shape: whoever continues stale text soon comes upon a canary, wherever it begins; and a
model that continues, as the built-in one does, answers the stem with its own code. Short documents
are all that small models of real language are sent. Those lose a code among other numbers, and
what they continue from stale pages is what they would have found easy to recall: with notes and a
code named twice, SmolLM2-135M recalled 16 of 16 and continued 11 of 16 stale documents; with the
sentences and the single code of long ones, 6 of 8 and 3 of 8.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvaudit.canary import Canary, CanaryMint
from probes.notes import note
from probes.words import ADJECTIVES, ATTRIBUTES, NOUNS, PLACES, THINGS, VERBS

CANARIES = 4
SHORT_TOKENS = 450  # below this there is room for one canary only
SENTENCE_TOKENS = 24  # of filler, about
SENTENCE_TOKENS_MIN = 8  # none is shorter
PAD_TOKENS = 14  # room for the pad sentence that makes a length exact
PAD_TRIES = 40
PARAGRAPH_SENTENCES = 4


def attributes_of(tenant: int, tenants: int) -> tuple[str, ...]:
    """Return the attribute nouns of one tenant, by its number; two share none if they can."""
    return ATTRIBUTES[tenant % len(ATTRIBUTES) :: min(tenants, len(ATTRIBUTES))]


class Depth(StrEnum):
    """Where in a document the block of codes stands."""

    HEAD = "head"
    MIDDLE = "middle"
    TAIL = "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One prompt and what a right answer to it holds.

    Attributes:
        text: The prompt, ending in the stem.
        tokens: Its length in the target's tokens.
        canaries: Planted in it; the stem asks for the first one's code.
        continuation: The sentences that follow the stem's first appearance: what a model that
            continues would print.
        attribute: The attribute noun of all its codes.
    """

    text: str
    tokens: int
    canaries: tuple[Canary, ...]
    continuation: str
    attribute: str

    @property
    def expected(self) -> str:
        """The code that the stem asks for."""
        return self.canaries[0].code_text

    @property
    def stem(self) -> str:
        """The last line."""
        return self.text.rsplit("\n", 1)[-1]


class DocumentWriter:
    """Writes the document of one request; the same root and label always give the same one.

    Attributes of the request: `label` is unique in the run, `tokens` the wanted prompt length,
    `attributes` the nouns that this tenant's codes may have.
    """

    def __init__(
        self,
        *,
        root: str,
        label: str,
        tenant: str,
        tokens: int,
        attributes: Sequence[str],
        count_tokens: Callable[[str], int],
    ) -> None:
        digest = hashlib.blake2b(f"{root}/{label}".encode(), digest_size=16).digest()
        self._rng = random.Random(digest)
        self._count = count_tokens
        self._tokens = tokens
        mint = CanaryMint(f"kvaudit/{root}")
        self._is_short = tokens < SHORT_TOKENS
        count = 1 if self._is_short else CANARIES
        self._canaries = tuple(
            mint.mint(f"{label}/{number}", tenant) for number in range(1, count + 1)
        )
        self._attribute = self._rng.choice(attributes)
        adjectives = self._rng.sample(ADJECTIVES, count)
        nouns = self._rng.sample(NOUNS, count)
        self._entities = tuple(f"{a} {n}" for a, n in zip(adjectives, nouns, strict=True))

    def write(self, *, depth: Depth, opening: str = "") -> Document:
        """Write a document of exactly the wanted length (at most, if the tokeniser jumps).

        Args:
            depth: Where the block of codes stands.
            opening: First sentences, the same for requests that are to share a prefix.
        """
        ending = f"\n{self._stem()}"
        body = self._body(self._tokens, depth=depth, opening=opening, ending=ending)
        if not self._is_short:
            return self._document(self._padded(body, ending, self._tokens))
        # Digits near the end would draw the answer of a small model.
        start = f"{opening} " if opening else ""
        lines = body.removeprefix(start)
        return self._document(self._padded(start.rstrip(), f"\n{lines}{ending}", self._tokens))

    def write_cut(self, cut: int) -> Document | None:
        """Write a document whose first `cut` tokens end in "... The <attribute> of".

        A server that keeps just those goes on with " the", as every document would. The block of
        codes stands at the head. None when there is too little room behind the cut.
        """
        tokens = self._tokens
        lead = f" The {self._attribute} of"
        behind = f" the {self._entities[-1]} is asked for at the desk."
        ending = f"\n{self._stem()}"
        if self._count(f"{lead}{behind}{ending}") + PAD_TOKENS > tokens - cut + self._count(lead):
            return None
        body = self._body(cut, depth=Depth.HEAD, opening="", ending=lead)
        text = self._padded(body, lead, cut) + behind
        room = tokens - PAD_TOKENS - SENTENCE_TOKENS - self._count(ending)
        for _ in range(tokens // SENTENCE_TOKENS_MIN):
            if self._count(text) >= room:
                break
            text = f"{text} {self._sentence()}"
        return self._document(self._padded(text, ending, tokens))

    def _document(self, text: str) -> Document:
        return Document(
            text=text,
            tokens=self._count(text),
            canaries=self._canaries,
            continuation=self._block()[len(self._stem()) :],
            attribute=self._attribute,
        )

    def _stem(self) -> str:
        return f"The {self._attribute} of the {self._entities[0]} is"

    def _block(self) -> str:
        """All codes, one sentence each, and in a long document the words of the last canary."""
        codes = [
            f"The {self._attribute} of the {entity} is {canary.code_text}."
            for entity, canary in zip(self._entities, self._canaries, strict=True)
        ]
        return " ".join(codes if self._is_short else [*codes, self._words(len(codes) - 1)])

    def _words(self, number: int) -> str:
        """The words of one canary, in turn."""
        index = number % len(self._canaries)
        return f"The {self._entities[index]} answers to {self._canaries[index].phrase}."

    def _body(self, tokens: int, *, depth: Depth, opening: str, ending: str) -> str:
        """Fill up with sentences to a little under `tokens`, the block at its depth."""
        room = tokens - PAD_TOKENS - self._count(ending)
        filler: list[str] = []
        body = self._assembled(filler, depth=depth, opening=opening)
        missing = room - self._count(body)
        while missing > 0:
            filler += [self._sentence() for _ in range(max(1, missing // SENTENCE_TOKENS))]
            body = self._assembled(filler, depth=depth, opening=opening)
            missing = room - self._count(body)
        while filler and missing < 0:
            filler.pop()
            body = self._assembled(filler, depth=depth, opening=opening)
            missing = room - self._count(body)
        return body

    def _assembled(self, filler: Sequence[str], *, depth: Depth, opening: str) -> str:
        """Put the block at its depth between the paragraphs."""
        paragraphs = self._notes(filler) if self._is_short else self._paragraphs(filler)
        places = {Depth.HEAD: 0, Depth.MIDDLE: len(paragraphs) // 2, Depth.TAIL: len(paragraphs)}
        paragraphs.insert(places[depth], self._block())
        if self._is_short:
            paragraphs.append(f"Remember that the{self._block().removeprefix('The')}")
        text = "\n".join(paragraphs)
        return f"{opening} {text}" if opening else text

    def _paragraphs(self, filler: Sequence[str]) -> list[str]:
        """Cut the sentences into paragraphs, each behind a canary's words."""
        return [
            " ".join([self._words(number), *filler[start : start + PARAGRAPH_SENTENCES]])
            for number, start in enumerate(range(0, max(1, len(filler)), PARAGRAPH_SENTENCES))
        ]

    def _notes(self, filler: Sequence[str]) -> list[str]:
        """Put the canary's words, a line of its own, in the middle of the notes."""
        middle = len(filler) // 2
        return [*filler[:middle], self._words(0), *filler[middle:]]

    def _sentence(self) -> str:
        rng = self._rng
        if self._is_short:
            return note(rng)
        return (
            f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)}"
            f" {rng.randrange(1000, 10000)} {rng.choice(THINGS)} and {rng.randrange(100, 1000)}"
            f" {rng.choice(THINGS)} {rng.choice(PLACES)} gate {rng.randrange(10, 100)}."
        )

    def _padded(self, body: str, ending: str, tokens: int) -> str:
        """Put a sentence of digits before the ending that makes the length exact."""
        wanted = max(1, tokens - self._count(f"{body} The seal is .{ending}"))
        digits = "".join(self._rng.choice("23456789") for _ in range(PAD_TRIES * 4))
        best = body + ending
        for _ in range(PAD_TRIES):
            text = f"{body} The seal is {digits[:wanted]}.{ending}"
            length = self._count(text)
            if length == tokens:
                return text
            if length < tokens:
                best = text
            wanted += tokens - length
            if not 1 <= wanted <= len(digits):
                break
        return best
