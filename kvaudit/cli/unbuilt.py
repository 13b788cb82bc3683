"""Commands that are documented and not built yet: their flags parse, then they say so.

To build one, write it in a file of its own and change its line in `app.py`.
"""

from pathlib import Path
from typing import Annotated

from typer import Option

from kvaudit.cli.flags import (
    Config,
    Fault,
    Json,
    Out,
    Quiet,
    not_built,
)

# ruff: noqa: ARG001  the flags are there to be parsed

Text = Annotated[str | None, Option(metavar="TEXT")]


def sim(
    seeds: Text = None,
    fault: Fault = None,
    replay: Annotated[Path | None, Option("--replay", metavar="FILE")] = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Search seeds for an interleaving in which the reference engine leaks."""
    raise not_built("kvaudit sim")
