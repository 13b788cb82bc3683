"""Value-like tokens of a text: ids, codes, account numbers, folded so that spelling hides none.

A value has at least `MIXED_MIN` letters and digits mixed, or `DIGITS_MIN` digits. Folding takes
case, separators, O for 0 and I or l for 1. A masked value has its middle starred out: at least
`OUTER` characters stand at both ends.
"""

import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

MIXED_MIN, DIGITS_MIN, VALUE_MAX = 10, 8, 64
OUTER = 5
# Bits that one character is sure to bear: under its true 3.3 to 5, since ids are half predictable.
MIXED_BITS, DIGIT_BITS = 3.0, 2.5
KINDS_MIN = 4  # different characters; 00000000 is no id
_SEPARATORS = "-_.:/"
_TOKEN = re.compile(rf"[A-Za-z0-9]+(?:[{_SEPARATORS}][A-Za-z0-9]+)*")
_DIGIT = re.compile("[0-9]")
_PLAIN = frozenset(string.ascii_letters + string.digits)
_PLAIN_GAP = re.compile("[^A-Za-z0-9]+")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_MASK_CHARS = frozenset("*•●█■▪·…#?")
_DOTS = r"(?:[*•●█■▪·#?]{2,}|…+|\.{3,}|[xX]{3,}|[\[<(](?:redacted|masked|hidden|removed)[\]>)])"
_ANY_DOTS = re.compile(_DOTS, re.IGNORECASE)
_MASKED = re.compile(
    rf"(?<![A-Za-z0-9])([A-Za-z0-9]+(?:[- ./][A-Za-z0-9]+)*)[- ./]?{_DOTS}(?:[- ./]?{_DOTS})*"
    rf"[- ./]?([A-Za-z0-9]+(?:[- ./][A-Za-z0-9]+)*)",
    re.IGNORECASE,
)
_MASKED_WITHIN = re.compile(
    r"(?<![A-Za-z0-9])([A-Za-z0-9]{5,12}?)[xX]{3,}([A-Za-z0-9]{5,12})(?![A-Za-z0-9])"
)
_FIELD = re.compile(r"[^\W\d_]{3,}")
_FIELD_CHARS = 40
_BEFORE = 512  # far more than a value and the name of its field
_WINDOW = 8  # groups of one value that spaces part: an IBAN has up to 9
_DATE = re.compile(
    r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:t?\d{4,}z?)?"
    r"|(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])(?:19|20)\d\d"
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:19|20)\d\d"
)
_FOLDED = str.maketrans({"o": "0", "i": "1", "l": "1"})


@dataclass(frozen=True, slots=True)
class Value:
    """One value in a text.

    Attributes:
        folded: What is compared.
        text: As written.
        start: Where it begins.
        before: A little of the text before it.
    """

    folded: str
    text: str
    start: int
    before: str

    @property
    def shape(self) -> str:
        """Its layout: `A` for each letter or digit, separators as they are."""
        return shape_of(self.text)

    @property
    def fields(self) -> frozenset[str]:
        """Words just before it, folded: the name of its field is among them."""
        return _fields_of(self.before)

    @property
    def bits(self) -> float:
        """How much it takes to be equal by accident, at least."""
        return len(self.folded) * (DIGIT_BITS if self.folded.isdigit() else MIXED_BITS)


@dataclass(frozen=True, slots=True)
class MaskedValue:
    """One value with a starred middle: both ends, folded, and where it stands."""

    head: str
    tail: str
    text: str
    start: int
    shape: str
    fields: frozenset[str]

    @property
    def bits(self) -> float:
        """How much it takes that both ends are equal by accident."""
        ends = self.head + self.tail
        return len(ends) * (DIGIT_BITS if ends.isdigit() else MIXED_BITS)


def fold_value(text: str) -> str:
    """Return letters and digits in lower case, O as 0, I and l as 1."""
    return "".join(char for char in text.casefold() if char.isalnum()).translate(_FOLDED)


def values_of(text: str, begin: int = 0) -> Iterator[Value]:
    """Yield the values of a text, also those whose groups are parted by single spaces.

    Args:
        text: Where they stand.
        begin: Values that end before it are left out.
    """
    cut = max(0, begin - _BEFORE)
    part = text[cut:]
    plain = part if part.isascii() else unicodedata.normalize("NFKC", part)
    if len(plain) != len(part):
        plain = part  # places must stay
    for tokens in _numbered(plain, max(0, begin - cut - VALUE_MAX)):
        for value in _grouped(plain, tokens):
            start = value.start + cut
            if start + len(value.text) > begin:
                yield replace(value, start=start) if cut else value


def _numbered(text: str, begin: int) -> Iterator[list[re.Match[str]]]:
    """Yield rows of tokens with digits, parted by single spaces; most text is passed over.

    Only rows with `DIGITS_MIN` letters and digits can hold a value.
    """
    at = begin
    while (digit := _DIGIT.search(text, at)) is not None:
        start = _token_start(text, digit.start())
        tokens: list[re.Match[str]] = []
        token = _TOKEN.match(text, start)
        while token is not None and _DIGIT.search(token[0]) is not None:
            tokens.append(token)
            at = token.end()
            token = _TOKEN.match(text, at + 1) if text.startswith(" ", at) else None
        if at - tokens[0].start() >= DIGITS_MIN:
            yield tokens


def _token_start(text: str, at: int) -> int:
    """Return where the token of a letter or digit begins."""
    while at and (
        _is_plain(text[at - 1])
        or (at > 1 and text[at - 1] in _SEPARATORS and _is_plain(text[at - 2]))
    ):
        at -= 1
    return at


def _is_plain(char: str) -> bool:
    return char in _PLAIN


def _grouped(plain: str, tokens: Sequence[re.Match[str]]) -> Iterator[Value]:
    for number, token in enumerate(tokens):
        end = token.end()
        for other in tokens[number : number + _WINDOW]:
            if other is not token:
                if plain[end : other.start()] != " " or not _is_group(other[0]):
                    break
                end = other.end()
            if end - token.start() > VALUE_MAX:
                break
            made = _value(plain, token.start(), end)
            if made is not None:
                yield made


def masked_values_of(text: str) -> Iterator[MaskedValue]:
    """Yield values with a starred middle."""
    if _ANY_DOTS.search(text) is None:
        return
    seen: set[int] = set()
    for found in (*_MASKED.finditer(text), *_MASKED_WITHIN.finditer(text)):
        start, end = _reach(found)
        head, tail = fold_value(text[start : found.end(1)]), fold_value(text[found.start(2) : end])
        is_long = len(head) >= OUTER and len(tail) >= OUTER
        if start in seen or not is_long or not any(c.isdigit() for c in head + tail):
            continue
        seen.add(start)
        whole = text[start:end]
        yield MaskedValue(
            head[:OUTER], tail[-OUTER:], whole, start, shape_of(whole), _fields_before(text, start)
        )  # fmt: skip


def _reach(found: re.Match[str]) -> tuple[int, int]:
    """Return where the value begins and ends: words further off belong to the sentence."""
    before, after = found[1].split(" "), found[2].split(" ")
    first, last = len(before) - 1, 1
    while first and any(c.isdigit() for c in before[first - 1]):
        first -= 1
    while last < len(after) and any(c.isdigit() for c in after[last]):
        last += 1
    return (
        found.end(1) - len(" ".join(before[first:])),
        found.start(2) + len(" ".join(after[:last])),
    )


def shape_of(text: str) -> str:
    """Return the layout of a value: masks and characters alike as `A`."""
    return "".join("A" if char.isalnum() or char in _MASK_CHARS else char for char in text)


def _is_group(text: str) -> bool:
    return any(char.isdigit() for char in text) and len(text) <= 12


def _value(text: str, start: int, end: int) -> Value | None:
    written = text[start:end]
    raw = _PLAIN_GAP.sub("", written)
    letters = len(raw)
    if letters < DIGITS_MIN:
        return None
    digits = letters - len(raw.translate(_NO_DIGITS))
    is_mixed = 0 < digits < letters and letters >= MIXED_MIN and digits >= 2
    if not is_mixed and digits != letters:
        return None
    folded = fold_value(written)
    if len(folded) > VALUE_MAX or len(set(folded)) < KINDS_MIN or _is_common(written, folded):
        return None
    return Value(folded, written, start, text[max(0, start - _FIELD_CHARS) : start])


def _is_common(written: str, folded: str) -> bool:
    """Whether it is a date, a count upwards or an address of every network."""
    if _DATE.fullmatch(folded) or folded in "01234567890123456789" or folded in "9876543210":
        return True
    return (
        re.fullmatch(r"\d{1,3}(?:[.,]\d{3})+(?:[.,]\d\d)?|(?:\d{1,3}\.){3}\d{1,3}", written)
        is not None
    )


def _fields_before(text: str, start: int) -> frozenset[str]:
    return _fields_of(text[max(0, start - _FIELD_CHARS) : start])


def _fields_of(before: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _FIELD.findall(before)[-3:])
