"""What a server says of itself.

`None` means that the server did not say. Lengths are in tokens.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One role of a server; a server that is not disaggregated has the one role `unified`.

    Attributes:
        role: `prefill`, `decode` or `unified`.
        pool_tokens: Size of the KV pool, in tokens.
        page_size: Tokens in a page.
        max_input_tokens: Longest prompt that this role admits, by its own rule.
    """

    role: str
    pool_tokens: int | None = None
    page_size: int | None = None
    max_input_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One target, as far as it is known.

    Attributes:
        kind: `kvaudit-reference`, `vllm`, `sglang`, ... or `unknown`.
        version: Version string as reported.
        model: Model name to ask for.
        models: All served names, adapters included.
        context_tokens: Advertised context, prompt and answer together.
        roles: Facts per role.
        prefix_cache: Whether prompts are served from a prefix cache.
        returns_logprobs: Whether answers carry log-probabilities of emitted tokens.
        returns_token_ids: Whether answers carry the ids of emitted tokens.
    """

    kind: str = "unknown"
    version: str | None = None
    model: str | None = None
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    roles: tuple[RoleFacts, ...] = ()
    prefix_cache: bool | None = None
    returns_logprobs: bool | None = None
    returns_token_ids: bool | None = None

    def role(self, name: str) -> RoleFacts | None:
        """Return the facts of one role; a unified server answers for every role."""
        by_name = {facts.role: facts for facts in self.roles}
        return by_name.get(name) or by_name.get("unified")
