"""The controller's changes: durable before visible, run to their end, never half applied."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from millstream.cluster.controller.changes import PRODUCER_ID_BLOCK, Outcome
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.membership.member import ClusterMember
from millstream.control import znodes
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage
from millstream.control.topics import NewTopic
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.clock import SystemClock
from millstream.ports.coordination import Put
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.ports.network import SocketNetwork
from millstream.sim.world.disk import SimDisk, no_space

PATH = "/data/store"
CLUSTER = "cluster"


class SlowDisk(SimDisk):
    """A disk whose syncs wait until they are released, so that a test can act during a write."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()
        self.waiting = threading.Event()
        self.makedirs("/data")
        self.sync_dir("/")
        self.fault = self._slowly

    def _slowly(self, operation: str, path: str) -> OSError | None:
        if operation == "sync" and not self.free.is_set():
            self.waiting.set()
            assert self.free.wait(20)
        return None


class World:
    """A single broker with its own store: its image, and the changes it followed."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SlowDisk()
        self.image = ClusterImage()
        self.followed: list[list[str]] = []
        self.settings_changed = 0
        self.all_online = True
        self._ids = 0
        self._running: list[asyncio.Task[None]] = []

    async def open(self) -> World:
        self.store = EmbeddedCoordination(self.disk, PATH)
        await self.store.load()
        await self.store.multi([Put(znodes.CLUSTER_ID, znodes.encode_cluster_id(CLUSTER))])
        self.member = ClusterMember(
            BrokerRegistration(0, (BrokerEndpoint("PLAINTEXT", "here", 1),)),
            "PLAINTEXT",
            self.image,
            BrokerConfig.from_texts({"num.partitions": "2"}),
            self.store,
            cluster_id=CLUSTER,
            network=SocketNetwork(),
            clock=SystemClock(),
            new_id=self._new_id,
            on_changes=self._on_changes,
            offline_replicas=tuple,
            full_replicas=tuple,
            all_directories_online=lambda: self.all_online,
        )
        await self.member.join(self._run, alone=True, timeout_s=0)
        self.controller = self.member.controller
        self.followed.clear()
        self.settings_changed = 0
        return self

    def _run(self, name: str, loop: Any) -> None:
        self._running.append(asyncio.get_running_loop().create_task(loop))

    def _new_id(self) -> bytes:
        self._ids += 1
        return bytes([self._ids] * 16)

    async def _on_changes(self, changes: Sequence[Change]) -> None:
        topics = list(dict.fromkeys(change.topic for change in changes if change.topic))
        if topics:
            self.followed.append(topics)
        self.settings_changed += NOT_A_TOPIC in changes

    async def create(self, *names: str, **more: Any) -> dict[str, Outcome]:
        return await self.controller.create_topics(
            [NewTopic(name, -1, -1) for name in names], **more
        )

    async def delete(self, *names: str) -> dict[str, Outcome]:
        return await self.controller.delete_topics(
            {name: self.image.topics[name].topic_id for name in names}
        )


def after_a_restart(disk: SimDisk) -> ClusterImage:
    async def load() -> ClusterImage:
        disk.kill()
        return (await World(disk).open()).image

    return asyncio.run(load())


def test_topics_are_durable_before_they_are_published() -> None:
    async def test() -> World:
        world = await World().open()
        outcomes = await world.create("a", "b", "bad name")
        assert {name: outcome.code for name, outcome in outcomes.items()} == {
            "a": ErrorCode.NONE,
            "b": ErrorCode.NONE,
            "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert world.followed == [["a", "b"]]
        outcomes = await world.delete("a")
        assert outcomes["a"].code is ErrorCode.NONE
        assert world.followed == [["a", "b"], ["a"]]
        return world

    world = asyncio.run(test())
    found = after_a_restart(world.disk)
    assert found == world.image and list(found.topics) == ["b"]


def test_too_many_partitions_reject_all_topics_of_a_request() -> None:
    async def test() -> World:
        world = await World().open()
        topics = [NewTopic("many", 10_000, 1), NewTopic("one", 1, 1)]
        outcomes = await world.controller.create_topics(topics)
        assert {outcome.code for outcome in outcomes.values()} == {ErrorCode.POLICY_VIOLATION}
        assert not world.image.topics
        return world

    asyncio.run(test())


def test_validate_only_changes_nothing() -> None:
    async def test() -> World:
        world = await World().open()
        assert (await world.create("a", validate_only=True))["a"].code is ErrorCode.NONE
        await world.create("b")
        assert (
            await world.controller.grow_topic("b", 5, None, validate_only=True)
        ).code is ErrorCode.NONE
        return world

    world = asyncio.run(test())
    assert after_a_restart(world.disk) == world.image
    assert world.image.topics["b"].partition_count == 2 and list(world.image.topics) == ["b"]


def test_a_change_finishes_after_its_client_has_disconnected() -> None:
    """A client creates a topic and disconnects: store and image agree, even after more changes."""

    async def test() -> World:
        disk = SlowDisk()
        world = await World(disk).open()
        disk.free.clear()
        asking = asyncio.ensure_future(world.create("first"))
        assert await asyncio.to_thread(disk.waiting.wait, 20)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        second = asyncio.ensure_future(world.create("second"))
        await asyncio.sleep(0)
        disk.free.set()
        assert (await second)["second"].code is ErrorCode.NONE
        assert list(world.image.topics) == ["first", "second"]
        assert world.followed == [["first"], ["second"]]
        await world.controller.state.close()
        return world

    world = asyncio.run(test())
    assert after_a_restart(world.disk) == world.image


def test_close_waits_for_the_change_in_progress() -> None:
    async def test() -> None:
        disk = SlowDisk()
        world = await World(disk).open()
        disk.free.clear()
        asking = asyncio.ensure_future(world.create("first"))
        assert await asyncio.to_thread(disk.waiting.wait, 20)
        closing = asyncio.ensure_future(world.controller.state.close())
        await asyncio.sleep(0)
        assert not closing.done()
        disk.free.set()
        await closing
        assert list(world.image.topics) == ["first"]
        await asking

    asyncio.run(test())


def test_failed_store_write_is_reported_and_changes_nothing() -> None:
    async def test() -> World:
        world = await World().open()
        await world.create("there")
        healthy = world.disk.fault
        world.disk.fault = lambda op, path: no_space(path) if op == "append" else None
        assert (await world.create("a"))["a"].code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await world.delete("there"))["there"].code is ErrorCode.KAFKA_STORAGE_ERROR
        for change in (
            world.controller.set_topic_config("there", lambda image: {"retention.ms": "1"}),
            world.controller.allocate_producer_ids(0),
        ):
            with pytest.raises(ApiError) as error:
                await change
            assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await world.controller.grow_topic("there", 9, None, validate_only=False)).code is (
            ErrorCode.KAFKA_STORAGE_ERROR
        )
        assert list(world.image.topics) == ["there"] and world.followed == [["there"]]
        world.disk.fault = healthy
        assert (await world.create("b"))["b"].code is ErrorCode.NONE
        return world

    world = asyncio.run(test())
    assert after_a_restart(world.disk) == world.image


def test_concurrent_changes_of_settings_are_all_kept() -> None:
    async def test() -> None:
        world = await World().open()
        await world.create("t")

        def adding(name: str, value: str):
            return lambda image: {**image.topic_configs.get("t", {}), name: value}

        await asyncio.gather(
            world.controller.set_topic_config("t", adding("retention.ms", "1")),
            world.controller.set_topic_config("t", adding("segment.ms", "2")),
            world.controller.set_topic_config("t", adding("flush.ms", "3")),
        )
        assert world.image.topic_configs["t"] == {
            "retention.ms": "1",
            "segment.ms": "2",
            "flush.ms": "3",
        }

    asyncio.run(test())


def test_settings_of_a_deleted_topic_are_rejected() -> None:
    async def test() -> None:
        world = await World().open()
        with pytest.raises(ApiError) as error:
            await world.controller.set_topic_config("t", lambda image: {})
        assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(test())


def test_broker_settings_take_effect_when_they_are_durable() -> None:
    async def test() -> World:
        world = await World().open()
        await world.controller.set_broker_config("0", lambda image: {"log.retention.ms": "5"})
        assert world.settings_changed == 1
        return world

    world = asyncio.run(test())
    assert after_a_restart(world.disk).broker_configs == {"0": {"log.retention.ms": "5"}}


def test_features_change_together_or_not_at_all() -> None:
    async def test() -> None:
        world = await World().open()
        updates = [("group.version", 0, 1), ("no.such.feature", 1, 1)]
        outcomes = await world.controller.update_features(updates, validate_only=False)
        assert outcomes["no.such.feature"].code is ErrorCode.INVALID_UPDATE_VERSION
        assert world.image.feature_levels == {}

    asyncio.run(test())


def test_a_producer_id_is_never_allocated_twice() -> None:
    """Not by concurrent requests, not after a crash, not after a failed allocation."""
    given: list[int] = []

    async def take(disk: SimDisk, count: int) -> None:
        world = await World(disk).open()
        ids = ProducerIds(lambda: world.controller.allocate_producer_ids(0))
        given.extend(await asyncio.gather(*(ids.next_id() for _ in range(count))))
        healthy = disk.fault
        disk.fault = lambda op, path: no_space(path) if op == "append" else None
        rest = [ids.next_id() for _ in range(PRODUCER_ID_BLOCK)]
        results = await asyncio.gather(*rest, return_exceptions=True)
        given.extend(result for result in results if isinstance(result, int))
        assert any(isinstance(result, ApiError) for result in results)
        disk.fault = healthy
        given.append(await ids.next_id())

    disk = SlowDisk()
    for _ in range(3):
        asyncio.run(take(disk, 30))
        disk.crash()
    assert len(given) > 3 * PRODUCER_ID_BLOCK and len(set(given)) == len(given)


def test_a_deletion_removes_only_the_topic_with_the_given_id() -> None:
    async def test() -> None:
        world = await World().open()
        await world.create("x", "y")
        old = world.image.topics["x"].topic_id
        await world.delete("x")
        await world.create("x")
        outcomes = await world.controller.delete_topics(
            {"x": old, "y": world.image.topics["y"].topic_id, "gone": old}
        )
        assert {name: outcome.code for name, outcome in outcomes.items()} == {
            "x": ErrorCode.UNKNOWN_TOPIC_ID,
            "y": ErrorCode.NONE,
            "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert list(world.image.topics) == ["x"]

    asyncio.run(test())


def test_deletion_record_stays_until_every_live_broker_knows_it() -> None:
    """A broker without replicas may coordinate groups that read the topic.

    It may apply all changes that it has missed at once.
    """

    async def test() -> None:
        world = await World().open()
        await world.create("x")
        doomed = world.image.topics["x"].topic_id
        await world.delete("x")
        brokers = world.member.state.image.brokers
        brokers[1] = BrokerRegistration(1, (BrokerEndpoint("PLAINTEXT", "there", 1),))
        await world.member.housekeeping.drop_deletion_records()
        assert world.image.being_deleted == {"x": [doomed]}
        del brokers[1]
        await world.member.housekeeping.drop_deletion_records()
        assert world.image.being_deleted == {}

    asyncio.run(test())


def test_deletion_record_stays_while_a_directory_is_offline() -> None:
    async def test() -> None:
        world = await World().open()
        await world.create("x")
        doomed = world.image.topics["x"].topic_id
        world.all_online = False
        await world.delete("x")
        await world.member.housekeeping.drop_deletion_records()
        assert world.image.being_deleted == {"x": [doomed]}
        world.all_online = True
        for _ in range(1000):
            if world.member.partitions.unavailable.has_all_directories(0):
                break  # the broker has reported it
            await asyncio.sleep(0.01)
        await world.member.housekeeping.drop_deletion_records()
        assert world.image.being_deleted == {}

    asyncio.run(test())
