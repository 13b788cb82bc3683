"""How surprising written text is, in bits, under one fixed character model for each script.

An n-gram model with back-off (Katz form, Witten-Bell weights), trained once on public text by
`tests/bench/train_char_model.py` and shipped as a data file. It never learns from a log, so no leak
makes its own text look ordinary.
"""

import gzip
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE_NAME = "char_model.json.gz"
VERSION = 1
ORDER = 5  # characters, the predicted one among them
DIGIT_BITS = math.log2(10)
SCRIPTS = (
    "latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "hangul", "cjk",
    "other",
)  # fmt: skip
# Beginning of the Unicode name of a letter -> script.
_BY_NAME = {
    "LATIN": "latin", "CYRILLIC": "cyrillic", "GREEK": "greek", "ARABIC": "arabic",
    "HEBREW": "hebrew", "DEVANAGARI": "devanagari", "THAI": "thai", "HANGUL": "hangul",
    "CJK": "cjk", "HIRAGANA": "cjk", "KATAKANA": "cjk",
}  # fmt: skip
_ASCII_GAP = re.compile(r"[^0-9a-z]+")
_GAPS_END = 0x20000  # no sign stands beyond
_WRITTEN = ("Mn", "Mc", "Me", "Cn", "Cs")  # marks belong to their letter
_SAMPLED = 200  # letters that decide what script a text is in


@dataclass(frozen=True, slots=True)
class _Script:
    """One script's model: bits of a character after a context, bits of backing off from one."""

    unknown: float
    bits: Mapping[str, float]
    backoff: Mapping[str, float]


class CharModel:
    """The shipped model; `bits_of` is all that it does."""

    def __init__(self, scripts: Mapping[str, _Script]) -> None:
        self._scripts = scripts

    def bits_of(self, text: str) -> list[float]:
        """Return the bits of every character of a text as `spelled` makes it."""
        held = self._scripts[script_of(text)]
        made = []
        for at, char in enumerate(text):
            if char.isdigit():
                made.append(DIGIT_BITS)
                continue
            made.append(_char_bits(held, text[max(0, at - ORDER + 1) : at + 1]))
        return made


def _char_bits(held: _Script, gram: str) -> float:
    paid = 0.0
    while gram:
        found = held.bits.get(gram)
        if found is not None:
            return paid + found
        paid += held.backoff.get(gram[:-1], 0.0)
        gram = gram[1:]
    return paid + held.unknown


def spelled(text: str) -> str:
    """Return text as the model reads it: NFKC, lower case, one space for all that is no letter."""
    if text.isascii():
        return " ".join(_ASCII_GAP.sub(" ", text.lower()).split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.translate(_gaps()).split())


@cache
def _gaps() -> dict[int, str]:
    """Return every character that is no letter, digit or mark; unassigned ones stay."""
    made = {}
    for code in range(_GAPS_END):
        char = chr(code)
        if not char.isalnum() and unicodedata.category(char) not in _WRITTEN:
            made[code] = " "
    return made


def script_of(text: str) -> str:
    """Return the script of most letters of a text."""
    if text.isascii():
        return "latin"
    counted: dict[str, int] = {}
    left = _SAMPLED
    for char in text:
        if not char.isalpha():
            continue
        script = _script_of_char(char)
        counted[script] = counted.get(script, 0) + 1
        left -= 1
        if not left:
            break
    return max(counted, key=lambda name: (counted[name], name), default="latin")


@cache
def _script_of_char(char: str) -> str:
    if char.isascii():
        return "latin"
    return _BY_NAME.get(unicodedata.name(char, "").partition(" ")[0].partition("-")[0], "other")


@cache
def shipped_model() -> CharModel:
    """Return the model that comes with this version."""
    packed = resources.files("kvaudit.detect.scored").joinpath(FILE_NAME).read_bytes()
    held = json.loads(gzip.decompress(packed))
    assert held["version"] == VERSION, "the data file is not this version's"
    return CharModel({name: _unpacked(script) for name, script in held["scripts"].items()})


def _unpacked(held: Mapping[str, object]) -> _Script:
    """Read one script: of each context, its characters and then as many codes of their bits."""
    bits: dict[str, float] = {}
    packed, backoff, unknown = held["bits"], held["backoff"], held["unknown"]
    assert isinstance(packed, dict), "contexts by name"
    assert isinstance(backoff, dict), "weights by context"
    assert isinstance(unknown, float), "a number of bits"
    for context, both in packed.items():
        half = len(both) // 2
        for char, code in zip(both[:half], both[half:], strict=True):
            bits[context + char] = (ord(code) - 33) / 5
    return _Script(unknown, bits, backoff)
