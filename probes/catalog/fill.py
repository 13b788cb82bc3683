"""The fill of one trial or block: it leaves other tenants' text where a trigger will read.

As many requests in flight together as the decode pool holds, so that every page is written anew;
one after another they would take the same low pages again and leave the rest unwritten.

The first, long one is the one that a trigger over the limit meets. Its answer is long, and the
second request is short and ends at once, so the first one's answer grows into the pages right
behind its prompt: its keys reach past the first limit at their own positions. The others' answers
stay within the last page of their prompts, so they take none of those pages. A trigger that ends
among such keys goes on with the fill's text; one further off makes a real model print dashes.
"""

from dataclasses import replace

from kvaudit.records import Role
from probes.documents import SHORT_TOKENS, Depth
from probes.geometry import Geometry
from probes.slots import Slot, SlotWave

LONG_ANSWER = 112  # long enough to name every code of the block once more
SHORT_FILL_ANSWER = 48  # the same where the document is short and has one
GAP_TOKENS = 200
REST_TOKENS_MIN = 400
SPARE_PAGES = 4  # kept free for answers to grow into
IN_FLIGHT_MAX = 64


def fill_wave(
    geometry: Geometry, *, block: int, tenants: int, avoid: int, opening: str = ""
) -> SlotWave:
    """Return one fill and leave tenant `avoid`, who sends the trigger, out of it.

    Args:
        geometry: Sizes of the server.
        block: Number of the trial or block.
        tenants: Tenants of the run.
        avoid: The tenant that must find only foreign text.
        opening: First sentences of the last request, for one that is to share its prefix while
            that is still cached.
    """
    others = [(avoid + step) % tenants for step in range(1, tenants)]

    def slot(number: int, tokens: int, max_tokens: int) -> Slot:
        return Slot(
            name=f"{block:04}-fill-{number}",
            tenant=others[(block + number) % len(others)],
            role=Role.FILL,
            stratum="",
            tokens=tokens,
            max_tokens=max_tokens,
            block=block,
            depth=list(Depth)[(number - 1) % len(Depth)],
        )

    answer = SHORT_FILL_ANSWER if geometry.limit < SHORT_TOKENS else LONG_ANSWER
    slots = [slot(1, geometry.limit, answer)]
    if geometry.limit > GAP_TOKENS:
        slots.append(slot(2, GAP_TOKENS, 1))
    for number, tokens in enumerate(_rest(geometry), start=len(slots) + 1):
        slots.append(slot(number, tokens, geometry.page))
    slots[-1] = replace(slots[-1], opening=opening)
    return SlotWave(slots=tuple(slots))


def _rest(geometry: Geometry) -> list[int]:
    """Return the lengths that take up the rest of the pool."""
    free = geometry.pages(geometry.pool) - SPARE_PAGES
    free -= geometry.pages(geometry.limit) + geometry.pages(GAP_TOKENS)
    whole = (geometry.limit - 1) // geometry.page  # full pages; one token more opens another
    lengths = [whole * geometry.page + 1] * min(IN_FLIGHT_MAX, max(0, free // (whole + 1)))
    rest = (free - len(lengths) * (whole + 1) - 1) * geometry.page + 1
    if REST_TOKENS_MIN <= rest < geometry.limit:
        lengths.append(rest)
    return lengths
