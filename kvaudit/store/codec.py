"""Frozen dataclasses to JSON and back, with every value checked on the way in.

One pair of functions serves all of the ground's records. Strict JSON goes out: a float that is not
finite becomes the string `nan`, `inf` or `-inf`. What comes in is hostile: a value that does not
fit its field's type raises CodecError. Unknown keys are left out, since a later version may add
some.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kvaudit.findings import Json

T = TypeVar("T")

_NOT_FINITE = {"nan", "inf", "-inf"}


class CodecError(ValueError):
    """A value that does not fit its field; the reader counts the line as damaged."""


def to_json(value: Any) -> Any:
    """Return a dataclass, tuple, enum or plain value as strict JSON values.

    Fields that hold their default are left out.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            name: to_json(held)
            for name, default in _defaults(type(value)).items()
            if (held := getattr(value, name)) != default
        }
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(held) for held in value]
    return value


def from_json(cls: type[T], data: Any) -> T:
    """Build one dataclass from JSON values; raises CodecError where one does not fit."""
    if not isinstance(data, dict):
        raise CodecError(f"{cls.__name__} is no object")
    hints = _hints(cast(Any, cls))
    values = {name: _decode(hint, data[name]) for name, hint in hints.items() if name in data}
    try:
        return cls(**values)
    except TypeError as error:
        raise CodecError(str(error)) from None


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    return {
        field.name: (
            field.default
            if field.default_factory is MISSING or field.default is not MISSING
            else field.default_factory()
        )
        for field in fields(cls)
    }


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _decode(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _decode_union(hint, value)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value)
    if origin is not None and issubclass(origin, Mapping):
        return _checked(dict, value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _decode_enum(hint, value)
    if hint is float:
        return _decode_float(value)
    assert isinstance(hint, type), f"no way to read {hint}"
    return _checked(hint, value)


def _decode_union(hint: Any, value: Any) -> Any:
    if hint == Json:
        return value
    if value is None:
        if NoneType not in get_args(hint):
            raise CodecError("a value is missing")
        return None
    (inner,) = (member for member in get_args(hint) if member is not NoneType)
    return _decode(inner, value)


def _decode_tuple(members: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    listed = _checked(list, value)
    if members[-1] is Ellipsis:
        return tuple(_decode(members[0], held) for held in listed)
    if len(listed) != len(members):
        raise CodecError(f"{len(listed)} values instead of {len(members)}")
    return tuple(_decode(member, held) for member, held in zip(members, listed, strict=True))


def _decode_enum(hint: type[StrEnum], value: Any) -> StrEnum:
    try:
        return hint(value)
    except ValueError as error:
        raise CodecError(str(error)) from None


def _decode_float(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CodecError("a number is expected")
    try:
        return float(value)
    except OverflowError:
        raise CodecError("a number is too large") from None


def _checked(hint: type, value: Any) -> Any:
    if type(value) is not hint:  # a bool is no int here
        raise CodecError(f"{hint.__name__} is expected, not {type(value).__name__}")
    return value
