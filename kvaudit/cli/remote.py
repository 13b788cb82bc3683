"""A server at a URL as the audit's target: who may be asked, and with which keys."""

import sys
from collections.abc import Sequence

from kvaudit.cli.terminal import escape, say
from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError
from kvaudit.records import RequestRecord
from kvaudit.target import Target

KEYS_WANTED = (401, 403)


def open_server(config: AuditConfig, *, is_authorised: bool, names_model: bool) -> Target:
    """Return the server of `config.target` as a Target; nothing is sent yet.

    Args:
        config: The audit.
        is_authorised: `--i-am-authorised` was given.
        names_model: The user named the model; else the first one served is asked for.

    Raises:
        ConfigError: The URL or a key does not fit, or the server may not be probed unasked.
    """
    from probes.client import http_target

    refuse_unauthorised(config.target, is_authorised=is_authorised)
    target: Target = http_target(
        config,
        model=config.model if names_model else None,
        api_key_env=config.api_key_env,
    )
    return target


def refuse_unauthorised(url: str, *, is_authorised: bool) -> None:
    """Refuse to ask a server that is not this machine, unless the user says that they may.

    Raises:
        ConfigError: The URL does not fit, or the word is missing.
    """
    from probes.address import server_address

    if not server_address(url).is_loopback and not is_authorised:
        raise ConfigError(
            f"`{url}` is not this machine",
            hint="probing other people's servers needs their word: `--i-am-authorised` says that"
            " you have it",
        )


def confirm_cost(config: AuditConfig, *, says_yes: bool) -> None:
    """Ask before tokens are spent at a server that is not loopback.

    Raises:
        ConfigError: There is nobody to ask, or the answer is no.
    """
    from probes.address import is_loopback

    if says_yes or is_loopback(config.target):
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"nobody is there to be asked whether `{config.target}` may be sent this plan",
            hint="`--yes` says so beforehand; `--dry-run` prints the plan alone",
        )
    say(f"Send this to `{escape(config.target)}`? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("not sent: the plan was not agreed to")


def wants_keys(records: Sequence[RequestRecord]) -> str | None:
    """Return why the run must end when the server turned a request away for its key."""
    for record in records:
        if record.status in KEYS_WANTED:
            return (
                f"the server asks for a key (HTTP {record.status}):"
                " name environment variables that hold one with --api-key-env, one per tenant"
            )
    return None
