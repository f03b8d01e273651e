"""What can be made on a real ZooKeeper can be deleted there: two nodes for each partition, one by
one, and only so many in one write.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.term import ControllerState, Term
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.topics import NewTopic
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.core.config import BrokerConfig
from millstream.core.errors import ErrorCode
from millstream.local.zookeeper import LocalZooKeeper
from millstream.ports.coordination import Create, Delete, Put
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination


async def opened(zookeeper: LocalZooKeeper, chroot: str) -> ZooKeeperCoordination:
    return await ZooKeeperCoordination(
        f"{zookeeper.address}/{chroot}", session_timeout_ms=6000
    ).open(20_000)


async def controller_on(service: ZooKeeperCoordination) -> Controller:
    await service.multi([Create(znodes.CONTROLLER_EPOCH, b"3")])
    node = await service.get(znodes.CONTROLLER_EPOCH)
    assert node is not None
    state, image = ControllerState(service), ClusterImage()
    term = Term(1, 3, node.version, image, now_ms=lambda: 0)
    state.begin(term)
    term.feed.close()  # nobody follows
    for number in (1, 2, 3):
        endpoint = BrokerEndpoint("PLAINTEXT", "h", 9092 + number)
        data = znodes.encode_broker(BrokerRegistration(number, (endpoint,)), now_ms=0)
        image.apply(znodes.broker_path(number), data, number * 10)
    return Controller(state, BrokerConfig({}), new_id=lambda: os.urandom(16))


@pytest.mark.parametrize("topics, partitions", [(1, 6000), (100, 60)])
def test_what_could_be_made_can_be_deleted(
    zookeeper: LocalZooKeeper, topics: int, partitions: int
) -> None:
    async def run() -> None:
        service = await opened(zookeeper, f"deleted-{topics}")
        try:
            controller = await controller_on(service)
            names = [f"topic-{number}" for number in range(topics)]
            made = await controller.create_topics([NewTopic(name, partitions, 3) for name in names])
            assert {outcome.code for outcome in made.values()} == {ErrorCode.NONE}
            image = controller.state.image
            gone = await controller.delete_topics(
                {name: image.topics[name].topic_id for name in names}
            )
            assert {(outcome.code, outcome.message) for outcome in gone.values()} == {
                (ErrorCode.NONE, None)
            }
            assert not image.topics and not await service.children(znodes.TOPICS)
        finally:
            await service.close()

    asyncio.run(run())


def test_a_node_inside_another_that_goes_too_is_deleted_once(zookeeper: LocalZooKeeper) -> None:
    async def run() -> None:
        service = await opened(zookeeper, "nested")
        try:
            await service.multi([Put("/a/b/c/d", b""), Put("/a/e", b""), Put("/f", b"")])
            await service.multi([Delete("/a/b/c/d"), Delete("/a"), Delete("/a/b"), Delete("/none")])
            assert set(await service.load()) == {"/f"}
        finally:
            await service.close()

    asyncio.run(run())
