"""A replica is elected while a full disk interrupts its truncation.

When the truncation is finished, followers learn correctly where the histories diverge.
"""

from __future__ import annotations

import asyncio

import pytest

from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.log_events import ReplicaLogEvents
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.control.image import Change, ClusterImage, TopicImage
from millstream.control.znodes import PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.errors import StorageError
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.ports.clock import SystemClock
from millstream.sim.world.disk import SimDisk, no_space
from millstream.wire.records.batch import Record, build_batch

TP = TopicPartition("orders", 0)
TOPIC_ID = bytes(15) + b"\x01"
HERE, OTHER, THIRD = 1, 2, 3
PATIENCE_S = 120.0


class World:
    """This broker's replica of a partition with three, on a disk that can be full."""

    def __init__(self) -> None:
        self.disk = SimDisk(1)
        self.image = ClusterImage()
        events = ReplicaLogEvents()
        self.logs = LogManager(
            self.disk, ["/a"], config_for=lambda topic: LogConfig(), clock=lambda: 0, events=events
        )
        self.logs.open()
        self.logs.identify("cluster", HERE)
        self.housekeeping = Housekeeping(self.logs)
        config = BrokerConfig(static={})
        self.replicas = ReplicaManager(
            HERE,
            self.image,
            config,
            self.logs,
            self.housekeeping,
            SystemClock(),
            log_configs=LogConfigs(self.image, config),
        )
        events.connect(self.replicas)

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[TP]

    async def state(
        self, leader: int, leader_epoch: int, isr: tuple[int, ...] = (HERE, OTHER, THIRD)
    ) -> None:
        topic = TopicImage(TP.topic, TOPIC_ID, {0: (HERE, OTHER, THIRD)})
        topic.states[0] = PartitionState(leader, leader_epoch, isr, partition_epoch=leader_epoch)
        self.image.topics[TP.topic] = topic
        await self.replicas.hosting.follow([Change(TP.topic)])

    async def led(self) -> None:
        """Lead with ten records, three of them committed."""
        await self.state(HERE, 1)
        for _ in range(10):
            self.append()
        self.log.advance_high_watermark(3)

    def append(self) -> None:
        raw = build_batch([Record(0, 0, None, b"v")])
        self.replicas.leader(*TP).append(memoryview(bytearray(raw)), now_ms=0, needs_all=False)


@pytest.mark.parametrize("refused", range(5))
def test_a_leader_epoch_survives_an_earlier_truncation(refused: int) -> None:
    async def story() -> None:
        world = World()
        await world.led()
        await world.state(OTHER, 2)
        taken = 0

        def fault(what: str, path: str) -> OSError | None:
            nonlocal taken
            taken += what != "read"
            return no_space(path) if taken > refused else None

        world.disk.fault = fault
        with pytest.raises(StorageError):
            world.log.truncate_to(8)  # as the leader of epoch 2 says
        await world.state(HERE, 3)
        world.disk.fault = lambda what, path: None
        running = asyncio.create_task(world.housekeeping.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while world.log.failed is not None:
                    world.logs.wake()
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert world.log.log_end_offset == 8
        # A follower with records of epoch 2 keeps those before 8. Without the entry it would start
        # over at the high watermark, 3.
        assert world.log.epochs.end_offset(2, world.log.log_end_offset) == (1, 8)
        followers = world.replicas.leader(*TP).followers
        assert followers is not None
        assert followers.epoch_start == 8

    asyncio.run(story())
