"""Scenario `blocks`: every stratum of a profile, block by block.

One block is a fill that turns the decode pool over, a request that its client cuts, one wave with a
request of every stratum, and one observation. A block counts once in the statistics. Where the
server has adapters, the observation's text was sent under one of them just before. Stands for the
probe shapes "pool size + 1 and window + 1 tokens", "long request cut by the client, then a canary
wave", "one long + several short" and "cold then warm use of one prefix" (cases C037-C041, C049,
C077, C078, C034, C035).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvaudit.records import Role
from kvaudit.serverfacts import ServerFacts
from probes.catalog.fill import fill_wave
from probes.catalog.incident import trigger_slot
from probes.documents import Depth
from probes.geometry import Geometry, geometry_of
from probes.slots import (
    PlanContext,
    Slot,
    SlotWave,
)

BLOCKS = {"quick": 7, "standard": 29, "deep": 99}
ANSWER = 48
SHORT_TOKENS = 200
SHORT_ANSWER = 24

WITHIN = "in-limit"
LAST_PAGE = "last-in-limit-page"
JUST_OVER = "just-over-the-limit"
MID_BAND = "mid-band"
AFTER_ABORT = "after-an-abort"
REUSE = "reuse"
HALF_POOL = "half-of-the-limit"
CONTEXT_END = "end-of-the-context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The scenario as a SlotPlan; the profile decides blocks and strata."""

    name: str = "blocks"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the profile's strata, as far as the server has them."""
        geometry = geometry_of(context.facts, answer_tokens=ANSWER)
        strata = [WITHIN, LAST_PAGE, JUST_OVER, AFTER_ABORT]
        if geometry.has_band:
            strata.append(MID_BAND)
        if context.facts.prefix_cache is not False:
            strata.append(REUSE)
        if context.config.profile != "quick":
            strata += [HALF_POOL, *([CONTEXT_END] if geometry.has_band else [])]
        return tuple(strata)

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order."""
        geometry = geometry_of(context.facts, answer_tokens=ANSWER)
        tenants = context.config.tenants
        strata = self.strata(context)
        adapter = _adapter(context.facts)
        for block in range(context.config.blocks or BLOCKS[context.config.profile]):
            rng = random.Random(f"{context.root}/blocks/{block}")
            sender = block % tenants
            opening = _opening(rng) if REUSE in strata else ""
            fill = fill_wave(geometry, block=block, tenants=tenants, avoid=sender, opening=opening)
            yield fill
            builder = _Builder(
                geometry=geometry, rng=rng, block=block, sender=sender,
                aborter=(sender + 1) % tenants, opening=opening, fill=fill.slots[0],
            )  # fmt: skip
            yield SlotWave(slots=(builder.aborted(),))
            yield SlotWave(slots=builder.wave(strata))
            yield SlotWave(
                slots=builder.observation(adapter if REUSE in strata else ""), concurrency=1
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Makes the slots of one block's wave."""

    geometry: Geometry
    rng: random.Random
    block: int
    sender: int
    aborter: int
    opening: str
    fill: Slot

    def wave(self, strata: Sequence[str]) -> tuple[Slot, ...]:
        """Return one slot of every stratum.

        Those over the limit come first, since they take the low pages; then, where they are
        refused, the one that takes what the cut one has held.
        """
        limit, ceiling = self.geometry.limit, self.geometry.ceiling
        over = self._just_over()
        lengths = {
            MID_BAND: (limit + ceiling) // 2,
            CONTEXT_END: ceiling,
            AFTER_ABORT: limit // 2,
            LAST_PAGE: limit - self.rng.randrange(min(self.geometry.page, limit // 2)),
            HALF_POOL: limit // 2,
        }
        slots = [over]
        if REUSE in strata:  # before any other prompt is read: its prefix is the last one cached
            slots.append(
                self._slot(
                    REUSE, limit // 2, role=Role.TRIGGER, max_tokens=ANSWER, opening=self.opening
                )
            )
        for stratum, tokens in lengths.items():
            if stratum in strata:
                is_trigger = tokens > limit or stratum == AFTER_ABORT
                role = Role.TRIGGER if is_trigger else Role.CONTROL
                slots.append(self._slot(stratum, tokens, role=role, max_tokens=ANSWER))
        slots.append(self._slot(WITHIN, SHORT_TOKENS, role=Role.CONTROL, max_tokens=SHORT_ANSWER))
        return tuple(slots)

    def observation(self, adapter: str) -> tuple[Slot, ...]:
        """Return one more in-limit request, alone, after the wave.

        With an `adapter` it is the second of two with one text: the first is sent under the
        adapter, and whoever serves the second from the first one's pages mixes the two.
        """
        look = self._slot("", SHORT_TOKENS, role=Role.CONTROL, max_tokens=SHORT_ANSWER, name="look")
        if not adapter:
            return (look,)
        under_adapter = replace(look, name=f"{self.block:04}-adapter", model=adapter)
        return under_adapter, replace(look, stratum=REUSE, role=Role.TRIGGER, repeats=under_adapter)

    def _just_over(self) -> Slot:
        slot = trigger_slot(
            self.geometry, self.rng, number=self.block + 1, sender=self.sender, fill=self.fill
        )
        return replace(slot, name=f"{self.block:04}-{JUST_OVER}", stratum=JUST_OVER)

    def aborted(self) -> Slot:
        """Return a request that is cut: every second one on its way to decode, the others there."""
        return Slot(
            name=f"{self.block:04}-aborted",
            tenant=self.aborter,
            role=Role.FILL,
            stratum="",
            tokens=self.geometry.limit // 2,
            max_tokens=ANSWER,
            block=self.block,
            cancel_after_tokens=0 if self.block % 2 == 0 else 1 + self.block // 2 % 2,
        )

    def _slot(
        self,
        stratum: str,
        tokens: int,
        *,
        role: Role,
        max_tokens: int,
        opening: str = "",
        name: str | None = None,
    ) -> Slot:
        return Slot(
            name=f"{self.block:04}-{name or stratum}",
            tenant=self.sender,
            role=role,
            stratum=stratum,
            tokens=tokens,
            max_tokens=max_tokens,
            block=self.block,
            # What was sent first of the cut one lies over the head of the one that comes after.
            depth=Depth.HEAD if stratum == AFTER_ABORT else list(Depth)[self.block % len(Depth)],
            opening=opening,
        )


def _adapter(facts: ServerFacts) -> str:
    """Return an adapter of the model that is audited; "" if the server lists none."""
    return next((name for name in facts.models if name.startswith(f"{facts.model}:")), "")


def _opening(rng: random.Random) -> str:
    """Return public sentences of over a page, the same for two requests of one block."""
    number = rng.randrange(10_000, 100_000)
    return (
        f"This is notice {number} of the house. It is read aloud to everyone in the hall before"
        " the doors open, and nobody needs to keep it to themselves."
    )
