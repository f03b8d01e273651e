"""What group shards see of the cluster: topics as they come and go, and the racks of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cluster.group_driver import GroupDriver
from millstream.cluster.internal_topics import OFFSETS
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, TopicImage
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.settings import GroupSettings
from millstream.ports.clock import SystemClock

ORDERS = b"orders".ljust(16, b"1")
ANEW = b"orders".ljust(16, b"2")


class Topics:
    """No internal topic."""

    def partitions(self, name: str) -> int:
        return 0


def driver_of(image: ClusterImage, racks: dict[int, str]) -> GroupDriver:
    topics: Any = Topics()
    return GroupDriver(
        topics, image, SystemClock(), GroupSettings(), lambda: "id", lambda: 1_048_588, lambda: racks
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


def test_without_racks_there_is_nothing_to_see() -> None:
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


def test_leaders_and_replicas_in_sync_are_nothing_that_shards_see() -> None:
    async def story() -> None:
        image = image_of((1,))
        driver = driver_of(image, {1: "west"})
        before = driver.topics
        image.topics["unseen"] = TopicImage("unseen", ANEW, {0: (1,)})
        driver.topics_changed([Change("orders", 0)])  # looks at no topic, however many there are
        driver.topics_changed([Change("orders"), NOT_A_TOPIC])  # a setting of the topic, and one of brokers
        assert driver.topics is before

    run(story)


def test_topics_come_and_go_one_by_one() -> None:
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


def test_a_broker_is_in_its_rack_also_while_it_is_away() -> None:
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


def test_without_its_topic_nobody_coordinates() -> None:
    async def story() -> None:
        driver = driver_of(image_of((1,)), {})
        with pytest.raises(ApiError) as refused:
            driver.call("readers", lambda shard, waiter, now_ms: pytest.fail(OFFSETS))
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    run(story)
