"""The view that group shards have of the cluster: topics, and the racks of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.handlers import offset_fetch
from millstream.cluster.coordinators import host as coordinator_host
from millstream.cluster.coordinators.groups import GroupDriver
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, TopicImage
from millstream.core.decisions import Decision, Reply
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.groups.shard_state import GroupContext
from millstream.ports.clock import SystemClock
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from support.cluster.host_world import FaultyPartition, new_log, until

ORDERS = b"orders".ljust(16, b"1")
ANEW = b"orders".ljust(16, b"2")


class Topics:
    """No internal topic, or one with this number of partitions."""

    def __init__(self, partitions: int = 0) -> None:
        self._partitions = partitions

    def partitions(self, name: str) -> int:
        return self._partitions


def driver_of(image: ClusterImage, racks: dict[int, str], partitions: int = 0) -> GroupDriver:
    topics: Any = Topics(partitions)
    return GroupDriver(
        topics,
        image,
        SystemClock(),
        GroupSettings(),
        lambda: "id",
        lambda: 1_048_588,
        lambda: racks,
    )


def image_of(*replicas: tuple[int, ...]) -> ClusterImage:
    image = ClusterImage()
    image.topics["orders"] = TopicImage("orders", ORDERS, dict(enumerate(replicas)))
    return image


def run(story: Callable[[], Any]) -> None:
    asyncio.run(story())


def test_partitions_have_the_racks_of_their_replicas() -> None:
    async def story() -> None:
        driver = driver_of(image_of((1, 2), (2, 3), (3,), (4,)), {1: "west", 2: "east", 3: "east"})
        racks = [driver.topics.racks_of("orders", index) for index in range(5)]
        assert racks == [("east", "west"), ("east", "east"), ("east",), (), ()]

    run(story)


def test_without_racks_the_view_has_none() -> None:
    async def story() -> None:
        driver = driver_of(image_of((1,)), {})
        assert driver.topics.racks_of("orders", 0) == ()
        assert driver.topics.topics["orders"].racks == ()

    run(story)


def test_every_change_brings_a_new_view() -> None:
    async def story() -> None:
        image, racks = image_of((1,)), {1: "west"}
        driver = driver_of(image, racks)
        before = driver.topics
        image.topics["orders"].replicas[1] = (1,)
        racks[1] = "east"
        driver.topics_changed([Change("orders"), NOT_A_TOPIC])
        assert before.partition_count("orders") == 1
        assert driver.topics.partition_count("orders") == 2
        assert driver.topics.racks_of("orders", 1) == ("east",)
        assert driver.topics.version == before.version + 1

    run(story)


def test_leaders_and_isrs_are_not_part_of_the_view() -> None:
    async def story() -> None:
        image = image_of((1,))
        driver = driver_of(image, {1: "west"})
        before = driver.topics
        image.topics["unseen"] = TopicImage("unseen", ANEW, {0: (1,)})
        driver.topics_changed([Change("orders", 0)])  # examines no topic
        driver.topics_changed(
            [Change("orders"), NOT_A_TOPIC]
        )  # a setting of the topic, and one of brokers
        assert driver.topics is before

    run(story)


def test_topics_are_created_and_deleted_one_by_one() -> None:
    async def story() -> None:
        image = image_of((1,))
        driver = driver_of(image, {1: "west"})
        known = driver.topics.topics["orders"]
        image.topics["more"] = TopicImage("more", ANEW, {0: (1,)})
        driver.topics_changed([Change("more")])
        assert driver.topics.racks_of("more", 0) == ("west",)
        assert driver.topics.topics["orders"] is known
        del image.topics["more"]
        driver.topics_changed([Change("more")])
        assert driver.topics.topics == {"orders": known}

    run(story)


def test_a_broker_keeps_its_rack_while_it_is_down() -> None:
    async def story() -> None:
        image, racks = image_of((1, 2)), {1: "west"}
        driver = driver_of(image, racks)
        racks[2] = "east"
        driver.topics_changed([NOT_A_TOPIC])
        assert driver.topics.racks_of("orders", 0) == ("east", "west")
        before = driver.topics
        del racks[2]
        driver.topics_changed([NOT_A_TOPIC])
        assert driver.topics is before

    run(story)


def commit(driver: GroupDriver, offset: int) -> asyncio.Future[Any]:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="orders", partitions=[row])]
    )
    context = GroupContext(8, "client", "host")
    return driver.host.call(
        0,
        lambda shard, waiter, now_ms: shard.decide_offset_commit(
            request, context, waiter, now_ms=now_ms
        ),
    )


def committed(driver: GroupDriver) -> list[int]:
    ((_, shard),) = driver.host.shards()
    return [row.value.offset for row in shard.state.offsets.of("g").get("orders", {}).values()]


def coordinating(directory: Path) -> tuple[ClusterImage, GroupDriver, FaultyPartition]:
    """A driver that leads a partition of the offsets, with another replica."""
    image = image_of((1,))
    driver = driver_of(image, {})
    partition = FaultyPartition(new_log(directory), alone=False)
    driver.lead(partition)
    return image, driver, partition


def delete(driver: GroupDriver, image: ClusterImage) -> None:
    image.being_deleted["orders"] = [image.topics.pop("orders").topic_id]
    driver.topics_changed([Change("orders")])


def create_anew(driver: GroupDriver, image: ClusterImage) -> None:
    image.topics["orders"] = TopicImage("orders", ANEW, {0: (1,)})
    driver.topics_changed([Change("orders")])


def test_the_view_is_current_while_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    """Records for an earlier view are written later. They used to bring that view back."""

    async def story() -> None:
        image, driver, partition = coordinating(tmp_path)
        commit(driver, 5)
        partition.isr = ()
        delete(driver, image)
        await asyncio.sleep(0.1)  # two retried decisions would run alternately
        create_anew(driver, image)
        ((_, shard),) = driver.host.shards()
        assert shard.state.topics is driver.topics
        partition.isr = (0, 1)
        await until(lambda: committed(driver) == [], "the end of the old offset")
        commit(driver, 7)
        await asyncio.sleep(0.4)
        assert committed(driver) == [7]
        assert shard.state.topics is driver.topics

    run(story)


def test_only_one_cleanup_is_retried_after_many_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        image, driver, partition = coordinating(tmp_path)
        commit(driver, 5)
        tried = 0
        decide = GroupShard.decide_timeout

        def counted(shard: GroupShard, *arguments: Any, **more: Any) -> Any:
            nonlocal tried
            tried += 1
            return decide(shard, *arguments, **more)

        monkeypatch.setattr(GroupShard, "decide_timeout", counted)
        partition.isr = ()
        delete(driver, image)
        for number in range(20):
            await asyncio.sleep(0.001)
            image.topics["orders"] = TopicImage("orders", bytes([number + 1]) * 16, {0: (1,)})
            driver.topics_changed([Change("orders")])
        await asyncio.sleep(0.3)
        assert 1 <= tried <= 3

    run(story)


def test_a_loading_shard_learns_of_a_deletion_without_its_record(tmp_path: Path) -> None:
    async def story() -> None:
        image = image_of((1,))
        driver = driver_of(image, {})
        partition = FaultyPartition(new_log(tmp_path))
        driver.lead(partition)
        await commit(driver, 5)
        driver.resign(0)
        driver.lead(partition)
        assert driver.host.loading
        delete(driver, image)
        image.being_deleted.clear()
        image.topics["more"] = TopicImage("more", ANEW, {0: (1,)})
        driver.topics_changed([Change("more")])
        await until(
            lambda: driver.host.shards() and committed(driver) == [], "the end of the offset"
        )
        assert driver.topics.is_deleted(ORDERS)
        del image.topics["more"]
        driver.topics_changed([Change("more")])
        assert not driver.topics.is_deleted(ORDERS)

    run(story)


def test_without_its_topic_no_broker_coordinates() -> None:
    async def story() -> None:
        driver = driver_of(image_of((1,)), {})
        with pytest.raises(ApiError) as refused:
            driver.call(
                "readers", GroupShard.decide_list, ListGroupsRequest(), GroupContext(0, "", "")
            )
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    run(story)


class Doubtful:
    """Shards that are never confirmed; each responds when this number has been called."""

    def __init__(self, shards: int) -> None:
        self._all = asyncio.Barrier(shards)

    async def confirm(self, index: int, timeout_s: float) -> None:
        await self._all.wait()
        raise ApiError(ErrorCode.NOT_COORDINATOR)


def offsets_of(*groups: str) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group) for group in groups], require_stable=True
    )


@pytest.mark.parametrize(
    ("partitions", "shards"), [(50, 3), (1, 1)], ids=["of many shards", "of one shard"]
)
def test_coordinators_of_many_groups_are_confirmed_together(partitions: int, shards: int) -> None:
    """Each may take as long as a follower's fetch waits."""

    async def story() -> None:
        driver = driver_of(image_of((1,)), {}, partitions)
        host: Any = Doubtful(shards)
        driver.host = host
        broker: Any = SimpleNamespace(groups=driver)
        context: Any = SimpleNamespace(version=8)
        async with asyncio.timeout(120):
            answer = await offset_fetch.handle(broker, context, offsets_of("a", "b", "c"))
        errors = [(group.group_id, group.error_code) for group in answer.groups]
        assert errors == [(name, ErrorCode.NOT_COORDINATOR) for name in ("a", "b", "c")]

    run(story)


def test_without_its_topic_no_group_is_confirmed() -> None:
    async def story() -> None:
        refused = await driver_of(image_of((1,)), {}).unconfirmed(["a", "b"])
        assert {group: error.code for group, error in refused.items()} == dict.fromkeys(
            ("a", "b"), ErrorCode.NOT_COORDINATOR
        )

    run(story)


def test_groups_are_listed_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard with hundreds of thousands of groups must not hold the loop."""
    monkeypatch.setattr(coordinator_host, "_NAMES_PER_DECISION", 2)

    async def story() -> None:
        _, driver, _ = coordinating(tmp_path)
        await until(lambda: not driver.host.loading, "the shard is loaded")
        ((_, shard),) = driver.host.shards()
        ids = ["a", "b", "c", "d", "e"]
        monkeypatch.setattr(type(shard.state), "ids", lambda state: ids)
        chunks: list[list[str]] = []

        def decide(some: list[str]) -> Any:
            chunks.append(some)
            return lambda shard, waiter, now_ms: Decision(effects=(Reply(waiter, some),))

        assert await driver.list_all(decide) == chunks == [["a", "b"], ["c", "d"], ["e"]]

    run(story)
