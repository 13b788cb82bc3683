"""The catalogues: rules, faults, settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit.cli.flags import Config, Explain, Json, Quiet, file_settings
from kvaudit.cli.terminal import escape, write_json, write_table, write_text
from kvaudit.config import FIELD_OF_FLAG, AuditConfig, audit_config
from kvaudit.errors import UnknownNameError
from kvaudit.findings import Rule
from kvaudit.rules import RULES, rule

# ruff: noqa: ARG001  `--quiet` is taken by every command

_SEES = {"a": "audit", "b": "scan", "c": "preflight", "engine": "sanitizer"}


def rules(explain: Explain = None, json: Json = False, quiet: Quiet = False) -> int:
    """List the rules, or explain one."""
    chosen = [rule(explain)] if explain else list(RULES.values())
    items = [_rule_item(held) for held in chosen]
    _show(items, ("id", "name", "kind", "severity", "sees", "built"), "rules", json, explain)
    return 0


def faults(explain: Explain = None, json: Json = False, quiet: Quiet = False) -> int:
    """List the faults of the reference engine, or explain one."""
    from engine.faults import FAULTS

    if explain and explain not in FAULTS:
        by_id = {spec.id: spec.name for spec in FAULTS.values()}
        if explain.upper() not in by_id:
            raise UnknownNameError("fault", explain, FAULTS)
        explain = by_id[explain.upper()]
    chosen = [FAULTS[explain]] if explain else list(FAULTS.values())
    items = [_plain_item(spec) for spec in chosen]
    _show(items, ("name", "id", "title", "caught_by", "fixed_by"), "faults", json, explain)
    return 0


def config_show(
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show the effective settings of `kvaudit audit` and where each comes from."""
    from_file = file_settings(config, "audit")
    effective = audit_config(from_file)
    told = {FIELD_OF_FLAG.get(key, key) for key in from_file}
    flag_of = {field: flag for flag, field in FIELD_OF_FLAG.items()}
    items = [
        {
            "name": flag_of.get(field, field).replace("_", "-"),
            "value": list(held) if isinstance(held, tuple) else held,
            "from": "file" if field in told else "default",
        }
        for field in AuditConfig.__dataclass_fields__
        for held in [getattr(effective, field)]
    ]
    _show(items, ("name", "value", "from"), "config show", json, None)
    return 0


def _show(
    items: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    command: str,
    as_json: bool,
    explained: str | None,
) -> None:
    if as_json:
        write_json({"schema": 1, "command": command, "items": list(items)})
    elif explained:
        write_text(_explanation(items[0]))
    else:
        write_table(columns, ([_told(item[column]) for column in columns] for item in items))


def _explanation(item: Mapping[str, Any]) -> str:
    width = max(len(name) for name in item)
    lines = [
        f"{name:<{width}}  {escape(_told(value))}" for name, value in item.items() if value != ""
    ]
    return "\n".join(lines) + "\n"


def _told(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(held) for held in value) if isinstance(value, list) else str(value)


def _rule_item(held: Rule) -> dict[str, Any]:
    return {
        "id": held.id,
        "name": held.name,
        "summary": held.summary,
        "kind": held.kind.value,
        "severity": held.severity.value,
        "family": held.family.value if held.family else None,
        "sees": [_SEES[mark] for mark in sorted(held.sees)],
        "built": held.is_built,
        "source": held.source,
    }


def _plain_item(spec: Any) -> dict[str, Any]:
    return {
        name: sorted(str(held) for held in value)
        if isinstance(value, frozenset)
        else [str(held) for held in value]
        if isinstance(value, tuple)
        else value
        for name in spec.__dataclass_fields__
        for value in [getattr(spec, name)]
    }
