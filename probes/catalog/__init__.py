"""The scenarios, one file each and one line each here."""

from probes.catalog.blocks import Blocks
from probes.catalog.company import Company
from probes.catalog.edge import Edge
from probes.catalog.incident import Incident
from probes.catalog.streaming import Streaming
from probes.catalog.timing_pair import TimingPair
from probes.slot_probe import SlotPlan, SlotProbe
from probes.slots import Probe

_PLANS: tuple[SlotPlan, ...] = (
    Incident(),
    Incident(name="serial", is_serial=True),
    Blocks(),
    Streaming(),
    Company(),
    TimingPair(),
)
_PROBES: tuple[Probe, ...] = (*(SlotProbe(plan=plan) for plan in _PLANS), Edge())
SCENARIOS: dict[str, Probe] = {probe.name: probe for probe in _PROBES}
