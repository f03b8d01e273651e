"""The topics of coordinators: made once, when first needed, with the settings of the broker; and what happens where they cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.controller.test_partitions import World, on
from millstream.cluster.controller.changes import Controller as RealController
from millstream.cluster.controller.changes import Outcome
from millstream.cluster.controller.housekeeping import ControllerHousekeeping
from millstream.cluster.coordinators.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from millstream.control.topics import NewTopic
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode


class Controller:
    """Makes topics of the image it is given, unless told otherwise."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.brokers: dict[int, Any] = {0: None}
        self.asked: list[NewTopic] = []
        self.refuse: ErrorCode | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def registered_brokers(self) -> dict[int, Any]:
        return self.brokers

    async def create_topics(self, new: list[NewTopic]) -> dict[str, Outcome]:
        self.asked += new
        await self.gate.wait()
        if self.refuse is not None:
            return {topic.name: Outcome(self.refuse, "a reason") for topic in new}
        for topic in new:
            self.topics[topic.name] = Made(topic.partitions)
        return {topic.name: Outcome(ErrorCode.NONE) for topic in new}


class Made:
    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count


def internal_topics(**settings: str) -> tuple[InternalTopics, Controller]:
    controller: Any = Controller()
    config = BrokerConfig.from_texts({name.replace("_", "."): text for name, text in settings.items()})
    return InternalTopics(controller, config, controller), controller


def run(story: Callable[[], Any]) -> None:
    asyncio.run(story())


def test_a_topic_is_made_when_it_is_first_needed_and_only_then() -> None:
    async def story() -> None:
        topics, controller = internal_topics(offsets_topic_num_partitions="7")
        assert topics.partitions(OFFSETS) == 0
        assert controller.asked == []
        assert await topics.ensure(OFFSETS) == 7
        assert await topics.ensure(OFFSETS) == 7
        assert len(controller.asked) == 1

    run(story)


def test_many_that_need_it_at_once_make_it_once() -> None:
    async def story() -> None:
        topics, controller = internal_topics()
        controller.gate.clear()
        waiting = [asyncio.ensure_future(topics.ensure(TRANSACTIONS)) for _ in range(5)]
        await asyncio.sleep(0)
        controller.gate.set()
        assert await asyncio.gather(*waiting) == [50] * 5
        assert len(controller.asked) == 1

    run(story)


@pytest.mark.parametrize(
    ("brokers", "given", "factor", "min_isr"),
    [
        (1, {}, 1, "1"),
        (2, {}, 2, "1"),
        (3, {}, 3, "2"),
        (5, {}, 3, "2"),
        (3, {"factor": 2, "isr": 1}, 2, "1"),
    ],
)
def test_as_many_replicas_as_there_are_brokers_for_unless_told(
    brokers: int, given: dict[str, int], factor: int, min_isr: str
) -> None:
    async def story() -> None:
        settings = {}
        if given:
            settings["transaction_state_log_replication_factor"] = str(given["factor"])
            settings["transaction_state_log_min_isr"] = str(given["isr"])
        topics, controller = internal_topics(**settings)
        controller.brokers = dict.fromkeys(range(brokers))
        await topics.ensure(TRANSACTIONS)
        (made,) = controller.asked
        assert made.replication_factor == factor
        assert dict(made.configs)["min.insync.replicas"] == min_isr

    run(story)


def test_settings_shape_the_topics() -> None:
    async def story() -> None:
        topics, controller = internal_topics(
            offsets_topic_segment_bytes="2097152",
            transaction_state_log_num_partitions="3",
            transaction_state_log_segment_bytes="3145728",
            transaction_state_log_min_isr="1",
        )
        await topics.ensure(OFFSETS)
        await topics.ensure(TRANSACTIONS)
        offsets, transactions = controller.asked
        assert (offsets.partitions, offsets.replication_factor) == (50, 1)
        assert dict(offsets.configs) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "2097152",
        }
        assert transactions.partitions == 3
        assert dict(transactions.configs) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
            "segment.bytes": "3145728",
            "min.insync.replicas": "1",
        }

    run(story)


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]
)
def test_where_it_cannot_be_made_there_is_no_coordinator(code: ErrorCode) -> None:
    async def story() -> None:
        topics, controller = internal_topics()
        controller.refuse = code
        with pytest.raises(ApiError) as refused:
            await topics.ensure(OFFSETS)
        assert (refused.value.code, refused.value.message) == (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "a reason",
        )
        controller.refuse = None
        assert await topics.ensure(OFFSETS) == 50

    run(story)


def test_a_topic_that_somebody_else_has_just_made_will_do() -> None:
    async def story() -> None:
        topics, controller = internal_topics()
        controller.refuse = ErrorCode.TOPIC_ALREADY_EXISTS
        controller.gate.clear()
        waiting = asyncio.ensure_future(topics.ensure(OFFSETS))
        await asyncio.sleep(0)
        controller.topics[OFFSETS] = Made(9)
        controller.gate.set()
        assert await waiting == 9

    run(story)


def test_a_failure_nobody_foresaw_leaves_the_way_free() -> None:
    async def story() -> None:
        topics, controller = internal_topics()
        create = controller.create_topics

        async def broken(new: list[NewTopic]) -> dict[str, Outcome]:
            raise OSError("no disk")

        controller.create_topics = broken  # type: ignore[method-assign]
        with pytest.raises(OSError, match="no disk"):
            await topics.ensure(OFFSETS)
        controller.create_topics = create  # type: ignore[method-assign]
        assert await topics.ensure(OFFSETS) == 50

    run(story)


def test_a_minimum_that_is_raised_keeps_what_was_set_meanwhile() -> None:
    async def test(world: World) -> None:
        world.term.feed.close()  # nobody follows in this test
        control = RealController(world.state, BrokerConfig({}), new_id=lambda: b"i" * 16)
        await control.create_topics([NewTopic(TRANSACTIONS, 1, 3, configs=(("cleanup.policy", "compact"),))])
        housekeeping = ControllerHousekeeping(world.state, BrokerConfig({}), control, world.partitions)
        async with world.state.lock:  # some other change
            operators = asyncio.ensure_future(
                control.set_topic_config(
                    TRANSACTIONS,
                    lambda image: {**image.topic_configs[TRANSACTIONS], "segment.bytes": "1048576"},
                )
            )
            await asyncio.sleep(0)
            raising = asyncio.ensure_future(housekeeping.raise_min_isr(TRANSACTIONS, 2))
            await asyncio.sleep(0)
        await asyncio.gather(operators, raising)
        assert world.state.image.topic_configs[TRANSACTIONS] == {
            "cleanup.policy": "compact",
            "min.insync.replicas": "2",
            "segment.bytes": "1048576",
        }

    on(test)
