"""Scenario `streaming`: one prompt answered as a stream and once more in one piece, each alone.

Both must know the prompt's own code and read the same. A stream that another stream's chunks got
into differs from the answer in one piece, which crosses no such buffer. Stands for the probe shape
"same request, both transports" (streams handed to the wrong client, chunks of two answers mixed).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvaudit.records import Role
from probes.documents import Depth
from probes.slots import (
    PlanContext,
    Slot,
    SlotWave,
)

STREAMED, WHOLE = "streamed", "in-one-piece"
PAIRS = {"quick": 7, "standard": 15, "deep": 30}
PROMPT_TOKENS = 200
ANSWER_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """The scenario as a SlotPlan; the profile decides the number of pairs."""

    name: str = "streaming"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the two transports."""
        del context
        return STREAMED, WHOLE

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order."""
        for pair in range(PAIRS[context.config.profile]):
            yield SlotWave(slots=_pair(pair, context.config.tenants), concurrency=1)


def _pair(number: int, tenants: int) -> tuple[Slot, Slot]:
    first = Slot(
        name=f"{number:04}-{STREAMED}",
        tenant=number % tenants,
        role=Role.CONTROL,
        stratum=STREAMED,
        tokens=PROMPT_TOKENS - (number * 13) % 40,
        max_tokens=ANSWER_TOKENS,
        block=number,
        depth=list(Depth)[number % len(Depth)],
    )
    second = Slot(
        name=f"{number:04}-{WHOLE}",
        tenant=first.tenant,
        role=first.role,
        stratum=WHOLE,
        tokens=first.tokens,
        max_tokens=first.max_tokens,
        block=number,
        depth=first.depth,
        stream=False,
        repeats=first,
    )
    return first, second
