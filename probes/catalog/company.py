"""Scenario `company`: one prompt alone, once more, behind somebody else's, and among others.

Each prompt asks for a code of its own, so the right answer is known four times: alone (cold), at
once again (warm), again after another tenant's unrelated prompt (A, B, A), and in a crowd with
fresh prompts of other tenants. Who knows the code alone and loses it later has read other state.
Stands for the probe shapes "serial A then unrelated B", "A, X, A again", "cold then warm use of one
prefix" and "N parallel, short deterministic answers" (cases C069, C070, C078, C079, C106, C087,
C034, C035, C108, C089, C001, C002, C042, C043, C061, C101, C105, C107).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvaudit.records import Role
from probes.documents import Depth
from probes.slots import (
    COMPANY_SIZE,
    PlanContext,
    Slot,
    SlotWave,
)

ALONE, AGAIN, BACK, COMPANY = "alone", "again", "back-again", "in-company"
PROMPTS = {"quick": 7, "standard": 15, "deep": 30}
PROMPT_TOKENS = 200
ANSWER_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """The scenario as a SlotPlan; the profile decides the number of prompts."""

    name: str = "company"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the four ways in which one prompt is sent."""
        del context
        return ALONE, AGAIN, BACK, COMPANY

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order."""
        tenants = context.config.tenants
        prompts = [_alone(number, tenants) for number in range(PROMPTS[context.config.profile])]
        for alone in prompts:
            between = _stranger(alone, "between", tenants)
            slots = (alone, _once_more(alone, AGAIN), between, _once_more(alone, BACK))
            yield SlotWave(slots=slots, concurrency=1)
        crowd = [
            slot
            for alone in prompts
            for slot in (_once_more(alone, COMPANY), _stranger(alone, "beside", tenants))
        ]
        yield SlotWave(slots=tuple(crowd), concurrency=COMPANY_SIZE)


def _alone(number: int, tenants: int) -> Slot:
    return Slot(
        name=f"{number:04}-{ALONE}",
        tenant=number % tenants,
        role=Role.CONTROL,
        stratum=ALONE,
        tokens=PROMPT_TOKENS - (number * 13) % 40,
        max_tokens=ANSWER_TOKENS,
        block=number,
        depth=list(Depth)[number % len(Depth)],
    )


def _once_more(alone: Slot, stratum: str) -> Slot:
    name = f"{alone.block:04}-{stratum}"
    return replace(alone, name=name, role=Role.TRIGGER, stratum=stratum, repeats=alone)


def _stranger(alone: Slot, name: str, tenants: int) -> Slot:
    """Return an unrelated prompt of another tenant: what the repeated one may meet."""
    return replace(
        alone,
        name=f"{alone.block:04}-{name}",
        tenant=(alone.tenant + 1) % tenants,
        role=Role.FILL,
        stratum="",
    )
