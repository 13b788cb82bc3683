"""One credential for each tenant: minted for the run, or from the environment.

A credential goes into the `Authorization` header and nowhere else: this class never shows one, and
takes it out of whatever a server echoes.
"""

import secrets
from collections.abc import Mapping, Sequence

from kvaudit.errors import ConfigError

SCRUBBED = "[credential]"


class Credentials:
    """The tenants' bearer tokens.

    Attributes:
        are_shared: All tenants send one and the same key, so that the server can't tell them apart.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(keys)
        self._by_tenant: dict[str, str] = {}
        self.are_shared = len(self._keys) == 1

    def __repr__(self) -> str:
        """Return how many keys there are, never a key."""
        return f"Credentials({len(self._keys)} from the environment)"

    def of(self, tenant: str) -> str:
        """Return the tenant's bearer token; minted on first use where none was given."""
        known = self._by_tenant.get(tenant)
        if known is not None:
            return known
        if not self._keys:
            token = f"kvaudit-{secrets.token_urlsafe(24)}"
        elif self.are_shared:
            token = self._keys[0]
        else:
            assert len(self._by_tenant) < len(self._keys), "more tenants than keys"
            token = self._keys[len(self._by_tenant)]
        self._by_tenant[tenant] = token
        return token

    def any(self) -> str:
        """Return a token that may ask about the server: a given one, else one minted for that."""
        return self._keys[0] if self._keys else self.of("")

    def scrub(self, text: str) -> str:
        """Return the text with every credential taken out."""
        for token in {*self._keys, *self._by_tenant.values()}:
            text = text.replace(token, SCRUBBED)
        return text


def credentials_from(
    names: Sequence[str], environment: Mapping[str, str], *, tenants: int
) -> Credentials:
    """Return the credentials that the named environment variables hold.

    Args:
        names: One variable for each tenant, or one for all; none = tokens minted for the run.
        environment: Where to look them up.
        tenants: How many tenants take part.

    Raises:
        ConfigError: A variable is not set, two hold the same key, or their number does not fit.
    """
    if len(names) not in (0, 1, tenants):
        raise ConfigError(
            f"{len(names)} keys for {tenants} tenants",
            hint=f"name one variable for each tenant, or set `--tenants {max(len(names), 2)}`",
        )
    keys = []
    for name in names:
        key = environment.get(name, "").strip()
        if not key:
            raise ConfigError(
                f"the environment variable `{name}` is not set",
                hint="`--api-key-env` takes names of variables, not keys",
            )
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"the key in `{name}` holds characters that no header can carry")
        keys.append(key)
    if len(set(keys)) < len(keys):
        raise ConfigError(
            "two of the variables hold the same key",
            hint="each tenant needs a credential of its own; name one variable alone to share it",
        )
    return Credentials(keys)
