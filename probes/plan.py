"""Which scenarios a configuration asks for; the front door of this room.

A probe is a pure function of config, seed and the records so far to the next wave.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvaudit.config import AuditConfig
from kvaudit.errors import UnknownNameError
from kvaudit.records import RequestRecord
from probes.catalog import SCENARIOS
from probes.catalog.edge import Edge, edges_of, told, with_edges
from probes.geometry import geometry_of
from probes.slots import PlanContext, PlanCost, Probe, before_waves, slots_cost

__all__ = [
    "EDGE",
    "PlanContext",
    "PlanCost",
    "Probe",
    "edge_told",
    "plan_for",
    "prelude_for",
    "probed",
    "shared_cost",
]

EDGE = Edge().name


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


def prelude_for(context: PlanContext) -> tuple[Probe, ...]:
    """Return what must be found out before the plan can choose its lengths.

    A server that does not tell its limits is searched for them; the reference engine tells them.
    """
    is_known = geometry_of(context.facts, answer_tokens=0).is_known
    if is_known or "edge" in context.config.scenarios:
        return ()
    return (Edge(is_prelude=True),)


def probed(context: PlanContext, records: Sequence[RequestRecord]) -> PlanContext:
    """Return the context with the limits that probing has found so far."""
    probe = _edge_of(context)
    if not any(record.scenario == probe.name for record in records):
        return context
    found = edges_of(context, records, probe)
    return replace(context, facts=with_edges(context.facts, found))


def edge_told(context: PlanContext, records: Sequence[RequestRecord]) -> list[str]:
    """Return what the edge finder found, in words; nothing if it did not run."""
    probe = _edge_of(context)
    if not any(record.scenario == probe.name for record in records):
        return []
    return told(edges_of(context, records, probe))


def _edge_of(context: PlanContext) -> Edge:
    return Edge(is_prelude="edge" not in context.config.scenarios)


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
