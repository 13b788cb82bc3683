"""Where a server is: a base URL taken apart once, with clear words for what does not fit."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from kvaudit.errors import ConfigError

# Paths of one endpoint that people paste for the base URL.
ENDPOINTS = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """One OpenAI-compatible server.

    Attributes:
        root: URL before `/v1`, where `/metrics` and its like live; no slash at the end.
        api: URL of the API, `root` with `/v1`; no slash at the end.
        host: Host name or address, lower case, without brackets.
    """

    root: str
    api: str
    host: str

    @property
    def is_loopback(self) -> bool:
        """Whether the server can only be on this machine."""
        name = self.host.rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name.split("%")[0]).is_loopback
        except ValueError:
            return False


def server_address(url: str) -> ServerAddress:
    """Return the address that a base URL names, with or without `/v1` at its end.

    Raises:
        ConfigError: It is no http or https URL, carries a password, or has a query.
    """
    hint = "give the base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000`"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the target is no URL: {error}", hint=hint) from None
    if parts.username is not None or parts.password is not None:
        # Not repeated in the message: it holds a secret.
        raise ConfigError(
            "the target's URL carries a user name or password",
            hint="leave it out; secrets come from the environment: `--api-key-env NAME`",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"`{url}` is no http or https URL", hint=hint)
    if parts.query or parts.fragment:
        raise ConfigError(f"`{url}` has a query or fragment", hint=hint)
    if any(ord(character) < 33 for character in parts.netloc + parts.path):
        raise ConfigError("the target's URL holds white space or control characters", hint=hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = f"{host}:{port}" if port is not None else host
    path = _base_path(parts.path)
    root = urlunsplit((parts.scheme, netloc, path, "", ""))
    return ServerAddress(root=root, api=f"{root}/v1", host=parts.hostname.lower())


def is_loopback(url: str) -> bool:
    """Return whether a base URL can only mean this machine; no name is looked up."""
    return server_address(url).is_loopback


def _base_path(path: str) -> str:
    path = path.rstrip("/")
    for endpoint in ENDPOINTS:
        if path.endswith(f"/v1{endpoint}"):
            path = path.removesuffix(endpoint)
            break
    return path.removesuffix("/v1").rstrip("/")
