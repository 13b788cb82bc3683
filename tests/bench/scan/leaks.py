"""A leak: a stretch of one request that comes out in another's answer, as it is or edited."""

import random
import re
from dataclasses import dataclass

LENGTHS = (12, 16, 24, 50, 100, 200, 300, 400)  # tokens
EDITS = ("exact", "space", "case", "markdown", "words", "mixed")
_CASELESS = ("cjk", "devanagari", "arabic")
_WORDS_PER_EDIT = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One planted leak, as the truth file has it.

    Attributes:
        sink, source: Request ids; `source` is the first request that holds the text.
        side: `prompt` or `answer` of the source.
        planted: The text as it stands in the answer, from character `start` to `end`.
        original: The text as it stands in the source.
        group: Number of tenants that were given the same text; 1 for a leak of its own.
    """

    sink: str
    source: str
    sink_tenant: str
    source_tenant: str
    side: str
    start: int
    end: int
    tokens: int
    edit: str
    script: str
    kind: str
    group: int
    original: str
    planted: str


def applicable(edit: str, script: str) -> str:
    """Return the edit, or `exact` where a script has no upper case."""
    return "exact" if edit == "case" and script in _CASELESS else edit


def edited(text: str, edit: str, script: str, words: list[str], rng: random.Random) -> str:
    """Return the text edited; `words` are what replaced words become."""
    if edit in ("words", "mixed"):
        text = _other_words(text, script, words, rng)
    if edit in ("case", "mixed") and script not in _CASELESS:
        others = [fold(text) for fold in (str.upper, str.lower, str.title, str.swapcase)]
        text = rng.choice([other for other in others if other != text] or [text])
    if edit in ("space", "mixed"):
        text = _other_spaces(text, script, rng)
    if edit in ("markdown", "mixed"):
        text = _marked_down(text, script, rng)
    return text


def _other_words(text: str, script: str, words: list[str], rng: random.Random) -> str:
    if script == "cjk":
        places = range(0, max(1, len(text) - 2), 2)
        chosen = set(rng.sample(list(places), min(len(places), max(1, len(text) // 50))))
        return "".join(
            rng.choice(words)[:2] if place in chosen else text[place : place + 2]
            for place in range(0, len(text), 2)
        )
    parts = re.split(r"(\s+)", text)
    places = [place for place in range(0, len(parts), 2) if len(parts[place]) > 3]
    for place in rng.sample(places, min(len(places), max(1, len(places) // _WORDS_PER_EDIT))):
        parts[place] = rng.choice(words)
    return "".join(parts)


def _other_spaces(text: str, script: str, rng: random.Random) -> str:
    blanks = ("\n", "  ", "\n\n", "\t", " \n ")
    if script == "cjk":
        return "".join(
            letter + (rng.choice(blanks) if rng.random() < 0.06 else "") for letter in text
        )
    return re.sub(r"\s+", lambda found: rng.choice(blanks) if rng.random() < 0.4 else " ", text)


def _marked_down(text: str, script: str, rng: random.Random) -> str:
    mark = rng.choice(("**", "`", "_", "*"))
    if script == "cjk":
        cut = rng.randrange(1, max(2, len(text)))
        return f"> {text[:cut]}{mark}{text[cut:]}{mark}"
    words = [f"{mark}{word}{mark}" if rng.random() < 0.15 else word for word in text.split(" ")]
    return rng.choice(("> ", "- ", "1. ", "### ")) + " ".join(words).replace("\n", "\n- ")


def span(text: str, characters: int, rng: random.Random, *, script: str) -> str | None:
    """Return a stretch of a text of about that many characters, from word to word."""
    if len(text) < characters:
        return None
    start = rng.randrange(0, len(text) - characters + 1)
    if script != "cjk":
        blank = re.search(r"\s", text[max(0, start - 1) :])
        start = max(0, start - 1) + blank.end() if blank and start else start
        if len(text) - start < characters:
            return None
    end = start + characters
    while (
        script != "cjk"
        and end < len(text)
        and not text[end].isspace()
        and end - start < characters + 12
    ):
        end += 1
    found = text[start:end].strip()
    return found if len(found) > characters * 0.8 else None
