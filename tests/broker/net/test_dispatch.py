"""From a frame to its handler: limits, and bugs that close one connection, not the broker."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator

import pytest

from millstream.broker.handlers import describe_cluster
from millstream.sim.world.disk import SimDisk
from millstream.wire.apis import BY_NAME
from millstream.wire.compiler import MAX_ITEMS
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.in_process import InProcessBroker
from support.raw import HEADER, Closed, RawClient, framed, request_frame


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": "/data"}, files=SimDisk()) as started:
        yield started


def still_serves(broker: InProcessBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        assert client.call(ApiVersionsRequest(), 0).error_code == 0


def broken(*_: object) -> DescribeClusterResponse:
    raise KeyError("a bug")


async def broken_later(*_: object) -> DescribeClusterResponse:
    raise KeyError("a bug")


def cannot_be_encoded(*_: object) -> DescribeClusterResponse:
    return DescribeClusterResponse(controller_id=1 << 40)


async def cannot_be_encoded_later(*_: object) -> DescribeClusterResponse:
    return DescribeClusterResponse(controller_id=1 << 40)


@pytest.mark.parametrize(
    "handle", [broken, broken_later, cannot_be_encoded, cannot_be_encoded_later]
)
def test_bug_in_a_handler_closes_the_connection_and_is_logged(
    handle,
    broker: InProcessBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = broker.broker.dispatcher._routes
    broker.run(lambda: routes.pop(60, None))
    monkeypatch.setattr(describe_cluster, "handle", handle)
    try:
        with RawClient(broker.bootstrap) as client:
            client.send(DescribeClusterRequest(), 0)
            with pytest.raises(Closed):
                client.receive()
    finally:
        broker.run(lambda: routes.pop(60, None))
    assert "DescribeCluster v0 failed unexpectedly" in caplog.text
    still_serves(broker)


def test_handler_is_cancelled_on_disconnect(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait(*_: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    routes = broker.broker.dispatcher._routes
    broker.run(lambda: routes.pop(60, None))
    monkeypatch.setattr(describe_cluster, "handle", wait)
    try:
        with RawClient(broker.bootstrap) as client:
            client.send(DescribeClusterRequest(), 0)
            assert begun.wait(20)
        assert ended.wait(20)
    finally:
        broker.run(lambda: routes.pop(60, None))


@pytest.mark.parametrize(
    "body",
    [
        HEADER.pack(3, 1, 1, -1)
        + struct.pack(">i", 1 << 21)
        + bytes(1 << 22),  # 4 MiB of empty topic names
        HEADER.pack(3, 1, 1, -1) + struct.pack(">i", MAX_ITEMS + 1) + bytes(2 * MAX_ITEMS + 2),
        HEADER.pack(0, 2, 1, -1)
        + struct.pack(">hii", 1, 0, MAX_ITEMS + 1)
        + bytes(6 * MAX_ITEMS + 6),
        # Few enough topics, each with few enough partitions, but too many together.
        HEADER.pack(0, 2, 1, -1)
        + struct.pack(">hii", 1, 0, 3)
        + (struct.pack(">hi", 0, MAX_ITEMS // 2) + bytes(8 * (MAX_ITEMS // 2))) * 3,
    ],
    ids=["bytes", "items", "produce topics", "produce partitions"],
)
def test_request_that_decodes_to_too_much_closes_the_connection(
    broker: InProcessBroker, body: bytes
) -> None:
    with RawClient(broker.bootstrap) as client:
        client.write(framed(body))
        with pytest.raises(Closed):
            client.read_frame()
    still_serves(broker)


def test_request_with_many_items_below_the_limit_is_served(broker: InProcessBroker) -> None:
    names = [MetadataRequestTopic(name=f"t{n}") for n in range(20_000)]
    with RawClient(broker.bootstrap) as client:
        answer = client.call(MetadataRequest(topics=names, allow_auto_topic_creation=False), 8)
    assert len(answer.topics) == 20_000


@pytest.mark.parametrize("version", [2, 4, 7])
def test_longest_possible_name_is_rejected_with_a_message(
    broker: InProcessBroker, version: int
) -> None:
    topic = CreatableTopic(name="x" * 32_767, num_partitions=1, replication_factor=1)
    with RawClient(broker.bootstrap) as client:
        (result,) = client.call(
            CreateTopicsRequest(topics=[topic], timeout_ms=1000), version
        ).topics
    assert result.error_code == 17
    assert result.error_message.startswith("Topic name is invalid: the length of 'xxx")


def test_unknown_api_key_closes_the_connection(broker: InProcessBroker) -> None:
    for key in (-1, 4, 999, 32767):
        for version in (-1, 0, 32767):
            with RawClient(broker.bootstrap) as client:
                client.write(framed(HEADER.pack(key, version, 1, -1)))
                with pytest.raises(Closed):
                    client.read_frame()
    still_serves(broker)


def test_unsupported_version_closes_except_for_api_versions(broker: InProcessBroker) -> None:
    frame = request_frame(BY_NAME["CreateTopics"], 7, CreateTopicsRequest())
    with RawClient(broker.bootstrap) as client:
        client.write(frame[:6] + struct.pack(">h", 99) + frame[8:])
        with pytest.raises(Closed):
            client.read_frame()
    with RawClient(broker.bootstrap) as client:
        client.write(framed(HEADER.pack(18, 99, 7, -1)))
        answer = client.read_frame()
        assert struct.unpack_from(">ih", answer) == (7, 35)
