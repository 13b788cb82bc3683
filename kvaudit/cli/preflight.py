"""`kvaudit preflight`: may this deployment go live, as far as its configuration tells."""

from typing import Annotated

from typer import Argument, Option

from kvaudit.cli.flags import (
    ApiKeyEnv,
    Authorised,
    Config,
    Explain,
    Json,
    Out,
    Quiet,
    file_settings,
)

Sources = Annotated[
    list[str] | None,
    Argument(
        metavar="SOURCE...",
        help="Base URL of a running server, saved server page, metrics, start-up log, launch"
        " command or script, file of options, Dockerfile, Kubernetes or compose file; `-` is"
        " stdin.",
    ),
]
EngineVersion = Annotated[
    list[str] | None,
    Option(
        "--engine-version", metavar="[ENGINE=]VERSION",
        help="Version that no source tells; it wins over what they tell; repeat.",
    ),
]  # fmt: skip

CardGib = Annotated[
    float | None,
    Option("--card-gib", metavar="GIB", help="Memory of a card that is free before the start."),
]
WeightsGib = Annotated[
    float | None, Option("--weights-gib", metavar="GIB", help="Weights on one card.")
]


def preflight(
    sources: Sources = None,
    engine_version: EngineVersion = None,
    card_gib: CardGib = None,
    weights_gib: WeightsGib = None,
    explain: Explain = None,
    api_key_env: ApiKeyEnv = None,
    i_am_authorised: Authorised = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Tell from its configuration whether a deployment is known to leak."""
    from kvaudit.cli.hazards import hazards
    from kvaudit.cli.preflight_run import Asking, run_preflight
    from kvaudit.clock import WallClock
    from kvaudit.errors import ConfigError, UnknownNameError

    if explain is not None:
        return hazards(explain=explain, json=json, quiet=quiet)
    if not sources:
        raise ConfigError("there is no source", hint="name a manifest, a page, a log or a command")
    settings = file_settings(config, "preflight")
    for key in settings.keys() - {"engine_version"}:
        raise UnknownNameError("configuration key", key, ("engine_version",))
    told = engine_version or settings.get("engine_version") or []
    versions = [told] if isinstance(told, str) else list(told)
    if (card_gib is None) != (weights_gib is None):
        raise ConfigError("`--card-gib` and `--weights-gib` need each other", hint="give both")
    memory = None if card_gib is None or weights_gib is None else (card_gib, weights_gib)
    if memory is not None and not (0 < memory[0] < 1e5 and 0 < memory[1] < 1e5):
        raise ConfigError("memory must be above 0 GiB", hint="give GiB of one card")
    asking = Asking(api_key_env=tuple(api_key_env or ()), is_authorised=i_am_authorised)
    return run_preflight(
        sources, versions, WallClock(), memory=memory, asking=asking, out=out, as_json=json,
        quiet=quiet,
    )  # fmt: skip
