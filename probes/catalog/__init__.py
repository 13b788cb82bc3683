"""The scenarios, one file each and one line each here."""

from probes.catalog.blocks import Blocks
from probes.catalog.company import Company
from probes.catalog.edge import Edge
from probes.catalog.incident import Incident
from probes.catalog.streaming import Streaming
from probes.catalog.timing_pair import TimingPair
from probes.slots import Probe

SCENARIOS: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Incident(),
        Incident(name="serial", is_serial=True),
        Blocks(),
        Streaming(),
        Company(),
        TimingPair(),
        Edge(),
    )
}
