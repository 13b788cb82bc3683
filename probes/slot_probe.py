"""A scenario that is a list of slots, as nearly all are: it says what, this says how it is sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvaudit.records import RequestRecord
from kvaudit.target import Wave
from probes.slots import (
    PlanContext,
    PlanCost,
    SlotWave,
    before_waves,
    next_slot_wave,
    slots_cost,
)


class SlotPlan(Protocol):
    """What one scenario sends."""

    @property
    def name(self) -> str:
        """Name in the catalogue."""
        ...

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the strata that the scenario sets out to examine."""
        ...

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order, the same ones each time. Pure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProbe:
    """A SlotPlan as a Probe."""

    plan: SlotPlan

    @property
    def name(self) -> str:
        """Name in the catalogue."""
        return self.plan.name

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the strata that the scenario sets out to examine."""
        return self.plan.strata(context)

    def cost(self, context: PlanContext) -> PlanCost:
        """Return what all waves and the calibration send, at most."""
        return slots_cost([*before_waves(context), *self.plan.waves(context)])

    def next_wave(self, context: PlanContext, records: Sequence[RequestRecord]) -> Wave | None:
        """Return the first wave with a request that has no record, calibration before all else."""
        waves = self.plan.waves(context)
        return next_slot_wave(context, records, scenario=self.name, waves=waves)
