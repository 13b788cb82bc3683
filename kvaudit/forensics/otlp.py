"""OTLP/JSON nesting opened: attributes to plain values, batches to single spans and log records."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvaudit.forensics.fields import bool_of, float_of, int_of, list_of, mapping_of, text_of

_DEPTH_MAX = 32


def plain(value: object, depth: int = 0) -> Any:
    """Return an AnyValue as a plain value; a value that is plain already stays."""
    if not isinstance(value, Mapping) or depth > _DEPTH_MAX:
        return value
    for key, found in value.items():
        name = key.lower().replace("_", "")
        if name == "stringvalue":
            return found
        if name == "intvalue":
            return int_of(found)
        if name == "doublevalue":
            return float_of(found)
        if name == "boolvalue":
            return bool_of(found)
        if name == "bytesvalue":
            return found
        if name == "arrayvalue":
            return [plain(item, depth + 1) for item in list_of(mapping_of(found).get("values"))]
        if name == "kvlistvalue":
            return attributes(mapping_of(found).get("values"), depth + 1)
    return value


def attributes(items: object, depth: int = 0) -> dict[str, Any]:
    """Return `{key: value}` of an attribute list; a mapping is taken as it is."""
    if isinstance(items, Mapping):
        return {str(key): plain(value, depth) for key, value in items.items()}
    made: dict[str, Any] = {}
    for item in list_of(items):
        fields = mapping_of(item)
        key = text_of(fields.get("key"))
        if key is not None:
            made[key] = plain(fields.get("value"), depth)
    return made


class Signal(NamedTuple):
    """One span or log record.

    Attributes:
        resource: Attributes of what sent it.
        item: The span or record as logged.
        attributes: Its own attributes.
    """

    resource: dict[str, Any]
    item: Mapping[str, Any]
    attributes: dict[str, Any]


def _get(fields: Mapping[str, Any], camel: str) -> Any:
    """Return a field by its camelCase name, or by the snake_case name some producers write."""
    if camel in fields:
        return fields[camel]
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in camel)
    return fields.get(snake)


def field_of(item: Mapping[str, Any], camel: str) -> Any:
    """Return a span's or record's field by its camelCase name, in either spelling."""
    return _get(item, camel)


_ID_CHARS = {24: 16, 12: 8}  # base64 of so many bytes; hexadecimal ids have 32 and 16 characters


def id_of(item: Mapping[str, Any], camel: str) -> str | None:
    """Return a trace or span id in hexadecimal; protobuf's own JSON writes it in base64."""
    text = text_of(_get(item, camel))
    if text is None or len(text) not in _ID_CHARS:
        return text.lower() if text is not None else None
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text
    return decoded.hex() if len(decoded) == _ID_CHARS[len(text)] else text


def spans(data: Mapping[str, Any]) -> Iterator[Signal]:
    """Yield the spans of one export request."""
    yield from _signals(data, "resourceSpans", "scopeSpans", "spans")


def log_records(data: Mapping[str, Any]) -> Iterator[Signal]:
    """Yield the log records of one export request."""
    yield from _signals(data, "resourceLogs", "scopeLogs", "logRecords")


def _signals(data: Mapping[str, Any], outer: str, middle: str, inner: str) -> Iterator[Signal]:
    for group in list_of(_get(data, outer)):
        fields = mapping_of(group)
        resource = attributes(mapping_of(fields.get("resource")).get("attributes"))
        older = "instrumentationLibrary" + inner[0].upper() + inner[1:]  # before 2022
        for scope in list_of(_get(fields, middle)) or list_of(_get(fields, older)):
            for item in list_of(_get(mapping_of(scope), inner)):
                found = mapping_of(item)
                yield Signal(resource, found, attributes(found.get("attributes")))
