"""The internal topics of coordinators: created once, when first needed, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cluster.controller.changes import Controller as RealController
from millstream.cluster.controller.changes import Outcome
from millstream.cluster.controller.housekeeping import ControllerHousekeeping
from millstream.cluster.coordinators.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from millstream.control.topics import NewTopic
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from support.cluster.controller_world import World, on


class Controller:
    """Creates topics in its image, unless ``refuse`` is set."""

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
    config = BrokerConfig.from_texts(
        {name.replace("_", "."): text for name, text in settings.items()}
    )
    return InternalTopics(controller, config, controller), controller


def run(story: Callable[[], Any]) -> None:
    asyncio.run(story())


def test_a_topic_is_created_when_it_is_first_needed() -> None:
    async def story() -> None:
        topics, controller = internal_topics(offsets_topic_num_partitions="7")
        assert topics.partitions(OFFSETS) == 0
        assert controller.asked == []
        assert await topics.ensure(OFFSETS) == 7
        assert await topics.ensure(OFFSETS) == 7
        assert len(controller.asked) == 1

    run(story)


def test_concurrent_requests_create_the_topic_once() -> None:
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
def test_replication_factor_follows_the_brokers_unless_configured(
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
    "code",
    [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_coordinator_is_not_available_if_creation_fails(code: ErrorCode) -> None:
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


def test_a_topic_created_by_another_broker_is_used() -> None:
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


def test_an_unexpected_failure_does_not_block_later_requests() -> None:
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


def test_raising_min_isr_keeps_concurrent_changes() -> None:
    async def test(world: World) -> None:
        world.term.feed.close()  # no broker follows in this test
        control = RealController(world.state, BrokerConfig({}), new_id=lambda: b"i" * 16)
        await control.create_topics(
            [NewTopic(TRANSACTIONS, 1, 3, configs=(("cleanup.policy", "compact"),))]
        )
        housekeeping = ControllerHousekeeping(
            world.state, BrokerConfig({}), control, world.partitions
        )
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
