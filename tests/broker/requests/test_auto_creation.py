"""Auto-creation: the response comes at once, and the topic is created in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.broker.requests import auto_creation
from millstream.cluster.controller.changes import Outcome
from millstream.control.topics import NewTopic
from millstream.core.errors import ErrorCode
from millstream.testing.waiting import wait_until
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.in_process import InProcessBroker
from support.raw import RawClient

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
PATIENCE_S = 60.0


class Gate:
    """Intercepts creations: records the topics, and delays them until it opens."""

    def __init__(self, broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self._broker = broker
        self._open = broker.run(asyncio.Event)
        self._create = broker.broker.parts.controller_client.create_topics
        monkeypatch.setattr(broker.broker.parts.controller_client, "create_topics", self._pass)

    def open(self) -> None:
        self._broker.run(self._open.set)

    async def _pass(self, topics: list[NewTopic]) -> dict[str, Outcome]:
        self.asked.append([topic.name for topic in topics])
        await self._open.wait()
        return await self._create(topics)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": tmp_path / "data"}) as broker:
        yield broker


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def gate(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(broker, monkeypatch)


def ask(client: RawClient, *names: str, version: int = 12) -> dict[str, int]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    answer = client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), version)
    return {row.name: row.error_code for row in answer.topics}


def create(client: RawClient, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (row,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
    return int(row.error_code)


def in_flight(broker: InProcessBroker) -> list[str]:
    return broker.run(lambda: list(broker.broker.parts.auto_creation._in_flight))


def exists(broker: InProcessBroker, name: str) -> bool:
    return broker.run(lambda: name in broker.broker.image.topics)


def test_metadata_does_not_wait_and_creates_once(
    broker: InProcessBroker, client: RawClient, gate: Gate
) -> None:
    assert create(client, "orders") == 0
    assert ask(client, "orders", "missing") == {"orders": 0, "missing": UNKNOWN}
    assert ask(client, "missing", "other") == {"missing": UNKNOWN, "other": UNKNOWN}
    with RawClient(broker.bootstrap) as another:
        assert ask(another, "other", "missing", "missing") == {"missing": UNKNOWN, "other": UNKNOWN}
    wait_until(lambda: gate.asked == [["missing"], ["other"]], "both creations have begun")
    gate.open()
    wait_until(lambda: ask(client, "missing", "other") == {"missing": 0, "other": 0}, "the topics")
    assert in_flight(broker) == []
    assert gate.asked == [["missing"], ["other"]]


def test_creation_survives_the_client(broker: InProcessBroker, gate: Gate) -> None:
    with RawClient(broker.bootstrap) as client:
        assert ask(client, "orders") == {"orders": UNKNOWN}
    wait_until(
        lambda: not broker.run(lambda: broker.broker.server._connections),
        "the connection is closed",
    )
    gate.open()
    wait_until(lambda: exists(broker, "orders"), "the topic")


def test_creation_is_retried_until_there_is_a_controller(
    broker: InProcessBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is enough."""
    tries: list[list[str]] = []
    create_topics = broker.broker.parts.controller_client.create_topics

    async def late(topics: list[NewTopic]) -> dict[str, Outcome]:
        tries.append([topic.name for topic in topics])
        if len(tries) < 3:
            return {
                topic.name: Outcome(ErrorCode.LEADER_NOT_AVAILABLE, "no controller")
                for topic in topics
            }
        return await create_topics(topics)

    monkeypatch.setattr(broker.broker.parts.controller_client, "create_topics", late)
    assert ask(client, "orders") == {"orders": UNKNOWN}
    wait_until(lambda: exists(broker, "orders"), "the topic")
    assert tries == [["orders"]] * 3


def test_failed_creation_logs_one_line_and_topic_stays_unknown(
    broker: InProcessBroker, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(client, "co.llide") == 0
    for _ in range(5):
        assert ask(client, "co_llide") == {"co_llide": UNKNOWN}
        wait_until(lambda: in_flight(broker) == [], "the creation has failed")
    (line,) = [message for message in caplog.messages if "cannot be created" in message]
    assert "co_llide" in line and "collides" in line


def test_invalid_and_share_group_topics_are_not_created(
    broker: InProcessBroker, client: RawClient, gate: Gate
) -> None:
    assert ask(client, "bad name", "__share_group_state") == {
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "__share_group_state": UNKNOWN,
    }
    assert ask(client, "good") == {"good": UNKNOWN}
    assert in_flight(broker) == ["good"]


def test_topics_in_flight_are_bounded(
    broker: InProcessBroker,
    client: RawClient,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(auto_creation, "MAX_IN_FLIGHT", 3)
    for number in range(5):
        assert ask(client, f"topic-{number}") == {f"topic-{number}": UNKNOWN}
    assert len(ask(client, "a", "b", "c", "d")) == 4
    assert in_flight(broker) == ["topic-0", "topic-1", "topic-2"]
    assert len([message for message in caplog.messages if "too many topics" in message]) == 1
    gate.open()
    wait_until(lambda: in_flight(broker) == [], "the first topics")
    ask(client, "topic-4")
    wait_until(lambda: exists(broker, "topic-4"), "a topic that was refused before")


def test_create_topics_behind_metadata_waits_for_the_creation(
    broker: InProcessBroker, client: RawClient, gate: Gate
) -> None:
    """On the same connection, even if another one began the creation. Others do not wait."""
    with RawClient(broker.bootstrap) as another, ThreadPoolExecutor(1) as pool:
        assert ask(another, "orders") == {"orders": UNKNOWN}
        assert ask(client, "orders") == {"orders": UNKNOWN}
        made = pool.submit(create, client, "orders")
        with RawClient(broker.bootstrap) as third:
            assert create(third, "payments") == 0
        assert not made.done()
        gate.open()
        assert made.result(PATIENCE_S) == ErrorCode.TOPIC_ALREADY_EXISTS


def test_stopping_broker_ends_its_creations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        InProcessBroker({"log.dirs": tmp_path / "data"}) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        Gate(broker, monkeypatch)
        assert ask(client, "orders") == {"orders": UNKNOWN}
        (creation,) = broker.run(
            lambda: list(broker.broker.parts.auto_creation._in_flight.values())
        )
    assert creation.cancelled()
