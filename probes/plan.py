"""Which scenarios a configuration asks for; the front door of this room.

A probe is a pure function of config, seed and the records so far to the next wave.
"""

from collections.abc import Sequence

from kvaudit.config import AuditConfig
from kvaudit.errors import UnknownNameError
from probes.catalog import SCENARIOS
from probes.slots import PlanContext, PlanCost, Probe, before_waves, slots_cost

__all__ = ["PlanContext", "PlanCost", "Probe", "plan_for", "shared_cost"]


def plan_for(config: AuditConfig) -> tuple[Probe, ...]:
    """Return the scenarios that a configuration asks for, in the order in which they run.

    Raises:
        UnknownNameError: A scenario that stands in no catalogue.
    """
    if config.scenarios:
        return tuple(_scenario(name) for name in config.scenarios)
    if config.trials is not None:
        return (SCENARIOS["incident"],)
    return (SCENARIOS["blocks"],)


def shared_cost(probes: Sequence[Probe], context: PlanContext) -> PlanCost:
    """Return what the scenarios' costs count more than once: calibration is sent once for all."""
    calibration = slots_cost(before_waves(context))
    extra = max(0, len(probes) - 1)
    return PlanCost(
        requests=calibration.requests * extra,
        prompt_tokens=calibration.prompt_tokens * extra,
        output_tokens=calibration.output_tokens * extra,
    )


def _scenario(name: str) -> Probe:
    try:
        return SCENARIOS[name]
    except KeyError:
        raise UnknownNameError("scenario", name, SCENARIOS) from None
