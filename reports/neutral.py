r"""Hostile text made harmless for any eye, terminal or screen: no invisible character survives.

Answers and logs are written by attackers. What a reader cannot see (control characters, terminal
escapes, bidirectional and zero-width characters, variation selectors, fillers) is spelled out as
`\u{202E}`; stacks of combining marks are cut; whatever is left is printable and stays itself.
"""

import re
import unicodedata
from functools import lru_cache

NAME_CHARS = 80  # of an id or a tenant's name, as shown
SENTENCE_CHARS = 600  # of a reason, a command, a value
VALUE_CHARS = 4_000  # of anything in a report for machines

COMBINING_MARKS_MAX = 3  # more on one letter is no language, and climbs over other lines

# Letters and marks by category, invisible by nature: fillers, blanks and variation selectors.
_INVISIBLE = frozenset({0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}).union(
    range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
)
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MARK_CATEGORIES = frozenset({"Mn", "Me"})
# Printable as they are: ASCII, Latin, general punctuation, CJK. A shortcut for most text.
_PLAIN = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u4e00-\u9fff]*")
# What a CI reads as a command to itself when it stands in a log: GitHub's `::error`, Azure's
# `##vso[`. The first character is spelled out.
_NOT_ASCII = re.compile("[^\n -~]")
_CREDENTIALS = re.compile(r"(\w://)[^/\s@]{1,1000}@")  # of an address: `https://user:password@`
_COMMAND = re.compile(r"(?:(?<=^)|(?<=⏎))(\s*)(:)(?=:)|(#)(?=#(?:\[|vso\[))")


def one_line(text: str) -> str:
    """Return printable text on one line: line breaks as `⏎`, tabs as spaces, the rest spelled."""
    if _PLAIN.fullmatch(text):
        return _COMMAND.sub(_spelled, text) if "::" in text or "##" in text else text
    text = text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " ")
    return _COMMAND.sub(_spelled, _without_hidden(text))


def name(text: str) -> str:
    """Return an id or a name on one line, cut if nobody would read it to its end."""
    return _cut(one_line(text[: NAME_CHARS * 2]), NAME_CHARS, len(text))


def sentence(text: str) -> str:
    """Return a sentence on one line, cut if it is longer than a paragraph."""
    bare = _CREDENTIALS.sub(r"\1…@", text[: SENTENCE_CHARS * 2])
    return _cut(one_line(bare), SENTENCE_CHARS, len(text))


def value(text: str) -> str:
    """Return any text on one line, whole unless it is absurdly long."""
    bare = _CREDENTIALS.sub(r"\1…@", text[: VALUE_CHARS * 2])
    return _cut(one_line(bare), VALUE_CHARS, len(text))


def own_id(text: str) -> str:
    """Return an id for a program, which looks it up in its log: itself, unless absurdly long.

    Only for formats whose writer escapes what a reader can't see, as `json_escaped` does.
    """
    return text if len(text) <= VALUE_CHARS else value(text)


def many_lines(text: str) -> str:
    """Return printable text that keeps its line breaks; every other control is spelled out."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_without_hidden(line.replace("\t", "    ")) for line in lines)


def json_escaped(text: str) -> str:
    r"""Return JSON that means the same, with every invisible character written as `\uXXXX`.

    Such characters stand only inside the strings of a JSON text; its own line breaks stay.
    """
    return _NOT_ASCII.sub(lambda match: _json_escape(match.group()), text)


def _cut(shown: str, limit: int, length: int) -> str:
    return shown if len(shown) <= limit else f"{shown[:limit]}… ({length:,} characters)"


def _without_hidden(text: str) -> str:
    shown: list[str] = []
    marks = dropped = 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category in _MARK_CATEGORIES else 0
        if marks > COMBINING_MARKS_MAX:
            dropped += 1
            continue
        if dropped:
            shown.append(f"\\u{{+{dropped} marks}}")
            dropped = 0
        shown.append(_shown(char))
    if dropped:
        shown.append(f"\\u{{+{dropped} marks}}")
    return "".join(shown)


def _spelled(match: re.Match[str]) -> str:
    space, colon, _ = match.groups()
    return f"{space or ''}\\u{{{ord(':' if colon else '#'):02X}}}"


@lru_cache(maxsize=8192)
def _json_escape(char: str) -> str:
    is_hidden = unicodedata.category(char) in _HIDDEN_CATEGORIES or ord(char) in _INVISIBLE
    if not is_hidden and unicodedata.category(char) not in _MARK_CATEGORIES:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


@lru_cache(maxsize=8192)
def _shown(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    if category in _HIDDEN_CATEGORIES or ord(char) in _INVISIBLE:
        return f"\\u{{{ord(char):02X}}}"
    return char
