"""A list of planted canaries, as `kvaudit query RUN canaries --json` writes it, or plain JSON."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvaudit.canary import PARTIAL_WORDS, Canary
from kvaudit.errors import ConfigError

CODE_CHARS_MIN = 12
BYTES_MAX = 64 << 20
_HINT = (
    'write `{"tenant": "a", "phrase": "twelve words ...", "code": "K7QX2MNPABCDEFGH"}` for each,'
    " or use the output of `kvaudit query RUN canaries --json`"
)


def read_canaries(path: Path) -> tuple[Canary, ...]:
    """Read a list of canaries: one JSON object a line, a JSON list, or an object with `items`.

    Raises:
        ConfigError: The file can't be read, or an entry is no canary.
    """
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ConfigError(f"`--canaries {path}` is larger than {BYTES_MAX >> 20} MiB")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`--canaries {path}` can't be read: {error}", hint=_HINT) from None
    made = [_canary(item, number, path) for number, item in enumerate(_items(text, path), 1)]
    labels = [canary.label for canary in made]
    if not made or len(set(labels)) < len(labels):
        what = "has one label twice" if made else "holds no canary"
        raise ConfigError(f"`--canaries {path}` {what}", hint=_HINT)
    return tuple(made)


def _items(text: str, path: Path) -> Iterable[Any]:
    try:
        try:
            held = json.loads(text)
        except json.JSONDecodeError:
            held = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"`--canaries {path}` is no JSON: {error}", hint=_HINT) from None
    items = held.get("items", [held]) if isinstance(held, Mapping) else held
    if not isinstance(items, list):
        raise ConfigError(f"`--canaries {path}` holds no list", hint=_HINT)
    return [item for item in items if not isinstance(item, Mapping) or item.get("is_sent", True)]


def _canary(item: Any, number: int, path: Path) -> Canary:
    fields = item if isinstance(item, Mapping) else {}
    words = fields.get("words", fields.get("phrase"))
    words = words.split() if isinstance(words, str) else words
    code, tenant = fields.get("code"), fields.get("tenant")
    is_fit = (
        isinstance(words, list) and all(isinstance(word, str) for word in words)
        and len(words) >= PARTIAL_WORDS and isinstance(tenant, str) and tenant
        and isinstance(code, str) and len(code.replace("-", "")) >= CODE_CHARS_MIN
    )  # fmt: skip
    if not is_fit:
        raise ConfigError(
            f"entry {number} of `--canaries {path}` is no canary: it needs a tenant, at least"
            f" {PARTIAL_WORDS} words and a code of at least {CODE_CHARS_MIN} characters",
            hint=_HINT,
        )
    assert isinstance(words, list), "checked"
    return Canary(
        label=str(fields.get("label") or f"canary-{number}"),
        tenant=str(tenant),
        words=tuple(words),
        code=str(code).replace("-", ""),
    )
