"""Short redacted excerpts: recognisable to who knows the text, of little use to who does not.

A word keeps its first and last letter, a number its first and last digit, function words and
punctuation stay, so that the shape of a sentence is readable. What has a type (mail address, key,
card, id, name, ...) becomes a placeholder such as `[mail j…m:k3f9ab]`: its kind, its ends, and a
tag. Equal secrets have equal tags inside a run; the tag is keyed, so that two runs can't be linked
and no tag can be tried out against a list without the key. The key never stands in a report.

What this does not hide: the length of words, and a common word from someone who guesses it.
"""

import base64
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kvaudit.findings import Json, Span
from reports import neutral
from reports.neutral import one_line

EXCERPT_CHARS = 240  # of the shared text, redacted
CONTEXT_CHARS = 60  # on either side of it
REVEALED_CHARS = 4_000
REVEALED_CONTEXT_CHARS = 200
TAG_CHARS = 6  # base32: 30 bits, so 10,000 secrets of a run hardly ever share one
TOKEN_CHARS_MAX = 64  # a cut moves outward by so much to spare a token

MASK = "·"
CUT = "…"


class Piece(NamedTuple):
    """A stretch of a shown text.

    Attributes:
        text: Printable, already redacted.
        mark: "shared" if it stands in both requests, "own" if the own context has it, else "".
    """

    text: str
    mark: str


def redaction_key(run_secret: str) -> bytes:
    """Derive the key of a run's tags from a secret stored in the run and not in its reports."""
    return hashlib.blake2b(run_secret.encode(), digest_size=32, person=b"kvaudit-redact").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """Shows text, redacted unless asked not to.

    Attributes:
        key: Per-run secret of the tags; empty = placeholders carry no tag.
        reveal: Show text as it is, still printable and still bounded.
    """

    key: bytes = b""
    reveal: bool = False

    def excerpt(self, text: str) -> str:
        """Return one short line that stands for `text`."""
        return "".join(piece.text for piece in self.pieces(text, Span(start=0, end=len(text))))

    def pieces(
        self, text: str, shared: Span, own: tuple[Span, ...] = (), *, context: bool = True
    ) -> tuple[Piece, ...]:
        """Return the surroundings of `shared` in `text`, the shared and own parts marked.

        A token that reaches into the shared span is marked whole. Pieces of text that were left
        out are shown as `…`, with the count where they lie inside the span.
        """
        body_chars = REVEALED_CHARS if self.reveal else EXCERPT_CHARS
        around = (REVEALED_CONTEXT_CHARS if self.reveal else CONTEXT_CHARS) if context else 0
        start, end = _clamped(shared, len(text))
        pieces: list[Piece] = []
        left = _cut_left(text, max(start - around, 0))
        right = _cut_right(text, min(end + around, len(text)))
        if left > 0:
            pieces.append(Piece(CUT, ""))
        if end - start <= body_chars:
            pieces += self._marked(text, left, right, Span(start=start, end=end), own)
        else:
            head = _cut_right(text, start + body_chars * 2 // 3)
            tail = max(_cut_left(text, end - body_chars // 3), head)
            span = Span(start=start, end=end)
            pieces += self._marked(text, left, head, span, own)
            pieces.append(Piece(f" {CUT} {tail - head:,} characters {CUT} ", "shared"))
            pieces += self._marked(text, tail, right, span, own)
        if right < len(text):
            pieces.append(Piece(CUT, ""))
        return _joined(pieces)

    def json_value(
        self, value: Json, *, plain_keys: frozenset[str], raw_keys: frozenset[str] = frozenset()
    ) -> Json:
        """Return a JSON value with every string redacted, save under some keys.

        Args:
            value: The value.
            plain_keys: What stands under them is made printable and no more.
            raw_keys: Ids of requests stand under them, which stay the log's own.
        """
        if isinstance(value, str):
            return self.excerpt(value)
        if isinstance(value, Mapping):
            return {
                neutral.name(str(key)): _own_ids(item)
                if key in raw_keys
                else plain_json(item)
                if key in plain_keys
                else self.json_value(item, plain_keys=plain_keys, raw_keys=raw_keys)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [
                self.json_value(item, plain_keys=plain_keys, raw_keys=raw_keys) for item in value
            ]
        return plain_json(value)

    def _marked(
        self, text: str, left: int, right: int, shared: Span, own: tuple[Span, ...]
    ) -> Iterator[Piece]:
        typed = [] if self.reveal else list(_TYPED.finditer(text, left, right))
        inner = (
            min(max(_token_start(text, shared.start, typed), left), right),
            max(min(_token_end(text, shared.end, typed), right), left),
        )
        for start, end, mark in _regions(left, right, inner, own):
            if start < end:
                yield Piece(self._shown(text, start, end, typed), mark)

    def _shown(self, text: str, start: int, end: int, typed: list[re.Match[str]]) -> str:
        """Return `[start, end)` as it is shown; no typed token reaches over its borders."""
        if self.reveal:
            return one_line(text[start:end])
        shown: list[str] = []
        at = start
        for match in typed:
            if start <= match.start() < end:
                shown += (_WORDS.sub(_masked, text[at : match.start()]), self._placeholder(match))
                at = match.end()
        shown.append(_WORDS.sub(_masked, text[at:end]))
        return one_line("".join(shown))

    def _placeholder(self, match: re.Match[str]) -> str:
        kind, word = str(match.lastgroup), match.group()
        if kind == "secret":
            label, value = match["label"], match["secret"]
            return one_line(label) + self._tagged("key", value, _ends(value))
        if kind == "number":
            kind = _kind_of_number(word)
        return self._tagged(kind, word, _ends_of(kind, word))

    def _tagged(self, kind: str, word: str, ends: str) -> str:
        if not self.key:
            return f"[{kind} {ends}]"
        folded = _FOLDED_AWAY.sub("", unicodedata.normalize("NFKC", word).casefold())
        domain = "value" if kind in _VALUE_KINDS else kind
        digest = hashlib.blake2b(
            f"{domain}\x00{folded}".encode("utf-8", "surrogatepass"), key=self.key, digest_size=8
        ).digest()
        tag = base64.b32encode(digest).decode().lower()[:TAG_CHARS]
        return f"[{kind} {ends}:{tag}]"


def kinds_of_secrets(texts: Iterable[str]) -> dict[str, int]:
    """Count the placeholders that these texts would get, by kind, the most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        for match in _TYPED.finditer(text[:REVEALED_CHARS]):
            kind = str(match.lastgroup)
            if kind == "number":
                kind = _kind_of_number(match.group())
            counts["key" if kind == "secret" else kind] += 1
    return {kind: count for kind, count in counts.most_common() if count}


def plain_json(value: Json) -> Json:
    """Return a JSON value unredacted, but printable and finite: NaN and infinity are None."""
    if isinstance(value, str):
        return neutral.value(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {neutral.name(str(key)): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    return value


def _own_ids(value: Json) -> Json:
    if isinstance(value, str):
        return neutral.own_id(value)
    return [_own_ids(item) for item in value] if isinstance(value, list) else plain_json(value)


# A word is whatever is neither space, ASCII punctuation, nor general or CJK punctuation, so that
# scripts with combining vowels stay in one piece. A name is two to four capitalised words.
_WORD = (
    r"[^\s!-/:-@\[-`{-~\x00-\x1f\x7f-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u2000-\u206f\u2e00-\u2e7f"
    r"\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\ufeff\ud800-\udfff]"
)
_UPPER = "A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐÉĘĚĞĢİĶŁŃŇŐŘŚŞŠŤŮŰŹŻŽΑ-ΩА-Я"
_LOWER = "a-zß-öø-ÿāăąćčďđéęěğģıķłńňőřśşšťůűźżžα-ωά-ώа-яё"
_NO_NAME = (
    "Dear|Hello|Hi|The|This|That|These|Those|And|But|For|With|From|Your|Our|You|When|What|Please"
    "|If|In|On|At|It|Is|No|Not|He|She|We|They|Mr|Mrs|Ms|Dr|Prof|Herr|Frau"
)
_TITLE = rf"(?!(?:{_NO_NAME})\b)[{_UPPER}][{_LOWER}'’]{{1,30}}(?:-[{_UPPER}][{_LOWER}]{{1,30}})?"
_ADDRESSED = "|".join(
    rf"(?<={title}\ )" for title in (r"Mr\.", r"Mrs\.", r"Ms\.", r"Dr\.", "Mr", "Mrs", "Ms", "Dr")
)
_NAME = rf"(?:{_TITLE}(?:\ [{_UPPER}]\.)?(?:\ {_TITLE}){{1,3}}|(?:{_ADDRESSED}){_TITLE})(?!{_WORD})"
_WORDS = re.compile(f"{_WORD}+")
_WORD_CHARACTER = re.compile(_WORD)

# Bounded everywhere, so that no input makes the search more than linear in the excerpt's length.
_TYPED = re.compile(
    rf"(?<!\w)(?:(?P<name>{_NAME})"
    r"""
    | (?P<label>(?i:(?:password|passwd|pwd|secret|api[_-]?key|token|bearer)\b)
        ["']?\s{0,3}[:=]\s{0,3}["']?)
      (?P<secret>[^\s"',;]{1,400})
    | (?P<link>[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s<>"'`]{1,2000})
    | (?P<mail>[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})
    | (?P<key>eyJ[\w-]{4,2000}(?:\.[\w-]{1,2000}){1,2}
        |(?:sk|pk|rk|ghp|gho|ghs|hf|glpat|whsec|xox[abprs])[-_][\w-]{8,400}
        |(?:AKIA|ASIA|AIza)[\w-]{8,100}
        |[A-Za-z0-9+/]{32,2000}={0,2})
    | (?P<iban>[A-Z]{2}\d{2}(?:\ ?[A-Z0-9]{4}){2,7}(?:\ ?[A-Z0-9]{1,4})?\b)
    | (?P<date>(?:19|20)\d\d-\d\d-\d\d\b|\d{1,2}[./]\d{1,2}[./](?:19|20)\d\d\b)
    | (?P<code>(?=[A-Za-z_-]{0,100}\d)[A-Za-z0-9]{2,12}(?:[-_][A-Za-z0-9]{2,12}){2,8}\b)
    | (?P<ip>\d{1,3}(?:\.\d{1,3}){3}\b)
    | (?P<number>\+?\d(?:[\ ().\-/]{0,2}\d){7,30})
    | (?P<id>(?=[^\W\d]{0,100}\d)(?=\d{0,100}[^\W\d])\w{10,200})
    | (?P<pem>-----BEGIN[ A-Z0-9]{0,40}-----[^\x00]{0,4000}?(?:-----END[ A-Z0-9]{0,40}-----|\Z))
    )""",
    re.VERBOSE,
)

_VALUE_KINDS = frozenset({"card", "code", "id", "phone"})  # one value, spelled in several ways
_FOLDED_AWAY = re.compile(r"[\s\-_.()/]+")
_FUNCTION_WORD_LIST = (
    "a about after all also an and any are as at be been before but by can could did do does for"
    " from had has have he her him his how i if in into is it its may me more must my no not of on"
    " one or our out over please she should so some such than that the their them then there these"
    " they this those to under until up us was we were what when where which while who whose why"
    " will with would you your"
)
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())


def _masked(match: re.Match[str]) -> str:
    return _masked_word(match.group())


@lru_cache(maxsize=65_536)
def _masked_word(word: str) -> str:
    """Return a word with its inner letters masked; function words and short numbers stay."""
    if word.isascii() and (len(word) <= 2 or word.lower() in _FUNCTION_WORDS):
        return word
    if len(word) <= 2:
        return one_line(word[0]) + MASK * (len(word) - 1) if len(word) > 1 else MASK
    inner = len(word) - 2
    dots = MASK * inner if inner <= 12 else f"{MASK * 3}({inner:,}){MASK * 3}"
    return f"{one_line(word[0])}{dots}{one_line(word[-1])}"


def _ends(word: str) -> str:
    keep = 2 if len(word) >= 12 else 1
    return f"{one_line(word[:keep])}{CUT}{one_line(word[-keep:])}" if len(word) > 2 * keep else CUT


def _last_two(word: str) -> str:
    return CUT + "".join(char for char in word if char.isalnum())[-2:]


def _year(word: str) -> str:
    return next(part for part in re.split(r"[-./]", word) if len(part) == 4)


_ENDS: dict[str, Callable[[str], str]] = {
    "card": _last_two,
    "iban": _last_two,
    "phone": _last_two,
    "date": _year,
    "mail": lambda word: f"{one_line(word[0])}{CUT}{one_line(word[-1])}",
    "name": lambda word: _initials(word),
    "pem": lambda _: "PEM",
}


def _ends_of(kind: str, word: str) -> str:
    return _ENDS.get(kind, _ends)(word)


def _initials(name: str) -> str:
    return " ".join(f"{part[0]}." for part in name.split(" "))


def _kind_of_number(word: str) -> str:
    digits = [int(char) for char in word if char.isdigit()]
    if 13 <= len(digits) <= 19 and _passes_luhn(digits):
        return "card"
    return "phone" if word[0] == "+" or "(" in word else "id"


def _passes_luhn(digits: list[int]) -> bool:
    """Check digit of ISO/IEC 7812-1: every second digit from the right doubled, sum mod 10."""
    doubled = [sum(divmod(digit * 2, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _token_start(text: str, at: int, typed: list[re.Match[str]]) -> int:
    """Move a border leftwards out of the token in which it lies."""
    for match in typed:
        if match.start() < at < match.end():
            return match.start()
    lowest = max(at - TOKEN_CHARS_MAX, 0)
    while lowest < at < len(text) and _is_inside_word(text, at):
        at -= 1
    return at


def _token_end(text: str, at: int, typed: list[re.Match[str]]) -> int:
    """Move a border rightwards out of the token in which it lies."""
    for match in typed:
        if match.start() < at < match.end():
            return match.end()
    highest = min(at + TOKEN_CHARS_MAX, len(text))
    while 0 < at < highest and _is_inside_word(text, at):
        at += 1
    return at


def _is_inside_word(text: str, at: int) -> bool:
    return bool(_WORD_CHARACTER.match(text[at - 1]) and _WORD_CHARACTER.match(text[at]))


def _regions(
    left: int, right: int, shared: tuple[int, int], own: tuple[Span, ...]
) -> Iterator[tuple[int, int, str]]:
    """Yield regions that cover `[left, right)`, each with its mark; what is shared is not own."""
    yield from _own_regions(left, shared[0], own)
    yield shared[0], shared[1], "shared"
    yield from _own_regions(shared[1], right, own)


def _own_regions(left: int, right: int, own: tuple[Span, ...]) -> Iterator[tuple[int, int, str]]:
    at = left
    for span in own:
        start, end = max(span.start, at), min(span.end, right)
        if start < end:
            yield at, start, ""
            yield start, end, "own"
            at = end
    yield at, right, ""


def _clamped(span: Span, length: int) -> tuple[int, int]:
    start = min(max(span.start, 0), length)
    return start, min(max(span.end, start), length)


def _cut_left(text: str, at: int) -> int:
    """Move a cut leftwards to the border of a token, if one is near."""
    for place in range(at, max(at - TOKEN_CHARS_MAX, 0), -1):
        if text[place - 1].isspace():
            return place
    return 0 if at <= TOKEN_CHARS_MAX else at


def _cut_right(text: str, at: int) -> int:
    """Move a cut rightwards to the border of a token, if one is near."""
    for place in range(at, min(at + TOKEN_CHARS_MAX, len(text))):
        if text[place].isspace():
            return place
    return len(text) if len(text) - at <= TOKEN_CHARS_MAX else at


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Join neighbours of one mark."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].mark == piece.mark:
            joined[-1] = Piece(joined[-1].text + piece.text, piece.mark)
        else:
            joined.append(piece)
    return tuple(joined)
