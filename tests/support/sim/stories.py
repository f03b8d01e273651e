"""A small cluster for schedules that are told step by step: who stops, who is cut off, and what
everybody must have by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from millstream.cluster.replicas.partition import Partition
from millstream.ports.coordination import Coordination
from millstream.sim import run
from millstream.sim.broker import SimBroker
from millstream.sim.checks.history import OK
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.observe import partitions_of, replica
from millstream.sim.checks.state_checks import Replica, acknowledged_records_survive, replicas_agree
from millstream.sim.clients.channel import Client
from millstream.sim.clients.producers import Producer
from millstream.sim.world.machines import Process, World
from millstream.sim.world.zookeeper import HOST, SimCoordination, SimZooKeeper
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
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest

KEY = "data-0"
CONTROLLER = 9  # a broker without replicas, so that nobody waits for a new controller
_STEP_S = 0.000_02
_PATIENCE_S = 60.0


class Worst:
    """Chance that keeps only what was synced."""

    def choice(self, rows: Any) -> Any:
        return rows[0]

    def randint(self, low: int, high: int) -> int:
        return low

    def random(self) -> float:
        return 0.0


class Story:
    """One partition, ``KEY``, with these replicas, the first of which leads."""

    replicas: ClassVar[tuple[int, ...]] = (1, 2, 3)
    others: ClassVar[tuple[int, ...]] = ()  # brokers without a replica at first
    settings: ClassVar[Mapping[str, object]] = {}
    configs: ClassVar[Mapping[str, object]] = {}

    def __init__(self, world: World) -> None:
        self.world = world
        self.zookeeper = SimZooKeeper(world)
        settings = {
            "zookeeper.connect": f"{HOST}:2181",
            "replica.lag.time.max.ms": 30_000,
            "auto.leader.rebalance.enable": "false",
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.cleaner.backoff.ms": 1000,
            "replica.high.watermark.checkpoint.interval.ms": 1000,
        } | dict(self.settings)
        self.brokers = {
            node: SimBroker(world, node, settings, coordination=self._coordination)
            for node in (CONTROLLER, *self.replicas, *self.others)
        }
        addresses = [broker.address for broker in self.brokers.values()]
        self.client = Client(world.process("client"), "client", addresses)
        self.acknowledged: list[tuple[str, int, str]] = []

    async def _coordination(self, process: Process) -> Coordination:
        return await SimCoordination(self.zookeeper, process, session_timeout_ms=6000).open()

    def too_little(self) -> list[str]:
        return []

    async def run(self) -> list[Violation]:
        for broker in self.brokers.values():
            await broker.start()
        await self.create_topic()
        return await self.tell()

    async def tell(self) -> list[Violation]:
        raise NotImplementedError

    async def create_topic(self, *, away: int | None = None) -> None:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(self.replicas))
        row = CreatableTopic(
            name="data",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[CreatableTopicConfig(name=n, value=str(v)) for n, v in self.configs.items()],
        )
        answer = await self.client.request_any(
            CreateTopicsRequest(topics=[row], timeout_ms=5000), 5
        )
        assert answer.topics[0].error_code == 0
        await self.until(lambda: all(self.has(node) for node in self.replicas if node != away))

    async def delete_topic(self) -> None:
        request = DeleteTopicsRequest(topic_names=["data"], timeout_ms=5000)
        answer = await self.client.request_any(request, 5)
        assert answer.responses[0].error_code == 0
        self.client.forget_leader("data", 0)

    async def delete_records(self, offset: int) -> None:
        row = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="data", partitions=[row])], timeout_ms=5000
        )
        answer = await self.client.request(await self.client.leader("data", 0), request, 2)
        assert answer.topics[0].partitions[0].error_code == 0

    async def reassign(self, replicas: list[int] | None) -> None:
        """None to call a move off."""
        row = ReassignablePartition(partition_index=0, replicas=replicas)
        topic = ReassignableTopic(name="data", partitions=[row])
        request = AlterPartitionReassignmentsRequest(timeout_ms=5000, topics=[topic])
        answer = await self.client.request_any(request, 0)
        assert answer.responses[0].partitions[0].error_code == 0

    # ---- looking ----

    def has(self, node: int) -> bool:
        return any(
            str(p.tp) == KEY and p.log is not None for p in partitions_of(self.brokers[node])
        )

    def partition(self, node: int) -> Partition:
        return next(p for p in partitions_of(self.brokers[node]) if str(p.tp) == KEY)

    def end(self, node: int) -> int:
        return self.partition(node).online_log.log_end_offset

    def high_watermark(self, node: int) -> int:
        return self.partition(node).online_log.high_watermark

    def leads(self, node: int) -> bool:
        return self.has(node) and self.partition(node).leader == node

    def log(self, node: int) -> Replica:
        return replica(node, self.partition(node).online_log)

    async def until(self, holds: Callable[[], bool], *, step_s: float = 0.01) -> None:
        """As soon as it holds; the story is over where it never does."""
        limit = self.world.scheduler.now + _PATIENCE_S
        while not holds():
            assert self.world.scheduler.now < limit, "what the story waits for does not happen"
            await asyncio.sleep(step_s)

    async def at_once_when(self, holds: Callable[[], bool]) -> None:
        """Before anything that takes a message can follow."""
        await self.until(holds, step_s=_STEP_S)

    # ---- doing ----

    async def producer(self) -> Producer:
        made = Producer(self.client)
        await made.init()
        return made

    async def send(self, producer: Producer, value: str) -> int:
        (batch,) = await producer.deliver([(KEY, [value])])
        assert batch.outcome == OK and batch.offset is not None
        self.acknowledged.append((KEY, batch.offset, value))
        return batch.offset

    def expire(self, node: int) -> None:
        """ZooKeeper notices at once that it is gone."""
        for number, session in list(self.zookeeper.sessions.items()):
            if session.client_name.startswith(f"broker-{node}#"):
                self.zookeeper.expire(number)

    def kill(self, node: int) -> None:
        self.brokers[node].kill()
        self.expire(node)

    def cut(self, source: int, target: int) -> None:
        self.world.network.cut(f"broker-{source}", f"broker-{target}")

    def judged(self, leader: int) -> list[Violation]:
        """What was acknowledged is on the leader, and who is there has the same."""
        logs = [self.log(node) for node in self.replicas if self.has(node)]
        return [
            *acknowledged_records_survive(self.acknowledged, {KEY: self.log(leader)}),
            *replicas_agree({KEY: logs}),
        ]


def play(story: type[Story], seed: int = 1, *, trace: bool = False) -> list[str]:
    """The kinds of violations that a story ends with; errors of the run are errors of the test."""
    world = World(seed, trace=trace)
    result = run._run(world, story.__name__, story(world))  # type: ignore[arg-type]
    assert not result.errors, "\n".join(result.errors)
    return [violation.kind for violation in result.violations]
