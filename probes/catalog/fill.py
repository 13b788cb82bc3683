"""The fill of one trial or block: it leaves other tenants' text where a trigger will read.

First as many requests in flight together as the decode pool holds, so that every page is written
anew; one after another they would take the same low pages again. Then one more, alone: its answer
grows on right behind its prompt, so its keys reach past the first limit at their own positions. A
trigger that ends among them, at most `NEAR_TOKENS` over the limit, goes on with the fill's text;
further off a real model prints dashes.
"""

from kvaudit.records import Role
from probes.documents import Depth
from probes.geometry import Geometry
from probes.slots import Slot, SlotWave

TURNOVER_ANSWER = 24
LAST_ANSWER = 112  # long enough to name every code of the block once more
NEAR_TOKENS = 96


def fill_slots(
    geometry: Geometry, *, block: int, tenants: int, avoid: int, opening: str = ""
) -> tuple[SlotWave, ...]:
    """Return the two waves of a fill and leave tenant `avoid`, who sends the trigger, out of it.

    Args:
        geometry: Sizes of the server.
        block: Number of the trial or block.
        tenants: Tenants of the run.
        avoid: The tenant that must find only foreign text.
        opening: First sentences of the last fill, for a trigger that is to share its prefix.
    """
    others = [(avoid + step) % tenants for step in range(1, tenants)]
    count = geometry.fills_in_flight(geometry.limit + TURNOVER_ANSWER)
    together = tuple(
        Slot(
            name=f"{block:04}-fill-{number}",
            tenant=others[(block + number) % len(others)],
            role=Role.FILL,
            stratum="",
            tokens=geometry.limit,
            max_tokens=TURNOVER_ANSWER,
            block=block,
            depth=list(Depth)[number % len(Depth)],
        )
        for number in range(1, count + 1)
    )
    last = Slot(
        name=f"{block:04}-fill-last",
        tenant=others[block % len(others)],
        role=Role.FILL,
        stratum="",
        tokens=geometry.limit,
        max_tokens=LAST_ANSWER,
        block=block,
        opening=opening,
    )
    return (SlotWave(slots=together), SlotWave(slots=(last,), concurrency=1))
