"""Careful access to hostile JSON: by path, by type, never raising."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_PATH_PIECES_MAX = 32


def look_up(fields: Mapping[str, object], path: str) -> object:
    """Return the value at a dotted path, or None.

    Keys may hold dots themselves (`tenant.id`): the longest key that fits is taken first. A string
    that holds JSON is opened on the way; `[0]` or `.0` picks a list item.
    """
    pieces = path.replace("[", ".").replace("]", "").removeprefix("$.").split(".")
    return _walk(fields, pieces[:_PATH_PIECES_MAX])


def _walk(value: object, pieces: list[str]) -> object:
    if not pieces:
        return value
    if isinstance(value, str):
        value = parse_json(value)
    if isinstance(value, Mapping):
        for size in range(len(pieces), 0, -1):
            key = ".".join(pieces[:size])
            if key in value:
                return _walk(value[key], pieces[size:])
    if isinstance(value, list) and pieces[0].isdecimal() and int(pieces[0]) < len(value):
        return _walk(value[int(pieces[0])], pieces[1:])
    return None


def parse_json(text: object) -> Any:
    """Return the value of a JSON string; what is no string, or no JSON, comes back as None."""
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def opened(value: object) -> Any:
    """Return the value, with a string that holds a JSON object or list replaced by it."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        inner = parse_json(value)
        return value if inner is None else inner
    return value


_CLOSERS = {"{": "}", "[": "]"}
_SALVAGE_TRIES = 64
_SALVAGE_DEPTH_MAX = 64


def salvaged(text: str) -> Any:
    """Return the value of JSON whose end is missing, as far as it came; None if there is none.

    An open string keeps what was written of it; a pair whose value is missing goes.
    """
    depth: list[str] = []
    cuts: list[tuple[int, str]] = []  # where the text may end, and what closes it there
    in_string = escaped = False
    for position, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth.append(_CLOSERS[char])
            if len(depth) > _SALVAGE_DEPTH_MAX:
                return None
            cuts.append((position + 1, "".join(reversed(depth))))
        elif char in "}]" and depth:
            depth.pop()
            cuts.append((position + 1, "".join(reversed(depth))))
        elif char == ",":
            cuts.append((position, "".join(reversed(depth))))
        if len(cuts) > 2 * _SALVAGE_TRIES:
            del cuts[:_SALVAGE_TRIES]
    closing = "".join(reversed(depth))
    # An escape may be cut too: up to `\u123` of it goes.
    ends = [(text[: len(text) - back], '"' + closing) for back in range(7)] if in_string else []
    ends += [(text, closing), *((text[:end], close) for end, close in reversed(cuts))]
    for head, close in ends[:_SALVAGE_TRIES]:
        found = parse_json(head + close)
        if found is not None:
            return found
    return None


def text_of(value: object) -> str | None:
    """Return a non-empty string; numbers are spelled, anything else is None."""
    if value is None:
        return None
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return str(value)


def first_text(*values: object) -> str | None:
    """Return the first non-empty string among the values."""
    for value in values:
        if value is not None and (found := text_of(value)) is not None:
            return found
    return None


_INT64_MAX = 2**63 - 1
_INT64_DIGITS = 20


def int_of(value: object) -> int | None:
    """Return a whole number that fits 64 bits, also from a quoted one; else None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        digits = value.strip()
        if not digits.removeprefix("-").isdecimal() or len(digits) > _INT64_DIGITS:
            return None
        value = int(digits)
    if isinstance(value, float):
        value = int(value) if abs(value) < _INT64_MAX else None  # NaN compares false
    return value if isinstance(value, int) and abs(value) <= _INT64_MAX else None


def float_of(value: object) -> float | None:
    """Return a finite number, also from a quoted one; else None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if number - number == 0.0 else None
    return None


def bool_of(value: object) -> bool | None:
    """Return a truth value, also from `"True"`, `"false"`, 0 and 1; else None."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    return None


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return a mapping, opening a JSON string; anything else is the empty mapping."""
    if type(value) is dict:  # nearly always; the check for any Mapping is slow
        return value
    if value is None:
        return {}
    value = opened(value)
    return value if isinstance(value, Mapping) else {}


def list_of(value: object) -> list[Any]:
    """Return a list, opening a JSON string; anything else is the empty list."""
    value = opened(value)
    return value if isinstance(value, list) else []


_ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "batch_req_")


def bare_id(value: object) -> str | None:
    """Return an id without the prefix that one layer adds to another's."""
    text = text_of(value)
    if text is None:
        return None
    for prefix in _ID_PREFIXES:
        if text.startswith(prefix) and len(text) > len(prefix):
            return text[len(prefix) :]
    return text


def other_ids(*values: object) -> tuple[str, ...]:
    """Return the ids without prefixes, each once, in order."""
    return tuple(dict.fromkeys(found for found in map(bare_id, values) if found is not None))


def has_keys(item: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Whether every key is there."""
    return all(key in item for key in keys)
