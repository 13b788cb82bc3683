"""`kvaudit prelaunch URL`: an audit of the suite's scenarios, told as checks that passed or failed.

The run folder is that of an audit, and `kvaudit audit --resume`, `query` and `report` work on it.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from kvaudit.cli.flags import (
    ApiKeyEnv,
    Authorised,
    Config,
    DryRun,
    Json,
    Out,
    Profile,
    Quiet,
    Seed,
    Yes,
    file_settings,
    given,
)
from kvaudit.config import FIELD_OF_FLAG, AuditConfig
from kvaudit.errors import ConfigError

# ruff: noqa: ARG001  settings are read from the context, all in one way

Url = Annotated[
    str, Argument(metavar="URL", help="Base URL of an OpenAI-compatible server, or `reference`.")
]
ServedModel = Annotated[
    str | None, Option("--model", metavar="NAME", help="Model to ask for.  [default: the first]")
]
Baseline = Annotated[
    Path | None,
    Option(
        "--baseline",
        metavar="FILE",
        help="Compare with an earlier run's numbers; written if it is not there.",
    ),
]


def prelaunch(
    context: Context,
    target: Url,
    model: ServedModel = None,
    profile: Profile = None,
    seed: Seed = None,
    baseline: Baseline = None,
    api_key_env: ApiKeyEnv = None,
    max_tokens: Annotated[
        int | None, Option("--max-tokens", metavar="N", help="Limit on all tokens of the run.")
    ] = None,
    max_time: Annotated[
        str | None, Option("--max-time", metavar="TIME", help="Limit on the time: 90s, 5m, 1h.")
    ] = None,
    yes: Yes = False,
    i_am_authorised: Authorised = False,
    dry_run: DryRun = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Check the content of answers of a server that is about to go live.

    Exit status as of `audit`: 0 clean, 1 contaminated, 3 inconclusive. Drift from a baseline is
    told and changes no status.
    """
    from kvaudit.cli.audit_run import Options, run_audit
    from kvaudit.cli.prelaunch_told import tell
    from kvaudit.clock import WallClock
    from kvaudit.prelaunch import SCENARIOS

    saved = _saved(baseline)  # before anything is sent
    names = {*AuditConfig.__dataclass_fields__, *FIELD_OF_FLAG}
    settings = file_settings(config, "prelaunch")
    options = Options(
        out=out,
        as_json=json,
        is_quiet=quiet,
        is_dry_run=dry_run,
        is_resumed=False,
        retries_unknown=False,
        is_authorised=i_am_authorised,
        says_yes=yes,
        flags=given(context, names),
        settings={"scenarios": list(SCENARIOS)} | settings,
    )
    folder = run_audit(options, WallClock())
    if folder is None:
        return 0
    return tell(folder, as_json=json, is_quiet=quiet, baseline=baseline, saved=saved)


def _saved(path: Path | None) -> dict[str, Any] | None:
    """Return what an earlier run saved; None where there is nothing to compare with yet."""
    from kvaudit.baseline import read_baseline

    if path is None:
        return None
    try:
        if not path.exists():
            if not path.parent.is_dir():
                raise ConfigError(
                    f"`{path}` can't be written: there is no folder `{path.parent}`",
                    hint="make it, or name another place",
                )
            return None
        return read_baseline(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`{path}` can't be read: {error}", hint="name a file of `--baseline`"
        ) from None
