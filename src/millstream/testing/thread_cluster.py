"""``with millstream.testing.cluster(3) as kafka:``: brokers on threads, without ZooKeeper or Java.

The brokers are real, and so are replication, elections and fail-over. They coordinate through a
tree in memory instead of ZooKeeper (``coordination.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from millstream.broker.ephemeral import QUICK
from millstream.local.cluster import cluster_settings
from millstream.testing.coordination import SharedTree, TreeSession
from millstream.testing.faults import Faults
from millstream.testing.kafka import Kafka, ThreadKafka
from millstream.testing.start import fresh_directory
from millstream.testing.thread_broker import ThreadBroker
from millstream.testing.waiting import wait_until

_QUICK: dict[str, object] = {"replica.fetch.backoff.ms": 50, "controlled.shutdown.enable": "true"}


class _Node(ThreadBroker):
    """A broker of a cluster, whose session ends with it."""

    def __init__(self, settings: Mapping[str, object], shared: SharedTree) -> None:
        super().__init__(settings, coordination=self._open_session)
        self._shared = shared
        self._session: TreeSession | None = None

    async def _open_session(self) -> TreeSession:
        self._session = await self._shared.open()
        return self._session

    def die(self) -> None:
        was_alive = self.alive
        super().die()
        if was_alive and self._session is not None:
            self._shared.end(self._session.number)


class ClusterNode(ThreadKafka):
    """A broker of a cluster, as tests see it."""

    def __init__(self, cluster: Cluster, number: int, broker: ThreadBroker) -> None:
        super().__init__(broker)
        self._cluster = cluster
        self._number = number

    def kill(self) -> None:
        """Kill the broker, and return when the others no longer name it as a leader."""
        super().kill()
        self._cluster.forget(self._number)

    def stop(self) -> None:
        super().stop()
        self._cluster.forget(self._number)


class Cluster(Kafka):
    """A cluster. ``brokers`` are ordered by node id, from 0. Its methods apply to all of them."""

    def __init__(self, directory: Path, count: int, settings: Mapping[str, object]) -> None:
        super().__init__()
        shared = SharedTree()
        common: dict[str, object] = {**QUICK, **cluster_settings(count), **_QUICK, **settings}
        self.brokers = [
            ClusterNode(
                self,
                node,
                _Node(common | {"node.id": node, "log.dirs": directory / f"broker-{node}"}, shared),
            )
            for node in range(count)
        ]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda node: node.broker.start(), self.brokers))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.brokers if node.bootstrap)

    @property
    def faults(self) -> Faults:
        raise NotImplementedError("faults belong to a broker: use cluster.brokers[0].faults")

    def forget(self, node: int) -> None:
        """Wait until the live brokers have noticed that a broker is gone.

        The admin client is replaced, because it may be connected to that broker.
        """
        self._admin = None
        alive = [other.broker for other in self.brokers if other.broker.alive]
        wait_until(
            lambda: all(_has_forgotten(broker, node) for broker in alive),
            f"the others notice that broker {node} is gone",
        )

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader of a partition, or None while it has none."""
        (described,) = self.admin.topics.describe([topic])
        return next((state.leader for state in described.partitions if state.id == partition), None)

    def in_sync(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the in-sync replicas of a partition."""
        (described,) = self.admin.topics.describe([topic])
        return next(
            (tuple(state.isr) for state in described.partitions if state.id == partition), ()
        )

    def wait_in_sync(self, topic: str, replicas: int, timeout_s: float = 30.0) -> None:
        """Wait until every partition of a topic has this number of replicas in sync."""

        def enough() -> bool:
            (described,) = self.admin.topics.describe([topic])
            return all(len(partition.isr) >= replicas for partition in described.partitions)

        wait_until(enough, f"{replicas} replicas of {topic} are in sync", timeout_s)

    def drop_connections(self) -> None:
        for node in self.brokers:
            node.drop_connections()

    def advance(self, **duration: float) -> None:
        for node in self.brokers:
            if node.broker.alive:
                node.advance(**duration)

    def _timestamp_ms(self) -> int | None:
        return self.brokers[0]._timestamp_ms()

    def kill(self) -> None:
        self._admin = None
        for node in self.brokers:
            node.broker.die()

    def stop(self) -> None:
        self._admin = None
        for node in self.brokers:
            node.broker.stop()

    def start(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(lambda node: node.start(), self.brokers))

    def close(self) -> None:
        super().close()
        for node in self.brokers:
            node.close()


def _has_forgotten(broker: ThreadBroker, node: int) -> bool:
    def is_gone() -> bool:
        image = broker.broker.image
        leaders = {
            state.leader for topic in image.topics.values() for state in topic.states.values()
        }
        return node not in image.brokers and node not in leaders

    return broker.run(is_gone)


@contextmanager
def cluster(
    brokers: int = 3,
    settings: Mapping[str, object] | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
) -> Iterator[Cluster]:
    """Start a cluster. Topics have up to three replicas, and writes need all but one of them."""
    with fresh_directory(directory) as data:
        kafka = Cluster(data, brokers, settings or {})
        try:
            yield kafka
        finally:
            kafka.close()
