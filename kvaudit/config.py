"""The audit's configuration, checked once, as a frozen dataclass.

`kvaudit.toml` holds the same keys as the flags, under a table named after the command; flags win.
A key that nobody knows is an error that names the nearest one.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvaudit.errors import ConfigError, UnknownNameError

PROFILES = ("quick", "standard", "deep")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
FIXES = (
    "retire", "door", "checksum", "coverage", "deferred-release", "generation", "start-check",
)  # fmt: skip
TENANTS_MIN, TENANTS_MAX = 2, 64
TRIALS_MAX = 100_000


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
        scenarios: Scenarios to run; empty = the profile's.
        profile: `quick`, `standard` or `deep`.
        device, prefill_device, decode_device, dtype: Where and how the reference engine computes.
        target_rate: Leak rate that a clean verdict must bound; None = print the bound only.
        confidence: Confidence of every bound.
        max_tokens: Limit on all prompt and output tokens of the run.
        max_time_s: Limit on the run's duration, in seconds.
        keep_text: `all`, `excerpts` or `none`.
    """

    target: str = "reference"
    model: str = "copier"
    fault: str | None = None
    fixes: tuple[str, ...] = ()
    trials: int | None = None
    tenants: int = 4
    seed: int = 1
    scenarios: tuple[str, ...] = ()
    profile: str = "quick"
    device: str = "auto"
    prefill_device: str | None = None
    decode_device: str | None = None
    dtype: str = "float32"
    target_rate: float | None = None
    confidence: float = 0.95
    max_tokens: int | None = None
    max_time_s: float | None = None
    keep_text: str = "all"

    def check(self) -> None:
        """Raise ConfigError for the first value that does not fit."""
        _check_choice("profile", self.profile, PROFILES)
        _check_choice("dtype", self.dtype, DTYPES)
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
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(f"`confidence` is {self.confidence}", hint="choose .5 to .9999")
        if self.target_rate is not None and not 0 < self.target_rate < 1:
            raise ConfigError(f"`target-rate` is {self.target_rate}", hint="choose between 0 and 1")
        for name, value in (("max-tokens", self.max_tokens), ("max-time", self.max_time_s)):
            if value is not None and value <= 0:
                raise ConfigError(f"`{name}` is {value}", hint="a limit must be above 0")
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
    table = tables.get(command, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"`{command}` in `{path}` must be a table", hint=f"write `[{command}]`")
    return {str(key).replace("-", "_"): value for key, value in table.items()}


def audit_config(values: Mapping[str, Any]) -> AuditConfig:
    """Build and check an AuditConfig; an unknown key raises UnknownNameError."""
    known = {field.name for field in fields(AuditConfig)}
    for key in values:
        if key not in known:
            raise UnknownNameError("configuration key", key, known)
    cleaned: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    try:
        config = AuditConfig(**cleaned)
        config.check()
    except TypeError as error:
        raise ConfigError(f"a value has the wrong type: {error}") from None
    return config


def _check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(what, value, known)
