"""`kvaudit sim`: seeds, a saved scenario, or every interleaving of a small one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Context, Option

from kvaudit.cli.flags import Config, Fault, Fix, Json, Out, Quiet, file_settings, given
from kvaudit.errors import ConfigError, MissingExtraError, UnknownNameError

# ruff: noqa: ARG001  settings are read from the context, all in one way

SEEDS_MAX = 1_000_000
DEFAULT_SEEDS = "200"
DEFAULT_MODEL = "tags"
NAMES = ("seeds", "fault", "fix", "model", "sanitizer")
ENGINE_PACKAGES = {"torch", "transformers", "tokenizers", "safetensors", "gguf"}

Seeds = Annotated[
    str | None,
    Option("--seeds", metavar="N|A-B", help="Seeds 1 to N, or A to B.  [default: 200]"),
]
Model = Annotated[
    str | None, Option("--model", metavar="NAME", help="tags or copier.  [default: tags]")
]
Sanitizer = Annotated[
    str | None, Option("--sanitizer", metavar="MODE", help="off, sample or full.  [default: off]")
]
Replay = Annotated[
    Path | None, Option("--replay", metavar="FILE", help="Repeat a saved scenario and tell it.")
]
Explore = Annotated[
    bool, Option("--explore", help="Every interleaving of the protocol, with and without each fix.")
]
First = Annotated[bool, Option("--first", help="Stop at the first seed that fails.")]


class SeedRange(NamedTuple):
    """Seeds from `first` to `last`, both included."""

    first: int
    last: int


def sim(
    context: Context,
    seeds: Seeds = None,
    fault: Fault = None,
    fix: Fix = None,
    model: Model = None,
    sanitizer: Sanitizer = None,
    first: First = False,
    replay: Replay = None,
    explore: Explore = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Search seeds for an interleaving in which the reference engine leaks.

    Every seed draws a small deployment, requests of several tenants, and who acts when. The first
    failing seed of each kind is shrunk, told, and saved in --out. Exit status 1 when any failed.
    """
    flags = given(context, NAMES)
    settings = checked_settings(file_settings(config, "sim") | flags)
    try:
        from kvaudit.cli import sim_explore, sim_run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ENGINE_PACKAGES:
            raise
        raise MissingExtraError("`kvaudit sim`", str(error.name)) from None

    options = sim_run.Options(as_json=json, is_quiet=quiet, out=out)
    if explore or replay is not None:
        _refuse_beside("--explore" if explore else "--replay", [*flags, *(["first"] * first)])
    if explore:
        if replay is not None or out is not None:
            raise ConfigError("`--explore` reads and saves nothing", hint="leave the others out")
        return sim_explore.explore(as_json=json, is_quiet=quiet)
    if replay is not None:
        return sim_run.replay(replay, options)
    return sim_run.search(
        parse_seeds(settings.get("seeds", DEFAULT_SEEDS)),
        fault=settings.get("fault"),
        fixes=settings.get("fix", ()),
        model_name=settings.get("model", DEFAULT_MODEL),
        sanitizer=settings.get("sanitizer", "off"),
        stops_at_first=first,
        options=options,
    )


def _refuse_beside(flag: str, others: Sequence[str]) -> None:
    if others:
        raise ConfigError(
            f"`{flag}` brings its own deployment and takes no `--{others[0]}`",
            hint="leave the other flags out",
        )


def parse_seeds(text: str) -> SeedRange:
    """Return the seeds of `N` or `A-B`.

    Raises:
        ConfigError: It is neither, or names too many.
    """
    found = re.fullmatch(r"(?:(\d{1,15})-)?(\d{1,15})", text.strip(), re.ASCII)
    first, last = (int(found[1] or 1), int(found[2])) if found else (1, 0)
    if last < first:
        raise ConfigError(f"`seeds` is `{text}`", hint="write `200` for 1 to 200, or `40-60`")
    if last - first >= SEEDS_MAX:
        raise ConfigError(f"`seeds` names more than {SEEDS_MAX:,} seeds", hint="choose fewer")
    return SeedRange(first, last)


def checked_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return flags and keys of the file, each of the right type.

    Raises:
        UnknownNameError: A key that nobody knows, with the nearest one.
        ConfigError: A value of the wrong type.
    """
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key not in NAMES:
            raise UnknownNameError("configuration key", key.replace("_", "-"), NAMES)
        held = value
        if key == "fix":
            held = [value] if isinstance(value, str) else value
            fits = isinstance(held, list | tuple) and all(isinstance(one, str) for one in held)
        else:
            held = str(value) if key == "seeds" and type(value) is int else value
            fits = isinstance(held, str)
        if not fits:
            raise ConfigError(f"`{key}` is {value!r}", hint="it must be text")
        settings[key] = held
    return settings
