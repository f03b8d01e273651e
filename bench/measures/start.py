"""The time from exec to the first response to ApiVersions and to the first acknowledged record.

It is measured on raw sockets with an empty data directory. The first start is not counted: programs
are not in the page cache and Python modules not compiled.
"""

from bench.first_record import create_and_write
from bench.measures import TOPIC, Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    for _ in range(2):
        with workshop.broker(peer, scenario.settings, warm=False) as broker:
            first_ack_s = create_and_write(broker, TOPIC)
            values = {"start_s": broker.started_s, "first_ack_s": first_ack_s}
    return Reading(values)


METRICS = (
    Metric("start_s", "start to first answer", "s", "lower"),
    Metric("first_ack_s", "start to first acknowledged record", "s", "lower"),
)
MEASURES = (Measure("start", METRICS, measure),)
