"""From exec to the first answered ApiVersions, on a raw socket and an empty data directory.

A first start is not counted: it finds programs on the disk and Python modules uncompiled.
"""

from bench.measures import Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings):
        pass
    with workshop.broker(peer, scenario.settings) as broker:
        return Reading({"start_s": broker.started_s})


MEASURES = (Measure("start", (Metric("start_s", "start to first answer", "s", "lower"),), measure),)
