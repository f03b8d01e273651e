"""The cost of one leader change in a cluster, beside the cost of an idle cluster."""

import time

from bench.cluster import (
    Cluster,
    Observer,
    Partition,
    Received,
    create_topics_of_sizes,
    topic_sizes,
)
from bench.measures import Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Workshop

SETTLE_S = 1.0
IDLE_S = 3.0


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    from millstream.client.admin.client import Admin

    partitions, amount = scenario.load["partitions"], scenario.amount
    with workshop.broker(peer, scenario.settings) as broker:
        cluster = Cluster(broker)
        create_topics_of_sizes(
            cluster, dict(topic_sizes(partitions, amount["partitions_per_topic"]))
        )
        cluster.wait_led(partitions, in_sync=peer.replication)
        with cluster.failures_explained(), Admin(cluster.addresses()) as admin:
            rows = cluster.partitions()[: amount["changes"]]
            prefer_others(admin, rows)
            time.sleep(SETTLE_S)
            idle = _busy(cluster, lambda: time.sleep(IDLE_S))
            return Reading(_changes(cluster, admin, rows, idle))


def prefer_others(admin: object, rows: list[Partition]) -> None:
    """Reorder the replicas: another one is preferred, and none is moved."""
    from millstream.core.types import TopicPartition

    assignments = {TopicPartition(r.topic, r.index): (*r.replicas[1:], r.replicas[0]) for r in rows}
    rejected = admin.reassignments.start(assignments)  # type: ignore[attr-defined]
    if rejected:
        raise BenchFailed(f"cannot change the preferred replicas: {next(iter(rejected.values()))}")


def _busy(cluster: Cluster, work: object) -> float:
    """Return the share of one core that all processes together use during ``work``."""
    cpu, started = cluster.broker.cpu_s(), time.perf_counter()
    work()  # type: ignore[operator]
    return (cluster.broker.cpu_s() - cpu) / (time.perf_counter() - started)


def _changes(
    cluster: Cluster, admin: object, rows: list[Partition], idle: float
) -> dict[str, float]:
    from millstream.core.types import TopicPartition

    observer = Observer(cluster.address(cluster.controller()))
    try:
        snapshot, received = observer.snapshot(), Received()
        snapshot.add(observer.changes())  # since the snapshot was built, for its first reader
        writes, cpu, started = (
            cluster.zookeeper_writes(),
            cluster.broker.cpu_s(),
            time.perf_counter(),
        )
        for row in rows:
            changed = admin.reassignments.elect_leaders([TopicPartition(row.topic, row.index)])  # type: ignore[attr-defined]
            if list(changed.values()) != [None]:
                raise BenchFailed(f"{row.topic}-{row.index} got no other leader: {changed}")
            received.add(observer.changes())
        elapsed_s = time.perf_counter() - started
        time.sleep(SETTLE_S)  # later costs of the change count too
        cpu_s = cluster.broker.cpu_s() - cpu - idle * (time.perf_counter() - started)
        writes = cluster.zookeeper_writes() - writes
        received.add(observer.changes())
    finally:
        observer.close()
    count = len(rows)
    return {
        "change_ms": elapsed_s * 1000 / count,
        "cpu_ms": max(cpu_s, 0.0) * 1000 / count,
        "fed_bytes": received.bytes / count,
        "fed_nodes": received.nodes / count,
        "zookeeper_writes": writes / count,
        "snapshot_kb": snapshot.bytes / 1000,
        "idle_percent": idle * 100,
    }


METRICS = (
    Metric("change_ms", "one change, until all brokers know", "ms", "lower"),
    Metric("cpu_ms", "CPU of all processes", "ms", "lower"),
    Metric("fed_bytes", "fed to each broker", "B", "lower"),
    Metric("fed_nodes", "znodes in it", "", "lower"),
    Metric("zookeeper_writes", "writes to ZooKeeper", "", "lower"),
    Metric("snapshot_kb", "fed to a broker that joins", "kB", "lower"),
    Metric("idle_percent", "CPU of the idle cluster", "% of a core", "lower"),
)
MEASURES = (Measure("leader-change", METRICS, measure),)
