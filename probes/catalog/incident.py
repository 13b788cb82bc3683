"""Scenario `incident`: one role refuses a long prompt, the other answers it from stale pages.

Stands for sgl-project/sglang#30233 and the production incident of August 2026: prefill's pool is
smaller than the advertised context, its refusal never reaches decode. Cases C037 and C038.

One trial is a fill, one trigger over the first limit by a tenant who was not in the fill, and one
in-limit control by the same tenant.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvaudit.records import Role
from probes.catalog.fill import fill_wave
from probes.documents import Depth
from probes.geometry import Geometry, geometry_of
from probes.slots import (
    PlanContext,
    Slot,
    SlotWave,
)

OVER, WITHIN = "over-limit", "in-limit"
TRIALS_DEFAULT = 32
TRIGGER_ANSWER = 48
CONTROL_TOKENS = 200
CONTROL_ANSWER = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The scenario as a SlotPlan.

    Attributes:
        name: Name in the catalogue.
        is_serial: Send everything one after another. What shows then is no less a leak, since
            pools keep what earlier tenants left; it tells whether company is needed.
    """

    name: str = "incident"
    is_serial: bool = False

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the triggers' stratum and the controls'."""
        del context
        return OVER, WITHIN

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order."""
        geometry = geometry_of(context.facts, answer_tokens=TRIGGER_ANSWER)
        tenants = context.config.tenants
        for trial in range(context.config.trials or TRIALS_DEFAULT):
            sender = trial % tenants
            fill = fill_wave(geometry, block=trial, tenants=tenants, avoid=sender)
            yield replace(fill, concurrency=1) if self.is_serial else fill
            rng = random.Random(f"{context.root}/{self.name}/{trial}")
            trigger = trigger_slot(geometry, rng, number=trial, sender=sender, fill=fill.slots[0])
            yield SlotWave(slots=(trigger, _control(trial, sender)), concurrency=1)


def trigger_slot(
    geometry: Geometry, rng: random.Random, *, number: int, sender: int, fill: Slot
) -> Slot:
    """Choose the length of one trigger over the limit, no further than the fill's stale keys reach.

    It ends where the fill's answer has begun to name its second, third or fourth code: whoever goes
    on from there names that code. A server that cuts the prompt on one side shows it from the third
    on. Every fourth asks for a code near its own end instead: who answers that one right, and the
    others not, keeps the end of a long prompt and mixes no tenants.
    """
    asks_near_end = number % 4 == 0
    # SGLang keeps one token more of a truncated prompt than it admits; others may keep as many.
    kept = geometry.limit + (number % 8 != 1)
    return Slot(
        name=f"{fill.block:04}-trigger",
        tenant=sender,
        role=Role.TRIGGER,
        stratum=OVER,
        tokens=geometry.over,
        max_tokens=TRIGGER_ANSWER,
        block=fill.block,
        depth=Depth.TAIL if asks_near_end else Depth.HEAD,
        behind=fill if geometry.has_band else None,
        reach=rng.random(),
        cut=kept if geometry.has_band and not asks_near_end else None,
        behind_codes=1 if asks_near_end else rng.randint(2, 3),
    )


def _control(trial: int, sender: int) -> Slot:
    return Slot(
        name=f"{trial:04}-control",
        tenant=sender,
        role=Role.CONTROL,
        stratum=WITHIN,
        tokens=CONTROL_TOKENS - (trial * 11) % 32,
        max_tokens=CONTROL_ANSWER,
        block=trial,
        depth=list(Depth)[trial % len(Depth)],
    )
