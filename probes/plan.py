"""Which scenarios a configuration asks for; the front door of this room.

A probe is a pure function of config, seed and the records so far to the next wave.
"""

from kvaudit.config import AuditConfig
from kvaudit.errors import UnknownNameError
from probes.catalog import SCENARIOS
from probes.slots import PlanContext, PlanCost, Probe

__all__ = ["PlanContext", "PlanCost", "Probe", "plan_for"]


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


def _scenario(name: str) -> Probe:
    try:
        return SCENARIOS[name]
    except KeyError:
        raise UnknownNameError("scenario", name, SCENARIOS) from None
