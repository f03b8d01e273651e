"""``with millstream.testing.cluster(3) as kafka:``: several brokers on threads of this process, without ZooKeeper or Java.

The brokers are real, and so is what they do with each other: replication, elections, fail-over. What they agree through is a tree
in memory instead of ZooKeeper's (``coordination.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from millstream.local.cluster import cluster_settings
from millstream.testing.coordination import SharedTree, TreeSession
from millstream.testing.faults import Faults
from millstream.testing.kafka import Kafka, ThreadKafka
from millstream.testing.start import QUICK, fresh_directory
from millstream.testing.thread_broker import ThreadBroker
from millstream.testing.waiting import wait_until

_QUICK: dict[str, object] = {"replica.fetch.backoff.ms": 50, "controlled.shutdown.enable": "true"}


class _Node(ThreadBroker):
    """A broker of a cluster. Its session ends with it."""

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
    """One broker of a cluster."""

    def __init__(self, cluster: Cluster, number: int, broker: ThreadBroker) -> None:
        super().__init__(broker)
        self._cluster = cluster
        self._number = number

    def kill(self) -> None:
        """Returns when the others have noticed: nobody is told any more that this broker leads anything."""
        super().kill()
        self._cluster.forget(self._number)

    def stop(self) -> None:
        super().stop()
        self._cluster.forget(self._number)


class Cluster(Kafka):
    """Its ``brokers`` are in the order of their node ids, from 0. What is said of one broker is said of all."""

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
            list(pool.map(lambda one: one.broker.start(), self.brokers))

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.brokers if one.bootstrap)

    @property
    def faults(self) -> Faults:
        raise NotImplementedError("faults are those of one broker: cluster.brokers[0].faults")

    def forget(self, node: int) -> None:
        """Wait until the brokers that live have noticed that one does not; ours may have asked that one last."""
        self._admin = None
        living = [one.broker for one in self.brokers if one.broker.alive]
        wait_until(lambda: all(_has_forgotten(one, node) for one in living), f"broker {node} is missed")

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The node that leads a partition; None while nobody does."""
        (found,) = self.admin.topics.describe([topic])
        return next((one.leader for one in found.partitions if one.id == partition), None)

    def in_sync(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The nodes that are in sync."""
        (found,) = self.admin.topics.describe([topic])
        return next((tuple(one.isr) for one in found.partitions if one.id == partition), ())

    def wait_in_sync(self, topic: str, replicas: int, timeout_s: float = 30.0) -> None:
        """Return when every partition of a topic has so many replicas in sync."""

        def enough() -> bool:
            (found,) = self.admin.topics.describe([topic])
            return all(len(one.isr) >= replicas for one in found.partitions)

        wait_until(enough, f"{replicas} replicas of {topic} are in sync", timeout_s)

    def drop_connections(self) -> None:
        for one in self.brokers:
            one.drop_connections()

    def advance(self, **duration: float) -> None:
        for one in self.brokers:
            if one.broker.alive:
                one.advance(**duration)

    def _timestamp_ms(self) -> int | None:
        return self.brokers[0]._timestamp_ms()

    def kill(self) -> None:
        self._admin = None
        for one in self.brokers:
            one.broker.die()

    def stop(self) -> None:
        self._admin = None
        for one in self.brokers:
            one.broker.stop()

    def start(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(lambda one: one.start(), self.brokers))

    def close(self) -> None:
        super().close()
        for one in self.brokers:
            one.close()


def _has_forgotten(broker: ThreadBroker, node: int) -> bool:
    def look() -> bool:
        image = broker.broker.image
        leaders = {state.leader for topic in image.topics.values() for state in topic.states.values()}
        return node not in image.brokers and node not in leaders

    return broker.run(look)


@contextmanager
def cluster(
    brokers: int = 3,
    settings: Mapping[str, object] | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
) -> Iterator[Cluster]:
    """A cluster; topics have three replicas where there are brokers for them, and writes are on two."""
    with fresh_directory(directory) as data:
        kafka = Cluster(data, brokers, settings or {})
        try:
            yield kafka
        finally:
            kafka.close()
