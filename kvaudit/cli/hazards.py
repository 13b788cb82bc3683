"""`kvaudit hazards`: the hazards that preflight knows."""

from typing import Any

from kvaudit.cli.flags import Explain, Json, Quiet
from kvaudit.cli.terminal import escape, write_json, write_table, write_text

# ruff: noqa: ARG001  `--quiet` is taken by every command


def hazards(explain: Explain = None, json: Json = False, quiet: Quiet = False) -> int:
    """List the hazards that preflight knows, or explain one."""
    from kvaudit.preflight.hazards import Hazard, hazard_of
    from kvaudit.preflight.hazards import hazards as known

    def item(held: Hazard) -> dict[str, Any]:
        return {
            "id": held.id, "name": held.name, "severity": held.severity.value,
            "engines": list(held.engines), "affected": [each.text for each in held.affected],
            "when": held.when, "summary": held.summary, "leaks": held.leaks, "fix": held.fix,
            "sources": list(held.sources), "checked": held.checked.isoformat(),
            "solid": held.solid, "fires": [dict(role) for role in held.fires],
        }  # fmt: skip

    items = [item(hazard_of(explain))] if explain else [item(held) for held in known().values()]
    if json:
        write_json({"schema": 1, "command": "hazards", "items": items})
    elif explain:
        write_text(_explanation(items[0]))
    else:
        write_table(
            ("id", "name", "severity", "engines", "affected"),
            [[held["id"], held["name"], held["severity"], ", ".join(held["engines"]),
              " or ".join(held["affected"]) or "every version"] for held in items],
        )  # fmt: skip
    return 0


def _explanation(item: dict[str, Any]) -> str:
    example = "; ".join(
        " ".join([str(role.get("role", "unified")), f"{role['engine']} {role['version']}",
                  *(f"{name}={value}" for name, value in role["options"].items())])
        for role in item["fires"]
    )  # fmt: skip
    told = {
        "severity": item["severity"],
        "what": item["summary"],
        "leaks": item["leaks"],
        "fix": item["fix"],
        "engines": ", ".join(item["engines"]),
        "versions": " or ".join(item["affected"]) or "every one",
        "when": item["when"] or "always",
        "example": example,
        "sources": ", ".join(item["sources"]),
        "checked": f"{item['checked']}, founded on: {item['solid']}",
    }
    lines = [f"{item['id']} {item['name']}"]
    lines += [f"{name:<9} {escape(value)}" for name, value in told.items()]
    return "\n".join(lines) + "\n"
