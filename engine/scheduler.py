"""Which requests run in this step: pure decisions over queues, pages and rows.

Chunks always end at multiples of `chunk_tokens` of the request's own positions, whoever else runs,
so that a request's arithmetic does not depend on its company.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar


class Chunked(Protocol):
    """A prompt that is computed chunk by chunk."""

    @property
    def length(self) -> int:
        """Prompt length as prefill counts it, in tokens."""
        ...

    @property
    def computed(self) -> int:
        """Tokens whose KV is there, in tokens from the start."""
        ...


class Running(Protocol):
    """A request that decodes."""

    @property
    def ordinal(self) -> int:
        """Place in the order of arrival."""
        ...


ChunkedT = TypeVar("ChunkedT", bound=Chunked)
RunningT = TypeVar("RunningT", bound=Running)


class Chunk(NamedTuple):
    """A stretch of the prompt of leg number `leg`: positions `start` to `end`, exclusive."""

    leg: int
    start: int
    end: int


def plan_chunks(running: Sequence[Chunked], chunk_tokens: int) -> tuple[Chunk, ...]:
    """Choose the chunks of one prefill step, first come first served.

    At most `chunk_tokens` tokens in all; each request gives at most one chunk, and none is passed
    by a later one.
    """
    plan: list[Chunk] = []
    budget = chunk_tokens
    for number, leg in enumerate(running):
        border = (leg.computed // chunk_tokens + 1) * chunk_tokens
        end = min(border, leg.length)
        if end - leg.computed > budget:
            break
        budget -= end - leg.computed
        plan.append(Chunk(number, leg.computed, end))
    return tuple(plan)


def may_reserve(*, pages: int, free: int, running: int, is_alone: bool) -> bool:
    """Tell whether decode takes a new request that needs `pages` pages now.

    One page is kept for each running request to grow into, so that taking in is not paid by taking
    back a step later; a request that would be alone may have all.
    """
    headroom = 0 if is_alone else running
    return pages + headroom <= free


def choose_retraction(running: Iterable[RunningT]) -> RunningT:
    """Choose whose pages are taken back when decode has none left: the latest arrival's."""
    return max(running, key=lambda leg: leg.ordinal)
