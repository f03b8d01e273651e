"""Shared by the tests of the controller: a term on an embedded store, with three brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState, Term
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.topics import state_write
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Create
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.sim.world.disk import SimDisk

ID = b"t" * 16
T0 = TopicPartition("t", 0)


def broker(node: int, epoch: int = 0) -> BrokerRegistration:
    return BrokerRegistration(
        node, (BrokerEndpoint("PLAINTEXT", "h", 9092 + node),), epoch=epoch or node * 10
    )


class World:
    """A controller of epoch 3 with brokers 1, 2, 3 and a partition t-0 on all of them, led by 1."""

    async def open(self, *, unclean: bool = False, state: PartitionState | None = None) -> World:
        disk = SimDisk()
        disk.makedirs("/d")
        self.store = EmbeddedCoordination(disk, "/d/store")
        await self.store.load()
        await self.store.multi([Create(znodes.CONTROLLER_EPOCH, b"3")])
        self.state = ControllerState(self.store)
        image = ClusterImage()
        self.term = Term(1, 3, 0, image, now_ms=lambda: 0)
        self.state.begin(self.term)
        self.partitions = PartitionControl(self.state, unclean=lambda image, topic: unclean)
        for node in (1, 2, 3):
            data = znodes.encode_broker(broker(node), now_ms=0)
            image.apply(znodes.broker_path(node), data, node * 10)
        await self.state.commit([(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (1, 2, 3)}))])
        await self.state.commit([state_write("t", 0, state or PartitionState(1, 5, (1, 2, 3)))])
        return self

    @property
    def now(self) -> PartitionState:
        """The state in the image, which must be the state in the store."""
        state = self.state.image.topics["t"].states[0]
        return state

    async def durable(self) -> PartitionState:
        node = await self.store.get(znodes.partition_state_path("t", 0))
        assert node is not None
        return znodes.decode_partition_state(node.data, node.version)

    async def registered(self, *brokers: BrokerRegistration) -> None:
        await self.partitions.brokers.brokers_changed(
            {registration.node_id: registration for registration in brokers}
        )

    async def propose(self, *isr: tuple[int, int], node=1, epoch=5, version=0, topic=ID) -> object:
        request = IsrRequest(topic, 0, epoch, version, tuple(isr))
        outcomes = await self.partitions.isr.alter_partitions(node, node * 10, [request])
        return outcomes[topic, 0]


def on(test: Callable[[World], Awaitable[None]], **more: object) -> None:
    async def run() -> None:
        world = await World().open(**more)  # type: ignore[arg-type]
        await test(world)
        if "t" in world.state.image.topics:
            assert await world.durable() == world.now

    asyncio.run(run())
