"""Python reprs in engine logs, read without `eval`: strings, literals, `name=value` lists.

The text is hostile: a prompt may hold `), out={` or a whole fake log line. Strings are scanned
first, so that nothing inside a quoted text is taken for structure.
"""

import ast
import re
from typing import Any, NamedTuple

_STRING = re.compile(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'" r'|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMBER_OR_NAME = re.compile(r"[\w.+-]+")
_SPACE = re.compile(r"[ \t\r\n]*+")
_COMMA = re.compile(r"[ \t\r\n]*+(?:,[ \t\r\n]*+)?")
# Most fields of a request object are one of these.
_SIMPLE = re.compile(r"(\w+)=(?:(None|True|False)|(-?\d{1,18}))(?:, |(?=\)))")
_DEPTH_MAX = 64
ELISION = " ... "


class Scanned(NamedTuple):
    """A value and where the text goes on after it.

    Attributes:
        value: The value; an unknown expression comes back as its text.
        end: Offset of the first character after it.
        gap: Offset in a string value where the logger cut its middle out; None if whole.
    """

    value: Any
    end: int
    gap: int | None = None


def scan_string(text: str, start: int) -> Scanned | None:
    """Return the quoted string at `start`, with `'head' ... 'tail'` joined; else None."""
    match = _STRING.match(text, start)
    if match is None:
        return None
    value = unquoted(match.group())
    end = match.end()
    if text.startswith(ELISION, end):
        tail = _STRING.match(text, end + len(ELISION))
        if tail is not None:
            return Scanned(value + unquoted(tail.group()), tail.end(), len(value))
    return Scanned(value, end)


def unquoted(literal: str) -> str:
    """Return the text of a quoted literal; one that Python refuses stays as it stands."""
    inner = literal[1:-1]
    if "\\" not in inner:
        return inner
    try:
        value = ast.literal_eval(literal.replace("\r", "\\r").replace("\n", "\\n"))
    except (ValueError, SyntaxError, MemoryError):
        return inner
    return value if isinstance(value, str) else inner


class Gap(NamedTuple):
    """A string whose middle the logger left out: `text` without the mark, cut at `offset`."""

    text: str
    offset: int


def scan_value(text: str, start: int, depth: int = 0) -> Scanned | None:
    """Return the value at `start`: string, number, None, list, tuple, dict or `Name(k=v, …)`.

    A string that was cut in its middle comes back as a `Gap`. None means that the text ends or
    breaks inside the value.
    """
    start = _skip_space(text, start)
    if start >= len(text) or depth > _DEPTH_MAX:
        return None
    char = text[start]
    if char in "'\"":
        found = scan_string(text, start)
        if found is not None and found.gap is not None:
            return Scanned(Gap(found.value, found.gap), found.end)
        return found
    if char == "[":
        return _scan_items(text, start + 1, "]", depth)
    if char == "(":
        return _scan_items(text, start + 1, ")", depth)
    if char == "{":
        return _scan_dict(text, start + 1, depth)
    if char == "<":
        end = text.find(">", start)
        return Scanned(text[start : end + 1], end + 1) if end > 0 else None
    return _scan_word(text, start, depth)


_PLAIN = {"None": None, "True": True, "False": False, "nan": None, "inf": None}


def _scan_word(text: str, start: int, depth: int) -> Scanned | None:
    match = _NUMBER_OR_NAME.match(text, start)
    if match is None:
        return None
    word, end = match.group(), match.end()
    if text.startswith("(", end):
        return scan_arguments(text, end + 1, depth + 1)
    if word in _PLAIN:
        return Scanned(_PLAIN[word], end)
    for make in (int, float):
        try:
            return Scanned(make(word), end)
        except ValueError:
            continue
    return Scanned(word, end)


def scan_arguments(text: str, start: int, depth: int = 0) -> Scanned | None:
    """Return `{name: value}` of `name=value, …)` from just after the opening bracket."""
    made: dict[str, Any] = {}
    position = _skip_space(text, start)
    while True:
        if text.startswith(")", position):
            return Scanned(made, position + 1)
        simple = _SIMPLE.match(text, position)
        if simple is not None:
            key, word, number = simple.groups()
            made[key] = _PLAIN[word] if number is None else int(number)
            position = simple.end()
            continue
        name = _NUMBER_OR_NAME.match(text, position)
        if name is not None and text.startswith("=", name.end()):
            found = scan_value(text, name.end() + 1, depth + 1)
            key = name.group()
        else:
            found = scan_value(text, position, depth + 1)
            key = str(len(made))
        if found is None:
            return None
        made[key] = found.value
        position = _after_comma(text, found.end)


def _scan_items(text: str, start: int, close: str, depth: int) -> Scanned | None:
    items: list[Any] = []
    position = _skip_space(text, start)
    while True:
        if text.startswith(close, position):
            return Scanned(items, position + 1)
        if text.startswith("...", position):  # a list that the logger cut in its middle
            position = _after_comma(text, position + 3)
            continue
        found = scan_value(text, position, depth + 1)
        if found is None:
            return None
        items.append(found.value)
        position = _after_comma(text, found.end)


def _scan_dict(text: str, start: int, depth: int) -> Scanned | None:
    made: dict[str, Any] = {}
    position = _skip_space(text, start)
    while True:
        if text.startswith("}", position):
            return Scanned(made, position + 1)
        key = scan_value(text, position, depth + 1)
        if key is None:
            return None
        position = _skip_space(text, key.end)
        if not text.startswith(":", position):
            return None
        found = scan_value(text, position + 1, depth + 1)
        if found is None:
            return None
        made[str(key.value)] = found.value
        position = _after_comma(text, found.end)


def _after_comma(text: str, position: int) -> int:
    found = _COMMA.match(text, position)
    assert found is not None, "it matches nothing too"
    return found.end()


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None, "it matches nothing too"
    return found.end()
