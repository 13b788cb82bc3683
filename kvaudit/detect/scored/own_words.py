"""Which of a few words a long text has: each is searched for, the text is not split."""

import unicodedata
from collections.abc import Iterable, Iterator

from kvaudit.detect.scored.char_model import script_of
from kvaudit.detect.scored.score import words_of

_TRIES = 10_000  # places of a word within others; beyond, the text is split after all
_STEM = 5
_UNSPACED = frozenset(("cjk", "thai"))


class OwnWords:
    """The words of one text, asked for one by one."""

    def __init__(self, text: str) -> None:
        self._raw = text
        self._folded: str | None = None  # folded when something is asked: mostly nothing is
        self._split: frozenset[str] | None = None
        self._known: dict[tuple[str, bool], bool] = {}

    def among(self, words: Iterable[str]) -> frozenset[str]:
        """Return those of some words, as `words_of` makes them, that the text has."""
        return frozenset(word for word in words if self._has(word, is_whole=True))

    def stems_among(self, stems: Iterable[str]) -> frozenset[str]:
        """Return those of some stems, as `stems_of` makes them, that words of the text have."""
        return frozenset(stem for stem in stems if self._has_stem(stem))

    @property
    def _text(self) -> str:
        if self._folded is None:
            raw = self._raw
            is_plain = raw.isascii()
            self._folded = (
                raw.lower() if is_plain else unicodedata.normalize("NFKC", raw).casefold()
            )
        return self._folded

    def _has_stem(self, stem: str) -> bool:
        if script_of(stem) in _UNSPACED:
            return stem in self._text
        return self._has(stem, is_whole=len(stem) < _STEM)

    def _has(self, word: str, *, is_whole: bool) -> bool:
        key = word, is_whole
        if key not in self._known:
            self._known[key] = self._find(word, is_whole=is_whole)
        return self._known[key]

    def _find(self, word: str, *, is_whole: bool) -> bool:
        text, at = self._text, -1
        for _ in range(_TRIES):
            at = text.find(word, at + 1)
            if at < 0:
                return False
            end = at + len(word)
            is_begun = at == 0 or not _is_written(text[at - 1])
            if is_begun and not (is_whole and end < len(text) and _is_written(text[end])):
                return True
        if self._split is None:
            self._split = words_of(self._raw)
        return word in self._split if is_whole else any(w.startswith(word) for w in self._split)


def stems_of(words: Iterable[str]) -> Iterator[str]:
    """Yield what stands for a word in all its forms: its beginning; pairs where no spaces are."""
    for word in words:
        if script_of(word) in _UNSPACED:
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        elif len(word) >= _STEM - 1 and not word.isdigit():
            yield word[:_STEM]


def _is_written(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char)[0] == "M"
