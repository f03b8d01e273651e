"""What an operator does to a running cluster: elections by wish, moves of partitions, and taking them from a broker that has to go."""

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
    """Asks any broker; whether it was carried out interests nobody, except where a broker is to go."""

    def __init__(self, world: World, client: Client, replication: int) -> None:
        self.world = world
        self.replication = replication
        self._client = client

    async def elect_preferred(self) -> None:
        try:
            request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=5000)
            await self._client._ask_any(request, 2)
            self.world.activity["elections asked for"] += 1
        except (NotSent, Lost):
            pass

    async def reassign(self, dice: random.Random, nodes: Sequence[int]) -> None:
        """A few partitions to any of these brokers; often it changes its mind at once, and now and then what is under way is called off."""
        found = await self._replicas()
        chosen = dice.sample(sorted(found), min(len(found), dice.randint(1, 4)))
        for _ in range(dice.choice((1, 1, 2, 3))):
            wishes: dict[Partition, list[int] | None] = {}
            for partition in chosen:
                if len(nodes) >= self.replication:
                    wishes[partition] = dice.sample(list(nodes), self.replication)
                if dice.random() < 0.15:
                    wishes[partition] = None
            if wishes and await self._alter(wishes):
                self.world.activity["moves"] += len(wishes)

    async def move_away(self, node: int, others: Sequence[int], *, until: asyncio.Event) -> bool:
        """All partitions that a broker has go to others; whether that is done in time."""
        for _ in range(40):
            if until.is_set():
                return False
            found = await self._replicas()
            held = {partition: replicas for partition, replicas in found.items() if node in replicas}
            if found and not held:
                return True
            wishes: dict[Partition, list[int] | None] = {}
            for partition, replicas in held.items():
                rest = [one for one in replicas if one != node and one in others]
                wishes[partition] = (rest + [one for one in others if one not in rest])[: self.replication]
            await self._alter(wishes)
            await asyncio.sleep(1.0)
        return False

    def hosts_nothing(self, node: int, zookeeper: SimZooKeeper) -> bool:
        """The truth, not what some broker believes."""
        topics = [
            json.loads(found.data)["partitions"]
            for path, found in zookeeper.tree.load().items()
            if path.startswith("/brokers/topics/") and path.count("/") == 3
        ]
        return not any(node in replicas for partitions in topics for replicas in partitions.values())

    async def _alter(self, wishes: dict[Partition, list[int] | None]) -> bool:
        topics: dict[str, list[ReassignablePartition]] = {}
        for (topic, index), replicas in wishes.items():
            row = ReassignablePartition(partition_index=index, replicas=replicas)
            topics.setdefault(topic, []).append(row)
        rows = [ReassignableTopic(name=topic, partitions=found) for topic, found in topics.items()]
        self.world.tell("operator", f"moves {wishes}")
        try:
            answer = await self._client._ask_any(
                AlterPartitionReassignmentsRequest(timeout_ms=5000, topics=rows), 0
            )
        except (NotSent, Lost):
            return False
        return not answer.error_code

    async def _replicas(self) -> dict[Partition, list[int]]:
        try:
            answer = await self._client._ask_any(MetadataRequest(topics=None), 9)
        except (NotSent, Lost):
            return {}
        return {
            (topic.name, row.partition_index): list(row.replica_nodes)
            for topic in answer.topics
            for row in topic.partitions
        }
