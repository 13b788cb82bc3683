"""`kvaudit audit`: the flags; what they start is in `audit_run`."""

from typing import Annotated

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
    Nonce,
    Out,
    PrefillDevice,
    Profile,
    Quiet,
    Resume,
    Seed,
    Yes,
    file_settings,
    given,
)
from kvaudit.config import FIELD_OF_FLAG, AuditConfig

# ruff: noqa: ARG001  settings are read from the context, all in one way

TargetName = Annotated[
    str | None,
    Argument(metavar="[reference|URL]", help="The reference engine, or a server's base URL."),
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
BlockCount = Annotated[
    int | None,
    Option("--blocks", metavar="N", help="Blocks; else the profile's, or as --target-rate needs."),
]
Replicas = Annotated[
    int | None, Option("--replicas", metavar="N", help="Servers behind the address; one may leak.")
]
TargetRate = Annotated[
    float | None, Option("--target-rate", metavar="RATE", help="Leak rate that clean must bound.")
]
Confidence = Annotated[float | None, Option("--confidence", help="Confidence of every bound.")]
Api = Annotated[
    str | None,
    Option("--api", metavar="NAME", help="auto (completions or chat) or responses."),
]
MaxInFlight = Annotated[
    int | None, Option("--max-in-flight", metavar="N", help="Requests in flight together, at most.")
]
MaxRate = Annotated[
    float | None,
    Option("--max-rate", metavar="N", help="Requests that leave in a minute, at most."),
]
PriceIn = Annotated[
    float | None, Option("--price-in", metavar="PRICE", help="Price of a million prompt tokens.")
]
PriceOut = Annotated[
    float | None, Option("--price-out", metavar="PRICE", help="Price of a million output tokens.")
]
KeepText = Annotated[
    str | None, Option("--keep-text", metavar="WHAT", help="all, excerpts or none.")
]
RetryUnknown = Annotated[
    bool, Option("--retry-unknown", help="With --resume: send interrupted requests again.")
]


def audit(
    context: Context,
    target: TargetName = None,
    model: Model = None,
    fault: Fault = None,
    fix: Fix = None,
    trials: Trials = None,
    tenants: Tenants = None,
    seed: Seed = None,
    nonce: Nonce = None,
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
    api: Api = None,
    max_in_flight: MaxInFlight = None,
    max_rate: MaxRate = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    blocks: BlockCount = None,
    replicas: Replicas = None,
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
    from kvaudit.cli.audit_run import Options, run_audit, tell
    from kvaudit.clock import WallClock

    names = {*AuditConfig.__dataclass_fields__, *FIELD_OF_FLAG}
    options = Options(
        out=out,
        as_json=json,
        is_quiet=quiet,
        is_dry_run=dry_run,
        is_resumed=resume,
        retries_unknown=retry_unknown,
        is_authorised=i_am_authorised,
        says_yes=yes,
        flags=given(context, names),
        settings=file_settings(config, "audit"),
    )
    folder = run_audit(options, WallClock())
    return tell(folder, options) if folder is not None else 0
