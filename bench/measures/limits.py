"""The limits of the machine without a broker, which no broker on it can exceed."""

from bench.measures import Measure, Reading
from bench.measures.produce import BALLAST
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, _peer: Peer) -> Reading:
    job = dict(scenario.amount) | {"folder": str(workshop.folder)}
    workshop.ballast.hold(scenario.amount["write_megabytes"] * BALLAST)
    with workshop.load("limits", job) as load:
        for _ in METRICS:
            load.wait_ready()
            if load.stages == 2:  # next it writes
                workshop.ballast.release()
            load.go()
        return Reading(load.result())


METRICS = (
    Metric("loopback_mb_per_s", "through a loopback connection", "MB/s", "higher"),
    Metric("write_mb_per_s", "into the page cache", "MB/s", "higher"),
    Metric("syncs_per_s", "4 KB appended and synced", "/s", "higher"),
)
MEASURES = (Measure("limits", METRICS, measure),)
