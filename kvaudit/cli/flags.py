"""Flags that several commands share, declared once, and how they meet `kvaudit.toml`."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from kvaudit.config import read_config_file
from kvaudit.errors import NotBuiltError

CONFIG_FILE = Path("kvaudit.toml")

Out = Annotated[
    Path | None, Option("--out", metavar="DIR", help="The run folder itself, made if need be.")
]
Json = Annotated[bool, Option("--json", help="One JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress on stderr.")]
Config = Annotated[
    Path | None,
    Option("--config", metavar="FILE", help="Settings; flags win.  [default: ./kvaudit.toml]"),
]
Run = Annotated[Path, Argument(metavar="RUN", help="A run folder, what --out named.")]
Output = Annotated[
    Path | None,
    Option("--output", "-o", metavar="PATH", help="Write to a file.  [default: -, stdout]"),
]
Reveal = Annotated[bool, Option("--reveal", help="Show text unredacted; noted in the run.")]
Reason = Annotated[
    str | None, Option("--reason", metavar="TEXT", help="With --reveal: why, noted in the run.")
]
Explain = Annotated[str | None, Option("--explain", metavar="ID", help="Everything on one entry.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask before spending tokens.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the plan and its cost; send nothing.")]
Resume = Annotated[
    bool, Option("--resume", help="Go on with the run in --out; no finished request is repeated.")
]

Model = Annotated[str | None, Option("--model", metavar="NAME", help="Model, or a local folder.")]
Fault = Annotated[
    str | None, Option("--fault", metavar="NAME", help="Fault to switch on; see `kvaudit faults`.")
]
Fix = Annotated[list[str] | None, Option("--fix", metavar="NAME", help="Fix to switch on; repeat.")]
Seed = Annotated[int | None, Option("--seed", help="All randomness comes from it.")]
Nonce = Annotated[
    str | None,
    Option("--nonce", metavar="TEXT", help="Of an earlier run at a server, to send its texts."),
]
Profile = Annotated[
    str | None, Option("--profile", metavar="NAME", help="quick, standard or deep.")
]
Device = Annotated[str | None, Option("--device", help="auto, cpu or cuda.")]
PrefillDevice = Annotated[str | None, Option("--prefill-device", help="Device of prefill.")]
DecodeDevice = Annotated[str | None, Option("--decode-device", help="Device of decode.")]
Dtype = Annotated[str | None, Option("--dtype", help="auto, float32, bfloat16 or float16.")]
ContextTokens = Annotated[
    int | None, Option("--context-tokens", metavar="N", help="Context, in tokens.")
]
ApiKeyEnv = Annotated[
    list[str] | None,
    Option("--api-key-env", metavar="VAR", help="Variable with a tenant's key; one per tenant."),
]
Authorised = Annotated[
    bool,
    Option("--i-am-authorised", help="You may send probes to a target that is not loopback."),
]


def given(context: Context, names: Collection[str]) -> dict[str, Any]:
    """Return those of the named flags that the user gave."""
    return {
        name: value
        for name, value in context.params.items()
        if name in names and value is not None and value is not False and value not in ((), [])
    }


def file_settings(path: Path | None, command: str) -> dict[str, Any]:
    """Return one command's table of the settings file; `./kvaudit.toml` is read if it is there."""
    if path is not None:
        return read_config_file(path, command)
    return read_config_file(CONFIG_FILE, command) if CONFIG_FILE.is_file() else {}


def not_built(what: str) -> NotBuiltError:
    """Say that a documented part does not exist in this version."""
    return NotBuiltError(
        f"`{what}` is not built yet in this version", hint="`kvaudit --help` lists what is"
    )
