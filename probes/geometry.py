"""What a plan needs to know of a server's sizes, as far as the server tells. Lengths in tokens."""

from dataclasses import dataclass

from kvaudit.serverfacts import RoleFacts, ServerFacts

CONTEXT_ASSUMED = 4096  # when a server says nothing at all
PAGE_ASSUMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The lengths between which a plan chooses.

    Attributes:
        limit: Longest prompt that every role admits.
        ceiling: Longest prompt that at least one role admits; above `limit` there is a band in
            which one role refuses and another may not.
        pool: KV pool that answers are generated from.
        page: Tokens in a page.
        over: Shortest prompt that is over the limit: one token more than the tightest role
            admits, or than the whole context where no role tells its limit.
        is_known: Whether the server told its limits.
    """

    limit: int
    ceiling: int
    over: int
    pool: int
    page: int
    is_known: bool

    @property
    def has_band(self) -> bool:
        """Whether some prompts are admitted by one role only."""
        return self.ceiling > self.limit

    def pages(self, tokens: int) -> int:
        """Return how many pages hold `tokens` tokens."""
        return -(-tokens // self.page)

    def fills_in_flight(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens the pool holds together, at least 1."""
        return max(1, self.pages(self.pool) // self.pages(tokens))


def geometry_of(facts: ServerFacts, *, answer_tokens: int) -> Geometry:
    """Work out the lengths from what the server says; what it does not say is assumed small.

    Args:
        facts: What the server says.
        answer_tokens: Room to leave for the answer where only a context is known.
    """
    context = facts.context_tokens or CONTEXT_ASSUMED
    limits = [limit for role in facts.roles if (limit := _limit(role, context)) is not None]
    decode = facts.role("decode")
    page = next((role.page_size for role in facts.roles if role.page_size), PAGE_ASSUMED)
    pool = decode.pool_tokens if decode is not None and decode.pool_tokens else context
    if not limits and facts.probed_right_tokens is not None:
        return _probed(facts, page=page, pool=pool)
    room = context - answer_tokens
    limit, over = min([room, *limits]), min([context, *limits]) + 1
    return Geometry(
        limit=limit,
        ceiling=min(room, max(limits)) if limits and over <= room else limit,
        over=over,
        pool=pool,
        page=page,
        is_known=bool(limits),
    )


def _probed(facts: ServerFacts, *, page: int, pool: int) -> Geometry:
    """Return the lengths that probing found; past the longest one tried everything is over."""
    limit = facts.probed_right_tokens
    assert limit is not None, "asked only where something was found"
    ceiling = max(limit, facts.probed_ceiling_tokens or limit)
    return Geometry(
        limit=limit,
        ceiling=ceiling,
        over=facts.probed_over_tokens or limit + 1,
        pool=facts.probed_sum_tokens or max(pool, limit),
        page=page,
        is_known=True,
    )


def _limit(role: RoleFacts, context: int) -> int | None:
    if role.max_input_tokens is not None:
        return role.max_input_tokens
    if role.pool_tokens is not None:
        return min(role.pool_tokens, context) - 1
    return None
