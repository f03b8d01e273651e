"""The actions of an operator: elections, reassignments, and emptying a broker."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

from millstream.sim.clients.channel import Client, Lost, NotSent
from millstream.sim.world.machines import World
from millstream.sim.world.zookeeper import SimZooKeeper
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest
from millstream.wire.messages.metadata import MetadataRequest

Partition = tuple[str, int]


class Operator:
    """Sends its requests to any broker.

    Their outcome matters only when a broker is to be removed.
    """

    def __init__(self, world: World, client: Client, replication: int) -> None:
        self.world = world
        self.replication = replication
        self._client = client

    async def elect_preferred(self) -> None:
        try:
            election = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=5000)
            await self._client.request_any(election, 2)
            self.world.activity["elections requested"] += 1
        except (NotSent, Lost):
            pass

    async def reassign(self, dice: random.Random, nodes: Sequence[int]) -> None:
        """Reassign a few partitions to any of these brokers.

        Often it changes the targets at once, and sometimes it cancels the reassignments in
        progress.
        """
        current = await self._replicas()
        chosen = dice.sample(sorted(current), min(len(current), dice.randint(1, 4)))
        for _ in range(dice.choice((1, 1, 2, 3))):
            targets: dict[Partition, list[int] | None] = {}
            for partition in chosen:
                if len(nodes) >= self.replication:
                    targets[partition] = dice.sample(list(nodes), self.replication)
                if dice.random() < 0.15:
                    targets[partition] = None
            if targets and await self._alter(targets):
                self.world.activity["reassignments"] += len(targets)

    async def drain(self, node: int, others: Sequence[int], *, until: asyncio.Event) -> bool:
        """Reassign all partitions of a broker to others. Return whether that is done in time."""
        for _ in range(40):
            if until.is_set():
                return False
            current = await self._replicas()
            held = {
                partition: replicas for partition, replicas in current.items() if node in replicas
            }
            if current and not held:
                return True
            targets: dict[Partition, list[int] | None] = {}
            for partition, replicas in held.items():
                kept = [replica for replica in replicas if replica != node and replica in others]
                added = [other for other in others if other not in kept]
                targets[partition] = (kept + added)[: self.replication]
            await self._alter(targets)
            await asyncio.sleep(1.0)
        return False

    def hosts_nothing(self, node: int, zookeeper: SimZooKeeper) -> bool:
        """Return whether a broker has no replica, according to ZooKeeper."""
        topics = [
            json.loads(znode.data)["partitions"]
            for path, znode in zookeeper.tree.load().items()
            if path.startswith("/brokers/topics/") and path.count("/") == 3
        ]
        return not any(
            node in replicas for partitions in topics for replicas in partitions.values()
        )

    async def _alter(self, targets: dict[Partition, list[int] | None]) -> bool:
        topics: dict[str, list[ReassignablePartition]] = {}
        for (topic, index), replicas in targets.items():
            row = ReassignablePartition(partition_index=index, replicas=replicas)
            topics.setdefault(topic, []).append(row)
        rows = [
            ReassignableTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ]
        self.world.log("operator", f"reassigns {targets}")
        try:
            response = await self._client.request_any(
                AlterPartitionReassignmentsRequest(timeout_ms=5000, topics=rows), 0
            )
        except (NotSent, Lost):
            return False
        return not response.error_code

    async def _replicas(self) -> dict[Partition, list[int]]:
        try:
            response = await self._client.request_any(MetadataRequest(topics=None), 9)
        except (NotSent, Lost):
            return {}
        return {
            (topic.name, row.partition_index): list(row.replica_nodes)
            for topic in response.topics
            for row in topic.partitions
        }
