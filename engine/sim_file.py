"""A scenario as a file: JSON that a person can read, and that repeats the run exactly.

A file may come from anybody: everything in it is checked before anything is built.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.config import MODELS, EngineConfig, with_needs
from engine.faults import fault_plan
from engine.sim import TURNS_MAX, Outcome
from engine.sim_plan import TENANTS, Scenario, Side, SimRequest, Turn
from kvaudit.errors import ConfigError

FORMAT = "kvaudit-sim"
SCHEMA = 1
FILE_BYTES_MAX = 4_000_000
REQUESTS_MAX = 64
TOKENS_MAX = 1 << 16  # of a pool, a context, a prompt; and any other size
_NOT_IN_CONFIG = {"faults", "trace", "deterministic", "device", "prefill_device", "decode_device"}
_INTEGER_MAX = {"seed": 2**63 - 1, "step_ns": 10**12}  # all others: TOKENS_MAX
_CONFIG_FIELDS = tuple(
    item.name for item in fields(EngineConfig) if item.name not in _NOT_IN_CONFIG
)


def as_json(scenario: Scenario, outcome: Outcome, *, version: str) -> dict[str, Any]:
    """Return a scenario with an explicit schedule, and what its run did, as JSON values."""
    assert scenario.schedule is not None, "a drawn schedule is not written down"
    failure = outcome.failure
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "version": version,
        "seed": scenario.seed,
        "fault": scenario.config.faults.fault,
        "fixes": sorted(scenario.config.faults.fixes),
        "config": {name: getattr(scenario.config, name) for name in _CONFIG_FIELDS},
        "requests": [
            {
                "request_id": request.request_id,
                "prompt_ids": list(request.prompt_ids),
                "max_tokens": request.max_tokens,
                "adapter": request.adapter,
                "cache_salt": request.cache_salt,
                "room": request.room,
            }
            for request in scenario.requests
        ],
        "schedule": _told_turns(scenario.schedule),
        "outcome": {
            "kind": failure.kind.value if failure is not None else None,
            "turn": failure.turn if failure is not None else None,
            "message": failure.message if failure is not None else "",
            "digest": outcome.digest,
        },
    }


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ConfigError: It is not there, no such file, or holds what no scenario holds.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"`{path}` is too large to be a scenario")
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"can't read `{path}`: {error.strerror}", hint="name a file that `kvaudit sim` saved"
        ) from None
    except (ValueError, RecursionError):
        raise _bad(path, "it is no JSON") from None
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise _bad(path, f"its `format` is not `{FORMAT}`")
    if held.get("schema") != SCHEMA:
        raise _bad(path, f"its `schema` is not {SCHEMA}")
    config = _read_config(path, held)
    requests = _read_requests(path, held.get("requests"))
    return Scenario(
        seed=config.seed,
        config=config,
        requests=requests,
        schedule=_read_turns(path, held.get("schedule"), requests),
    )


def recorded_digest(path: Path) -> str | None:
    """Return the digest that a scenario file promises; None if it holds none."""
    outcome = json.loads(path.read_text(encoding="utf-8")).get("outcome")
    digest = outcome.get("digest") if isinstance(outcome, dict) else None
    return digest if isinstance(digest, str) else None


def _read_config(path: Path, held: Mapping[str, Any]) -> EngineConfig:
    values, fault, fixes = held.get("config"), held.get("fault"), held.get("fixes")
    if not isinstance(values, dict) or set(values) != set(_CONFIG_FIELDS):
        raise _bad(path, "its `config` does not hold the fields of a deployment")
    if fault is not None and not isinstance(fault, str):
        raise _bad(path, "its `fault` is no name")
    if not isinstance(fixes, list) or not all(isinstance(fix, str) for fix in fixes):
        raise _bad(path, "its `fixes` are no list of names")
    default = EngineConfig()
    for name, value in values.items():
        wanted: type = type(getattr(default, name))
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise _bad(path, f"`config.{name}` is {value!r}")
        if type(value) is int and value > _INTEGER_MAX.get(name, TOKENS_MAX):
            raise _bad(path, f"`config.{name}` is too large")
    if values["model"] not in MODELS:
        raise _bad(path, f"its model `{values['model']}` is not built in")
    config = EngineConfig(**values, device="cpu", deterministic=True, trace=True)
    return with_needs(config, fault_plan(fault, fixes))[0]


def _read_requests(path: Path, held: object) -> tuple[SimRequest, ...]:
    if not isinstance(held, list) or not 1 <= len(held) <= REQUESTS_MAX:
        raise _bad(path, f"its `requests` are no list of 1 to {REQUESTS_MAX}")
    requests = tuple(_read_request(path, item) for item in held)
    if len({request.request_id for request in requests}) < len(requests):
        raise _bad(path, "two requests have one id")
    return requests


def _read_request(path: Path, item: object) -> SimRequest:
    match item:
        case {
            "request_id": str(name),
            "prompt_ids": list(prompt),
            "max_tokens": int(max_tokens),
            "adapter": (None | str()) as adapter,
            "cache_salt": (None | str()) as salt,
            "room": (None | int()) as room,
        } if name[:1] in TENANTS and name[1:].isdecimal() and len(prompt) <= TOKENS_MAX:
            if all(type(token) is int for token in prompt):
                return SimRequest(
                    request_id=name, prompt_ids=tuple(prompt), max_tokens=max_tokens,
                    adapter=adapter, cache_salt=salt, room=room,
                )  # fmt: skip
    raise _bad(path, "one of its `requests` is none")


def _told_turns(turns: Sequence[Turn]) -> list[str]:
    """Return turns as words; a role's turns in a row are one word with their number."""
    told = []
    for word, same in groupby(str(turn) for turn in turns):
        count = len(list(same))
        told += [word] * count if " " in word or count == 1 else [f"{word} {count}"]
    return told


def _read_turns(path: Path, held: object, requests: Sequence[SimRequest]) -> tuple[Turn, ...]:
    if not isinstance(held, list) or not all(isinstance(word, str) for word in held):
        raise _bad(path, "its `schedule` is no list of turns")
    names = {request.request_id for request in requests}
    turns: list[Turn] = []
    for word in held:
        verb, _, rest = word.partition(" ")
        if verb in ("submit", "cancel") and rest in names:
            turns.append(Turn(Side.CLIENT, verb, rest))
        elif verb in set(Side) - {Side.CLIENT} and re.fullmatch(r"\d{0,6}", rest, re.ASCII):
            turns += [Turn(Side(verb))] * int(rest or 1)
        else:
            raise _bad(path, f"`{word}` is no turn")
        if len(turns) > TURNS_MAX:
            raise _bad(path, f"its `schedule` has more than {TURNS_MAX} turns")
    return tuple(turns)


def _bad(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"`{path}` is no scenario: {why}", hint="name a file that `kvaudit sim` saved"
    )
