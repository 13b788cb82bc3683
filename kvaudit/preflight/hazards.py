"""Hazards as data: one TOML file each, read and checked when they are asked for.

The key `fires` and the key `silent` of a file hold an example deployment each; they are tests, and
`kvaudit hazards --explain` shows them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from kvaudit.errors import ConfigError, UnknownNameError
from kvaudit.findings import Severity
from kvaudit.preflight.conditions import Node, names_of, parse_condition
from kvaudit.preflight.options import ENGINES
from kvaudit.preflight.versions import Range, parse_range

# How well a hazard is founded, strongest first. The last two can only warn.
SOLID = ("code", "advisory", "thread", "derived", "list")
WEAK = ("derived", "list")
_KEYS = frozenset({
    "name", "summary", "severity", "engines", "affected", "when", "leaks", "fix", "sources",
    "checked", "solid", "fires", "silent",
})  # fmt: skip
_REQUIRED = _KEYS - {"affected", "when"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A configuration or a version that is known to leak.

    Attributes:
        id: Such as `KVA701`.
        name: Short kebab-case name.
        summary: One sentence.
        severity: Critical and error make a deployment `at_risk`.
        engines: Engines that have it.
        affected: Ranges of versions, any of which; empty = every version.
        when: Condition over the deployment, as written; "" = none.
        condition: The same, parsed.
        leaks: What may come out.
        fix: What to do.
        sources: Issues, advisories, pull requests.
        checked: Day on which the entry was compared with what is on record.
        solid: One of `SOLID`.
        fires, silent: Example deployments.
    """

    id: str
    name: str
    summary: str
    severity: Severity
    engines: tuple[str, ...]
    affected: tuple[Range, ...]
    when: str
    condition: Node | None
    leaks: str
    fix: str
    sources: tuple[str, ...]
    checked: date
    solid: str
    fires: tuple[Mapping[str, Any], ...]
    silent: tuple[Mapping[str, Any], ...]


@cache
def hazards() -> dict[str, Hazard]:
    """Return every hazard by id."""
    folder = resources.files("kvaudit.preflight").joinpath("hazards")
    found = {}
    for file in sorted(folder.iterdir(), key=lambda held: held.name):
        if file.name.endswith(".toml"):
            hazard = read_hazard(file.read_text("utf-8"), file.name.removesuffix(".toml"))
            found[hazard.id] = hazard
    return found


def hazard_of(hazard_id: str) -> Hazard:
    """Return one hazard; raises UnknownNameError with the nearest id."""
    try:
        return hazards()[hazard_id.upper()]
    except KeyError:
        raise UnknownNameError("hazard", hazard_id, hazards()) from None


def read_hazard(text: str, hazard_id: str) -> Hazard:
    """Return a hazard from its file.

    Raises:
        ConfigError: The file breaks a rule; the message names it.
    """
    try:
        held = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"`{hazard_id}` is no TOML: {error}") from None
    for key in held.keys() - _KEYS:
        raise UnknownNameError("key of a hazard", key, _KEYS)
    for key in sorted(_REQUIRED - held.keys()):
        raise ConfigError(f"`{hazard_id}` lacks `{key}`")
    when = held.get("when", "")
    hazard = Hazard(
        id=hazard_id, name=held["name"], summary=held["summary"],
        severity=Severity(held["severity"]), engines=tuple(held["engines"]),
        affected=tuple(parse_range(text) for text in held.get("affected", ())),
        when=when, condition=parse_condition(when) if when else None,
        leaks=held["leaks"], fix=held["fix"], sources=tuple(held["sources"]),
        checked=held["checked"], solid=held["solid"],
        fires=tuple(held["fires"]), silent=tuple(held["silent"]),
    )  # fmt: skip
    problems = lint(hazard)
    if problems:
        raise ConfigError(f"`{hazard_id}`: {problems[0]}")
    return hazard


def lint(hazard: Hazard) -> list[str]:
    """Return what is wrong with a hazard."""
    unknown = [engine for engine in hazard.engines if engine not in ENGINES]
    checks = (
        (hazard.id.startswith("KVA7") and hazard.id[3:].isdigit(), "its id is no KVA7xx"),
        (bool(hazard.engines) and not unknown, f"it names no known engine: {unknown}"),
        (bool(hazard.affected or hazard.condition), "it has neither versions nor a condition"),
        (bool(hazard.sources) and all(hazard.sources), "it cites no source"),
        (hazard.solid in SOLID, f"`solid` is none of {', '.join(SOLID)}"),
        (hazard.solid not in WEAK or hazard.severity in (Severity.WARNING, Severity.INFO),
         "it rests on a weak source and does more than warn"),
        (isinstance(hazard.checked, date), "`checked` is no date"),
        (bool(hazard.fires and hazard.silent), "it lacks an example"),
        (all(text.endswith(".") for text in (hazard.summary, hazard.leaks, hazard.fix)),
         "a sentence lacks its full stop"),
    )  # fmt: skip
    return [problem for is_right, problem in checks if not is_right]


def facts_asked(hazard: Hazard) -> frozenset[str]:
    """Return the facts that a hazard's condition asks for."""
    return names_of(hazard.condition) if hazard.condition is not None else frozenset()
