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
    ContextTokens,
    DecodeDevice,
    Device,
    Dtype,
    Explain,
    Fault,
    Fix,
    Json,
    Model,
    Out,
    PrefillDevice,
    Profile,
    Quiet,
    Reveal,
    Run,
    Seed,
    Yes,
    not_built,
)

# ruff: noqa: ARG001  the flags are there to be parsed

Sources = Annotated[
    list[str], Argument(metavar="SOURCE...", help="A launch script, a configuration, or a URL.")
]
Url = Annotated[str, Argument(metavar="URL", help="Base URL of an OpenAI-compatible server.")]
Text = Annotated[str | None, Option(metavar="TEXT")]
Number = Annotated[int | None, Option(metavar="N")]
Texts = Annotated[list[str] | None, Option(metavar="TEXT")]


def serve(
    host: Text = None,
    port: Number = None,
    model: Model = None,
    fault: Fault = None,
    fix: Fix = None,
    device: Device = None,
    prefill_device: PrefillDevice = None,
    decode_device: DecodeDevice = None,
    dtype: Dtype = None,
    context_tokens: ContextTokens = None,
    prefill_pool_tokens: Number = None,
    decode_pool_tokens: Number = None,
    page_size: Number = None,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Serve the reference engine over HTTP, in the shapes of the OpenAI API."""
    raise not_built("kvaudit serve")


def preflight(
    sources: Sources,
    explain: Explain = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Tell from its configuration whether a deployment is known to leak."""
    raise not_built("kvaudit preflight")


def hazards(explain: Explain = None, json: Json = False, quiet: Quiet = False) -> int:
    """List the hazards that preflight knows, or explain one."""
    raise not_built("kvaudit hazards")


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


def trace(
    run: Run,
    request_id: Annotated[str, Argument(metavar="REQUEST_ID")],
    reveal: Reveal = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Tell where the text of one answer came from."""
    raise not_built("kvaudit trace")


def verify(run: Run, json: Json = False, quiet: Quiet = False) -> int:
    """Derive a run again from its records and compare."""
    raise not_built("kvaudit verify")


def diff(
    run: Run,
    other: Annotated[Path, Argument(metavar="RUN", help="Another run folder.")],
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare two runs."""
    raise not_built("kvaudit diff")


def purge(
    run: Run,
    text: Annotated[bool, Option("--text", help="Only the text; numbers stay.")] = False,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Remove a run, or its text alone."""
    raise not_built("kvaudit purge")
