"""A cluster with many partitions: startup, failover, controlled shutdown, and restart."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.cluster import Cluster, Partition, create_topics_of_sizes, topic_sizes
from bench.measures import Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Workshop

# Settings of a producer that looks for the new leader as soon as it has lost the old one.
FAST_FAILOVER = {
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
}
INTERVAL_MS = 5


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    work = workshop.new_work()
    try:
        values = _fill(workshop, scenario, peer, work)
        started = time.perf_counter()
        with workshop.broker(peer, scenario.settings, work=work) as broker:
            many = _Many(workshop, Cluster(broker), scenario)
            many.cluster.wait_led(many.count, in_sync=peer.replication)
            values["start_s"] = time.perf_counter() - started
            many.cluster.prefer()
            values |= many.killed()
            values |= many.stopped()
        return Reading(values)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fill(workshop: Workshop, scenario: Scenario, peer: Peer, work: Any) -> dict[str, float]:
    """Create the topics, write to each partition, and shut the cluster down cleanly."""
    with workshop.broker(peer, scenario.settings, work=work) as broker:
        cluster, amount = Cluster(broker), scenario.amount
        started = time.perf_counter()
        create_topics_of_sizes(
            cluster, dict(topic_sizes(amount["partitions"], amount["partitions_per_topic"]))
        )
        cluster.wait_led(amount["partitions"], in_sync=peer.replication)
        created_s = time.perf_counter() - started
        cluster.write_everywhere(cluster.partitions())
        return {"create_s": created_s}


class _Many:
    """The operations on a cluster with many partitions."""

    def __init__(self, workshop: Workshop, cluster: Cluster, scenario: Scenario) -> None:
        self.workshop, self.cluster = workshop, cluster
        self.count: int = scenario.amount["partitions"]

    def killed(self) -> dict[str, float]:
        """Kill the controller with -9, then restart it."""
        node = self.cluster.controller()
        values = self._without(node, lambda: self.cluster.kill(node), "kill")
        started = time.perf_counter()
        self.cluster.start(node)
        self.cluster.connect()
        self.cluster.wait_led(self.count, in_sync=self.cluster.broker.peer.replication)
        values["rejoin_s"] = time.perf_counter() - started
        self.cluster.prefer()
        return values

    def stopped(self) -> dict[str, float]:
        """Shut down cleanly the broker that leads most partitions."""
        leaders = [row.leader for row in self.cluster.partitions()]
        node = max(set(leaders), key=leaders.count)
        return self._without(node, lambda: self.cluster.stop(node), "stop")

    def _without(self, node: int, remove_broker: Callable[[], None], name: str) -> dict[str, float]:
        rows = self.cluster.partitions()
        self.cluster.connect(without=node)
        with self._writing(rows, node) as gap:
            started = time.perf_counter()
            remove_broker()
            self.cluster.wait_led(self.count, without=node)
            led_s = time.perf_counter() - started
            self.cluster.write_everywhere(rows, without=node)
            written_s = time.perf_counter() - started
        return {f"{name}_led_s": led_s, f"{name}_written_s": written_s, f"{name}_gap_s": gap[0]}

    @contextmanager
    def _writing(self, rows: list[Partition], node: int) -> Iterator[list[float]]:
        """Write to a partition that this broker leads; yield a list for its longest pause."""
        led = next((row for row in rows if row.leader == node), None)
        if led is None:
            raise BenchFailed(f"broker {node} leads nothing")
        job = {
            "address": self.cluster.addresses(),
            "topic": led.topic,
            "partition": led.index,
            "interval_ms": INTERVAL_MS,
            "settings": FAST_FAILOVER,
        }
        pauses: list[float] = []
        with self.workshop.load("gap", job) as load:
            load.wait_ready()
            yield pauses
            load.go()
            pauses.append(load.result()["longest_s"])


METRICS = (
    Metric("create_s", "topics made, all in sync", "s", "lower"),
    Metric("start_s", "start until all in sync", "s", "lower"),
    Metric("kill_led_s", "killed: all led again", "s", "lower"),
    Metric("kill_written_s", "killed: all written again", "s", "lower"),
    Metric("kill_gap_s", "killed: a writer's pause", "s", "lower"),
    Metric("rejoin_s", "started again until all in sync", "s", "lower"),
    Metric("stop_led_s", "stopped: all led elsewhere", "s", "lower"),
    Metric("stop_written_s", "stopped: all written elsewhere", "s", "lower"),
    Metric("stop_gap_s", "stopped: a writer's pause", "s", "lower"),
)
MEASURES = (Measure("cluster-partitions", METRICS, measure),)
