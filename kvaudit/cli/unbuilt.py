"""Commands that are documented and not built yet: their flags parse, then they say so.

To build one, write it in a file of its own and change its line in `app.py`.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from kvaudit.cli.flags import (
    ApiKeyEnv,
    Authorised,
    Config,
    Json,
    Out,
    Profile,
    Quiet,
    Yes,
    not_built,
)

# ruff: noqa: ARG001  the flags are there to be parsed

Url = Annotated[str, Argument(metavar="URL", help="Base URL of an OpenAI-compatible server.")]


def prelaunch(
    url: Url,
    profile: Profile = None,
    baseline: Annotated[Path | None, Option("--baseline", metavar="RUN")] = None,
    api_key_env: ApiKeyEnv = None,
    yes: Yes = False,
    i_am_authorised: Authorised = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Run the whole suite against a server that is about to go live."""
    raise not_built("kvaudit prelaunch")
