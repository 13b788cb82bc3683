"""Text that everybody knows by heart: licences, scripture, constants, stock phrases of assistants.

A run of it in two places is no trace of one reaching the other. `public_text.txt` holds the texts,
one a paragraph; what a match shares with them counts nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from kvaudit.detect.scored.char_model import spelled

FILE_NAME = "public_text.txt"
GRAM = 16  # letters and digits; shorter stretches are no recitation


@dataclass(frozen=True, slots=True)
class PublicText:
    """Grams of known texts.

    Attributes:
        grams: Every `GRAM` letters in a row of them.
    """

    grams: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "PublicText":
        """Take in texts."""
        made: set[str] = set()
        for text in texts:
            held = spelled(text).replace(" ", "")
            made.update(held[at : at + GRAM] for at in range(len(held) - GRAM + 1))
        return cls(frozenset(made))

    def covered(self, text: str) -> list[bool]:
        """Return for each character of a spelled text whether a known gram covers it."""
        kept = [at for at, char in enumerate(text) if char != " "]
        letters = text.replace(" ", "")
        made = [False] * len(text)
        for at in range(len(letters) - GRAM + 1):
            if letters[at : at + GRAM] in self.grams:
                for place in kept[at : at + GRAM]:
                    made[place] = True
        return made

    def holds(self, text: str) -> bool:
        """Whether known grams cover the whole text."""
        held = spelled(text)
        return all(got or char == " " for got, char in zip(self.covered(held), held, strict=True))


@cache
def shipped_public_text() -> PublicText:
    """Return the texts that come with this version."""
    text = resources.files("kvaudit.detect.scored").joinpath(FILE_NAME).read_text("utf-8")
    return PublicText.of(text.split("\n\n"))
