"""Ways in which a canary can be disguised, undone: views of an answer in which it stands plain.

Each view has the text that is searched and, for each of its characters, where it came from, so that
a match can be shown in the answer itself. Every view is NFKC, in lower case, without marks of zero
width; `squeezed` keeps letters and digits only, so that case, spacing, hyphens and the seams
between stream chunks no longer matter.
"""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from kvaudit.findings import Span

MASK = "*"
# Characters that stand for others that were taken out; "x" only in runs, since it is a letter too.
_MASKS = frozenset("*•●█■▪·…?#_‧∗＊×")
_X_RUN = re.compile(r"(?<![a-z0-9])x{2,}(?![a-z0-9])|(?<=[-\s])x{3,}(?=[-\s])")
_DIGIT_WORDS = {
    "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6",
    "seven": "7", "eight": "8", "nine": "9",
}  # fmt: skip
_DIGIT_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(_DIGIT_WORDS)})(?![a-z])")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_PRINTABLE_MIN = 0.9
BASE64_RUNS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of an answer.

    Attributes:
        name: What it undoes, in words.
        text: What is searched.
        offsets: Where each of its characters stands in the answer.
    """

    name: str
    text: str
    offsets: tuple[int, ...]

    def span(self, start: int, end: int) -> Span:
        """Return where a range of the view stands in the answer."""
        return Span(start=self.offsets[start], end=self.offsets[end - 1] + 1)


def plain_view(answer: str) -> View:
    """Return the answer as NFKC in lower case."""
    chars: list[str] = []
    offsets: list[int] = []
    for index, char in enumerate(answer):
        for folded in unicodedata.normalize("NFKC", char).casefold():
            if unicodedata.category(folded) != "Cf":
                chars.append(folded)
                offsets.append(index)
    return View(name="case, NFKC", text="".join(chars), offsets=tuple(offsets))


def squeezed_view(view: View) -> View:
    """Return letters and digits only: no case, spacing, hyphens or seams between chunks."""
    kept = [index for index, char in enumerate(view.text) if char.isalnum()]
    return View(
        name="case, spacing, hyphens",
        text="".join(view.text[index] for index in kept),
        offsets=tuple(view.offsets[index] for index in kept),
    )


def masked_view(view: View) -> View | None:
    """Return letters, digits and mask characters; None when there is no mask."""
    text = _X_RUN.sub(lambda run: MASK * len(run[0]), view.text)
    if not any(char in _MASKS for char in text):
        return None
    kept = [index for index, char in enumerate(text) if char.isalnum() or char in _MASKS]
    return View(
        name="masked middle",
        text="".join(MASK if text[index] in _MASKS else text[index] for index in kept),
        offsets=tuple(view.offsets[index] for index in kept),
    )


def spelled_view(view: View) -> View | None:
    """Return the squeezed view with spelled digits as digits; None when none is spelled."""
    if _DIGIT_WORD.search(view.text) is None:
        return None
    chars: list[str] = []
    offsets: list[int] = []
    at = 0
    for match in _DIGIT_WORD.finditer(view.text):
        chars += view.text[at : match.start()]
        offsets += view.offsets[at : match.start()]
        chars.append(_DIGIT_WORDS[match[0]])
        offsets.append(view.offsets[match.start()])
        at = match.end()
    chars += view.text[at:]
    offsets += view.offsets[at:]
    spelled = View(name="", text="".join(chars), offsets=tuple(offsets))
    squeezed = squeezed_view(spelled)
    return View(name="spelled digits", text=squeezed.text, offsets=squeezed.offsets)


def base64_views(answer: str) -> Iterator[View]:
    """Yield the plain view of each text that stands in the answer as base64, cut ones too."""
    for match, _ in zip(_BASE64.finditer(answer), range(BASE64_RUNS_MAX), strict=False):
        run = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        run = run[: len(run) - len(run) % 4] if len(run) % 4 == 1 else run
        try:
            data = base64.b64decode(run + "=" * (-len(run) % 4), validate=True)
        except (binascii.Error, ValueError):
            continue
        text = data.decode("utf-8", "replace")
        if not text or sum(char.isprintable() for char in text) < _PRINTABLE_MIN * len(text):
            continue
        view = plain_view(text)
        start = match.start()
        # Three bytes in four characters: near enough to show where it stands.
        offsets = tuple(min(start + at * 4 // 3, match.end() - 1) for at in view.offsets)
        yield View(name="base64", text=view.text, offsets=offsets)


def squeeze(text: str) -> str:
    """Return the letters and digits of a text, NFKC, in lower case."""
    return squeezed_view(plain_view(text)).text
