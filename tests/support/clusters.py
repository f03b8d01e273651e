"""Clusters for tests: brokers on one real ZooKeeper, as processes or inside the test's own, each
cluster below a chroot of its own.

``ProcessCluster`` is for kills and restarts, ``InProcessCluster`` for looking inside. Both give
node ids from 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millstream.local.broker import LocalBroker
from millstream.local.cluster import cluster_settings
from millstream.local.zookeeper import LocalZooKeeper
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import Closed, RawClient

# Short ticks; sessions long enough that a busy machine does not end them: a killed broker is taken
# for dead after six seconds.
TICK_MS = 100
SESSION_MS = 6000

# Everything that makes a test wait for nothing.
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.fetch.backoff.ms": 100,
}


class _Cluster:
    """What both kinds have in common: asking it things over the wire."""

    def bootstraps(self) -> Sequence[str]:
        """Of the brokers that run."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstraps())

    @contextmanager
    def client(self, node: int | None = None) -> Iterator[RawClient]:
        with RawClient(self.bootstraps()[0] if node is None else self.bootstrap_of(node)) as client:
            yield client

    def bootstrap_of(self, node: int) -> str:
        raise NotImplementedError

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 3,
        *,
        at: Mapping[int, Sequence[int]] | None = None,
        **config: object,
    ) -> bytes:
        """Makes a topic and returns its id, once every broker knows it; ``at`` says which brokers
        have each partition.
        """
        rows = [
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in config.items()
        ]
        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if at else partitions,
            replication_factor=-1 if at else replicas,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
                for index, nodes in (at or {}).items()
            ],
            configs=rows,
        )
        with self.client() as client:
            (made,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
        assert made.error_code == 0, made
        for bootstrap in self.bootstraps():
            wait_until(lambda at=bootstrap: self._knows(at, name), f"{name} at {bootstrap}")  # type: ignore[misc]
        return bytes(made.topic_id)

    def _knows(self, bootstrap: str, name: str) -> bool:
        with RawClient(bootstrap) as client:
            topic = describe(client, name)
            return topic.error_code == 0 and all(row.leader_id >= 0 for row in topic.partitions)

    def leader(self, topic: str, partition: int = 0) -> int:
        """-1 while there is none."""
        try:
            with self.client() as client:
                rows = describe(client, topic).partitions
        except (OSError, Closed):
            return -1
        return next((row.leader_id for row in rows if row.partition_index == partition), -1)

    def in_sync(self, topic: str) -> int:
        """Of its partitions, the smallest number of replicas that are in sync."""
        try:
            with self.client() as client:
                return min(len(row.isr_nodes) for row in describe(client, topic).partitions)
        except (OSError, Closed, ValueError):
            return 0

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Another of its replicas leads from now on, in good order."""
        with self.client() as client:
            rows = describe(client, topic).partitions
            (replicas,) = [row.replica_nodes for row in rows if row.partition_index == partition]
            wanted = [to, *(node for node in replicas if node != to)]
            self.reassign(topic, {partition: wanted})
            election = ElectLeadersRequest(
                topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])]
            )
            answer = client.call(election, 2)
        assert answer.error_code == 0, answer
        for bootstrap in self.bootstraps():
            wait_until(
                lambda at=bootstrap: self._leads(at, topic, partition, to), f"{to} leads {topic}"
            )  # type: ignore[misc]

    def _leads(self, bootstrap: str, topic: str, partition: int, node: int) -> bool:
        with RawClient(bootstrap) as client:
            rows = describe(client, topic).partitions
            return any(row.partition_index == partition and row.leader_id == node for row in rows)

    def reassign(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
        """Begins to move replicas."""
        rows = [
            ReassignablePartition(partition_index=index, replicas=list(nodes))
            for index, nodes in replicas.items()
        ]
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=rows)], timeout_ms=10_000
        )
        with self.client() as client:
            answer = client.call(request, 1)
        codes = [row.error_code for one in answer.responses for row in one.partitions]
        assert (answer.error_code, set(codes)) == (0, {0}), answer

    def coordinator(self, key: str, key_type: int = 0) -> int:
        """The broker that coordinates a group (0) or a transactional id (1), once there is one."""
        found: list[int] = []

        def there() -> bool:
            with self.client() as client:
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
                (row,) = client.call(request, 4).coordinators
            found[:] = [row.node_id]
            return row.error_code == 0

        wait_until(there, f"a coordinator of {key}")
        return found[0]


def describe(client: RawClient, topic: str) -> Any:
    """The topic as Metadata tells it."""
    asked = MetadataRequestTopic(name=topic)
    (found,) = client.call(
        MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12
    ).topics
    return found


class ProcessCluster(_Cluster):
    """Brokers as processes. ``settings``: of all; ``each``: of one node."""

    def __init__(
        self,
        directory: Path,
        zookeeper: LocalZooKeeper,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        each: Callable[[int], Mapping[str, object]] = lambda node: {},
    ) -> None:
        connect = f"{zookeeper.address}/{uuid.uuid4().hex}"
        common: dict[str, object] = {**cluster_settings(count), **QUICK, **(settings or {})}
        self.brokers = [
            LocalBroker(
                directory / f"broker-{node}",
                common | {"node.id": node, "zookeeper.connect": connect} | dict(each(node)),
            )
            for node in range(count)
        ]
        self._turn = -1

    def bootstraps(self) -> Sequence[str]:
        return [broker.bootstrap for broker in self.brokers if broker.running]

    def bootstrap_of(self, node: int) -> str:
        return self.brokers[node].bootstrap

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers:
                broker.spawn()
            for broker in self.brokers:
                broker.wait_ready()
        except BaseException:
            self.kill_all()
            raise
        return self

    def restart(self, *, kill: bool) -> None:
        """The next one in turn, on the same port and data."""
        node = self._turn = (self._turn + 1) % len(self.brokers)
        self.brokers[node].restart(kill=kill)

    def kill_all(self) -> None:
        for broker in self.brokers:
            if broker.running:
                broker.kill()

    def logs(self) -> str:
        return "\n".join(broker.log_file.read_text(errors="replace") for broker in self.brokers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()


class InProcessCluster(_Cluster):
    """Brokers on threads of this process; ``brokers[n].run(...)`` looks inside."""

    def __init__(
        self,
        directory: Path,
        zookeeper: LocalZooKeeper,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        each: Callable[[int], Mapping[str, object]] = lambda node: {},
    ) -> None:
        connect = f"{zookeeper.address}/{uuid.uuid4().hex}"
        common: dict[str, object] = {**cluster_settings(count), **QUICK, **(settings or {})}

        async def coordination() -> ZooKeeperCoordination:
            made = ZooKeeperCoordination(connect, session_timeout_ms=SESSION_MS)
            await made.open(20_000)
            return made

        self.brokers = [
            InProcessBroker(
                common
                | {
                    "node.id": node,
                    "zookeeper.connect": connect,
                    "log.dirs": directory / f"data-{node}",
                }
                | dict(each(node)),
                coordination=coordination,
            )
            for node in range(count)
        ]
        self._open = ExitStack()

    def bootstraps(self) -> Sequence[str]:
        return [broker.bootstrap for broker in self.brokers if broker.alive]

    def bootstrap_of(self, node: int) -> str:
        return self.brokers[node].bootstrap

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for broker in self.brokers:
                stack.enter_context(broker)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Without handing anything over: nobody is left to take it."""

        async def nothing() -> None:
            pass

        for broker in self.brokers:
            if broker.alive:
                broker.broker.parts.member.hand_over = nothing  # type: ignore[method-assign]
        self._open.close()
