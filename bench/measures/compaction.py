"""The rate of compacting a topic with many old versions of a few keys, and its CPU per megabyte."""

import time
from pathlib import Path

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import fill
from bench.model import Metric, Peer, Scenario
from bench.processes import wait_for
from bench.running import Broker, Workshop
from bench.topics import alter_topic


def log_bytes(folder: Path) -> int:
    """Return the size of the live segments; files may vanish during the scan."""
    total = 0
    for path in folder.glob(f"{TOPIC}-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass
    return total


def compact(broker: Broker, share: float) -> None:
    """Enable compaction, and wait until at most this share of the bytes is left."""
    full = log_bytes(broker.data)
    alter_topic(broker.address, TOPIC, {"cleanup.policy": "compact"})
    wait_for(
        lambda: log_bytes(broker.data) <= full * share, f"compaction to {share:.0%} of the size"
    )


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        fill(workshop, scenario, broker)
        megabytes = log_bytes(broker.data) / 1e6
        cpu, started = broker.cpu_s(), time.perf_counter()
        compact(broker, scenario.amount["share"])
        seconds = time.perf_counter() - started
        values = {
            "megabytes_per_s": megabytes / seconds,
            "cpu_us_per_mb": (broker.cpu_s() - cpu) * 1e6 / megabytes,
        }
        detail = {"megabytes": megabytes, "left": log_bytes(broker.data) / 1e6, "seconds": seconds}
        return Reading(values, detail)


METRICS = (
    Metric("megabytes_per_s", "compacted", "MB/s", "higher"),
    Metric("cpu_us_per_mb", "broker CPU", "µs/MB", "lower"),
)
MEASURES = (Measure("compaction", METRICS, measure),)
