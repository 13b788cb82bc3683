"""`kvaudit audit`: plan, send, look, stop; then judge what was recorded."""

import json as json_module
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from kvaudit.cli.flags import (
    ApiKeyEnv,
    Authorised,
    Config,
    DecodeDevice,
    Device,
    DryRun,
    Dtype,
    Fault,
    Fix,
    Json,
    Model,
    Out,
    PrefillDevice,
    Profile,
    Quiet,
    Resume,
    Seed,
    Yes,
    file_settings,
    given,
    not_built,
)
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.config import FIELD_OF_FLAG, AuditConfig, audit_config
from kvaudit.errors import (
    EngineError,
    MissingExtraError,
    StartRefusedError,
    TargetError,
    UnknownNameError,
)

REFERENCE = "reference"
TRIALS_FOR_CLEAN = 7

TargetName = Annotated[
    str, Argument(metavar="[reference|URL]", help="The reference engine, or a server's base URL.")
]
Trials = Annotated[int | None, Option("--trials", metavar="N", help="Trigger requests.")]
Tenants = Annotated[int | None, Option("--tenants", metavar="N", help="Tenants that take part.")]
Scenario = Annotated[
    list[str] | None, Option("--scenario", metavar="NAME", help="Scenario to run; repeat.")
]
ReplayUrl = Annotated[
    str | None, Option("--replay-url", metavar="URL", help="Server with the same weights.")
]
MaxTokens = Annotated[
    int | None, Option("--max-tokens", metavar="N", help="Limit on all tokens of the run.")
]
MaxTime = Annotated[
    str | None, Option("--max-time", metavar="TIME", help="Limit on the time: 90s, 5m, 1h.")
]
TargetRate = Annotated[
    float | None, Option("--target-rate", metavar="RATE", help="Leak rate that clean must bound.")
]
Confidence = Annotated[float | None, Option("--confidence", help="Confidence of every bound.")]
KeepText = Annotated[
    str | None, Option("--keep-text", metavar="WHAT", help="all, excerpts or none.")
]
RetryUnknown = Annotated[
    bool, Option("--retry-unknown", help="With --resume: send interrupted requests again.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What decides how the command talks and where it writes, not what it sends.

    Attributes:
        out: The run folder; None = one of its own under `kvaudit-runs`.
        as_json, is_quiet, is_dry_run, is_resumed, retries_unknown: As the flags say.
        flags, settings: Settings that were given as flags, and by the file.
    """

    out: Path | None
    as_json: bool
    is_quiet: bool
    is_dry_run: bool
    is_resumed: bool
    retries_unknown: bool
    flags: dict[str, Any]
    settings: dict[str, Any]


def audit(
    context: Context,
    target: TargetName = REFERENCE,
    model: Model = None,
    fault: Fault = None,
    fix: Fix = None,
    trials: Trials = None,
    tenants: Tenants = None,
    seed: Seed = None,
    scenario: Scenario = None,
    profile: Profile = None,
    device: Device = None,
    prefill_device: PrefillDevice = None,
    decode_device: DecodeDevice = None,
    dtype: Dtype = None,
    api_key_env: ApiKeyEnv = None,
    replay_url: ReplayUrl = None,
    max_tokens: MaxTokens = None,
    max_time: MaxTime = None,
    target_rate: TargetRate = None,
    confidence: Confidence = None,
    keep_text: KeepText = None,
    yes: Yes = False,
    i_am_authorised: Authorised = False,
    dry_run: DryRun = False,
    resume: Resume = False,
    retry_unknown: RetryUnknown = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Send the probes of several tenants to a target and judge whether it mixed them up."""
    names = {*AuditConfig.__dataclass_fields__, *FIELD_OF_FLAG}
    options = Options(
        out=out,
        as_json=json,
        is_quiet=quiet,
        is_dry_run=dry_run,
        is_resumed=resume,
        retries_unknown=retry_unknown,
        flags=given(context, names),
        settings=file_settings(config, "audit"),
    )
    return run_audit(options, WallClock())


def run_audit(options: Options, clock: Clock) -> int:
    """Run, or go on with, one audit; returns its exit status."""
    from kvaudit.cli.session import interrupted_run, refuse_used, resumed_config

    before = interrupted_run(options.out) if options.is_resumed else None
    if before is None:
        refuse_used(options.out)
        config = checked(audit_config(options.settings | options.flags))
    else:
        config = checked(resumed_config(before.header, options.flags))
    try:
        target = open_target(config)
    except StartRefusedError as error:
        return refused_to_start(config, options, clock, error)
    with closing(target), interruptible() as interrupts:
        return Audit(config, options, clock, target, before, interrupts).run()
