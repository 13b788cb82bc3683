"""The audit's configuration, checked once, as a frozen dataclass.

`kvaudit.toml` holds the same keys as the flags, under a table named after the command; flags win.
A key that nobody knows is an error that names the nearest one.
"""

import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from kvaudit.errors import ConfigError, UnknownNameError

PROFILES = ("quick", "standard", "deep")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
FIXES = (
    "retire", "door", "checksum", "coverage", "deferred-release", "generation", "start-check",
)  # fmt: skip
TENANTS_MIN, TENANTS_MAX = 2, 64
TRIALS_MAX = 100_000
APIS = ("auto", "responses")
KEEP_TEXT = ("all", "excerpts", "none")
TABLES = ("audit", "serve", "scan", "preflight", "prelaunch", "sim")
# Flags whose name is not the field's: repeated ones are singular, and one takes a unit.
FIELD_OF_FLAG = {"fix": "fixes", "scenario": "scenarios", "max_time": "max_time_s"}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Everything that decides what one audit sends and how it judges.

    Attributes:
        target: `reference`, or the base URL of an OpenAI-compatible server.
        model: Model name to ask for; for `reference` the built-in model or a local folder.
        fault: Fault to switch on in the reference engine; None = healthy.
        fixes: Fixes to switch on in the reference engine.
        trials: Trigger requests; None = the profile's plan.
        tenants: Tenants that take part.
        seed: All randomness comes from it.
        nonce: Makes texts and canaries those of one run, beside the seed; None = the seed alone.
            An audit of a server draws its own, since a server remembers earlier runs.
        scenarios: Scenarios to run; empty = the profile's.
        profile: `quick`, `standard` or `deep`.
        device, prefill_device, decode_device, dtype: Where and how the reference engine computes.
        blocks: Blocks of scenario `blocks`; None = the profile's, or what `target_rate` needs.
        replicas: Servers behind the address, of which one may be bad; `target_rate` is then R times
            harder to bound.
        target_rate: Leak rate that a clean verdict must bound; None = print the bound only.
        confidence: Confidence of every bound.
        max_tokens: Limit on all prompt and output tokens of the run.
        max_time_s: Limit on the run's duration, in seconds.
        api: `auto` for completions or chat, whichever the model answers better, or `responses`.
        max_in_flight: Requests that may be in flight together; None = as the plan has it.
        max_rate: Requests that may leave in a minute; None = no limit.
        price_in, price_out: Prices of a million prompt and output tokens; None = not told.
        keep_text: `all`, `excerpts` or `none`.
        api_key_env: Environment variables that hold the tenants' keys; names, never keys.
        replay_url: Server with the same weights to replay over-limit prompts at.
    """

    target: str = "reference"
    model: str = "copier"
    fault: str | None = None
    fixes: tuple[str, ...] = ()
    trials: int | None = None
    tenants: int = 4
    seed: int = 1
    nonce: str | None = None
    scenarios: tuple[str, ...] = ()
    profile: str = "quick"
    device: str = "auto"
    prefill_device: str | None = None
    decode_device: str | None = None
    dtype: str = "float32"
    blocks: int | None = None
    replicas: int = 1
    target_rate: float | None = None
    confidence: float = 0.95
    max_tokens: int | None = None
    max_time_s: float | None = None
    api: str = "auto"
    max_in_flight: int | None = None
    max_rate: float | None = None
    price_in: float | None = None
    price_out: float | None = None
    keep_text: str = "all"
    api_key_env: tuple[str, ...] = ()
    replay_url: str | None = None

    def check(self) -> None:
        """Raise ConfigError for the first value that does not fit."""
        named = UnknownNameError("target", self.target, ("reference",))
        if self.target != "reference" and "/" not in self.target and named.nearest:
            raise named
        _check_choice("profile", self.profile, PROFILES)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("api", self.api, APIS)
        _check_choice("keep-text value", self.keep_text, KEEP_TEXT)
        for fix in self.fixes:
            _check_choice("fix", fix, FIXES)
        for device in (self.device, self.prefill_device, self.decode_device):
            if device is not None and device.split(":")[0] not in DEVICES:
                raise UnknownNameError("device", device, DEVICES)
        if not TENANTS_MIN <= self.tenants <= TENANTS_MAX:
            raise ConfigError(
                f"`tenants` is {self.tenants}, but a leak needs at least {TENANTS_MIN}"
                f" and a plan holds at most {TENANTS_MAX}",
                hint=f"choose between {TENANTS_MIN} and {TENANTS_MAX}",
            )
        if self.trials is not None and not 1 <= self.trials <= TRIALS_MAX:
            raise ConfigError(
                f"`trials` is {self.trials}", hint=f"choose between 1 and {TRIALS_MAX}"
            )
        for name, count in (("blocks", self.blocks), ("replicas", self.replicas)):
            if count is not None and not 1 <= count <= TRIALS_MAX:
                raise ConfigError(f"`{name}` is {count}", hint=f"choose between 1 and {TRIALS_MAX}")
        if self.nonce is not None and not re.fullmatch(r"[0-9A-Za-z]{1,64}", self.nonce):
            raise ConfigError(
                f"`nonce` is `{self.nonce}`",
                hint="write 1 to 64 letters or digits, or leave it out",
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"`seed` is {self.seed}", hint="choose between 0 and 2^63 - 1")
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(f"`confidence` is {self.confidence}", hint="choose .5 to .9999")
        if self.target_rate is not None and not 0 < self.target_rate < 1:
            raise ConfigError(f"`target-rate` is {self.target_rate}", hint="choose between 0 and 1")
        limits = (
            ("max-tokens", self.max_tokens), ("max-time", self.max_time_s),
            ("max-in-flight", self.max_in_flight), ("max-rate", self.max_rate),
        )  # fmt: skip
        for name, value in limits:
            if value is not None and value <= 0:
                raise ConfigError(f"`{name}` is {value}", hint="a limit must be above 0")
        for name, price in (("price-in", self.price_in), ("price-out", self.price_out)):
            if price is not None and not 0 <= price < math.inf:
                raise ConfigError(
                    f"`{name}` is {price}", hint="give the price of a million tokens, 0 or more"
                )
        if self.target == "reference" and self.api != "auto":
            raise ConfigError(
                "`--api` is for a server at a URL", hint="leave it out for the reference engine"
            )
        if self.target == "reference" and (self.max_in_flight or self.max_rate):
            raise ConfigError(
                "`--max-in-flight` and `--max-rate` are for a server at a URL",
                hint="leave them out: the reference engine waits for nobody",
            )
        if self.target == "reference" and (self.api_key_env or self.replay_url):
            raise ConfigError(
                "`--api-key-env` and `--replay-url` are for a server at a URL",
                hint="the reference engine needs no keys and replays by itself: leave them out",
            )
        if self.target != "reference" and (self.fault or self.fixes):
            raise ConfigError(
                "`--fault` and `--fix` change the reference engine, not a server at a URL",
                hint="leave them out, or start `kvaudit serve --fault ...` and audit that",
            )


def read_config_file(path: Path, command: str) -> dict[str, Any]:
    """Return the table `[command]` of a `kvaudit.toml` with `-` in keys turned into `_`.

    Raises:
        ConfigError: The file can't be read, is no TOML, or holds a key that nobody knows.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't read `{path}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"`{path}` is not UTF-8 text") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"`{path}` is no TOML: {error}") from None
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"`{name}` in `{path}` stands in no table",
                hint=f"write it under `[{command}]`",
            )
        if name not in TABLES:
            raise UnknownNameError("table of the configuration", name, TABLES)
    return {str(key).replace("-", "_"): value for key, value in tables.get(command, {}).items()}


def audit_config(values: Mapping[str, Any]) -> AuditConfig:
    """Build and check an AuditConfig from flags, keys of a file or its own fields.

    Raises:
        UnknownNameError: A key that nobody knows, with the nearest one.
        ConfigError: A value of the wrong type, or one that does not fit.
    """
    hints = get_type_hints(AuditConfig)
    config = AuditConfig(
        **{
            field: _fitting(key, value, hints[field])
            for key, value in values.items()
            for field in [_field_of(key, hints)]
        }
    )
    config.check()
    return config


def audit_arguments(config: AuditConfig) -> list[str]:
    """Return the arguments of the command line that repeats an audit; defaults are left out."""
    flag_of_field = {field: flag for flag, field in FIELD_OF_FLAG.items()}
    arguments = ["audit", config.target]
    for field in fields(AuditConfig):
        value = getattr(config, field.name)
        # The seed is always told: it is what makes the run the same.
        if field.name == "target" or (value == field.default and field.name != "seed"):
            continue
        flag = "--" + flag_of_field.get(field.name, field.name).replace("_", "-")
        for held in value if isinstance(value, tuple) else (value,):
            arguments += [flag, str(held)]
    return arguments


def seconds(text: str) -> float:
    """Return a duration in seconds: `90`, `90s`, `5m`, `1.5h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise ConfigError(f"`{text}` is no duration", hint="write `90s`, `5m` or `1.5h`")
    return float(match[1]) * _SECONDS[match[2]]


def _field_of(key: str, known: Collection[str]) -> str:
    field = FIELD_OF_FLAG.get(key, key)
    if field not in known:
        names = {name.replace("_", "-") for name in {*known, *FIELD_OF_FLAG} - {"target"}}
        raise UnknownNameError("configuration key", key.replace("_", "-"), names)
    return field


def _fitting(key: str, value: Any, hint: Any) -> Any:
    """Return the value as its field holds it; raises ConfigError for one of another type."""
    if key == "max_time" and isinstance(value, str):
        return seconds(value)
    if get_origin(hint) is tuple:
        value = [value] if isinstance(value, str) else value
        if isinstance(value, list | tuple) and all(isinstance(held, str) for held in value):
            return tuple(value)
        raise _wrong_type(key, value, "a list of text")
    allowed = get_args(hint) or (hint,)
    if value is None and NoneType in allowed:
        return None
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed:
        names = {str: "text", int: "a whole number", float: "a number"}
        raise _wrong_type(key, value, " or ".join(names[held] for held in allowed if held in names))
    return value


def _wrong_type(key: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"`{key.replace('_', '-')}` is `{value}`", hint=f"it must be {wanted}")


def _check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(what, value, known)
