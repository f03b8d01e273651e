"""Order of requests where brokers wait for each other: what must wait, and what must not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream import testing
from millstream.broker.net import dispatch
from millstream.broker.net.dispatch import MAX_DECODED_BYTES
from millstream.cluster.controller.changes import Controller
from millstream.control.topics import NewTopic
from millstream.core.errors import ErrorCode
from millstream.testing import Cluster
from millstream.testing.thread_broker import ThreadBroker
from millstream.testing.waiting import wait_until
from millstream.wire.apis import BY_NAME
from millstream.wire.frames import request_frame
from millstream.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.envelope import EnvelopeRequest
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.raw import Closed, RawClient, produce_request

LATEST, CONSUMER = -1, -1
BATCH = bytes(build_batch([Record(0, 0, None, b"value", ())]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with testing.cluster(2) as started:
        yield started


def controller_of(cluster: Cluster) -> ThreadBroker:
    (found,) = [
        one.broker for one in cluster.brokers if one.broker.broker.parts.member.state.active
    ]
    return found


def other_of(cluster: Cluster) -> ThreadBroker:
    (found,) = [
        one.broker for one in cluster.brokers if not one.broker.broker.parts.member.state.active
    ]
    return found


class Stuck:
    """Topic creations that wait until they are let go; ``waiting`` counts them."""

    def __init__(self, broker: ThreadBroker) -> None:
        self._broker = broker
        self.waiting = 0
        self._gate = broker.run(asyncio.Event)

    def wrap(self, controller: Controller) -> Any:
        create = controller.create_topics

        async def create_later(*what: Any, **more: Any) -> Any:
            self.waiting += 1
            await self._gate.wait()
            return await create(*what, **more)

        return create_later

    def let_go(self) -> None:
        self._broker.run(self._gate.set)


@contextmanager
def stuck_creations(broker: ThreadBroker) -> Iterator[Stuck]:
    stuck = Stuck(broker)
    controller = broker.broker.parts.local_controller
    broker.run(lambda: setattr(controller, "create_topics", stuck.wrap(controller)))
    try:
        yield stuck
    finally:
        stuck.let_go()
        broker.run(lambda: delattr(controller, "create_topics"))


def test_list_offsets_waits_for_the_replicas_behind_a_produce(cluster: Cluster) -> None:
    """The high watermark moves when the follower has the record: not before the produce is
    answered.
    """
    cluster.topic("replicated", replicas=2)
    cluster.wait_in_sync("replicated", 2)
    leader = cluster.leader("replicated")
    assert leader is not None
    row = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    latest = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name="replicated", partitions=[row])]
    )
    with RawClient(cluster.brokers[leader].bootstrap) as client:
        for count in range(1, 6):
            client.send(produce_request("replicated", 0, BATCH, acks=-1), 9)
            client.send(latest, 7)
            written, shown = client.receive()[1], client.receive()[1]
            assert written.responses[0].partition_responses[0].error_code == 0
            assert shown.topics[0].partitions[0].offset == count


def test_forwarded_topic_creation_does_not_hold_up_the_next_request(cluster: Cluster) -> None:
    controller, other = controller_of(cluster), other_of(cluster)
    topic = CreatableTopic(name="passed-on", num_partitions=1, replication_factor=1)
    create = request_frame(
        BY_NAME["CreateTopics"].key,
        7,
        1,
        "client",
        CreateTopicsRequest(topics=[topic], timeout_ms=10_000).encode(7),
    )
    envelope = EnvelopeRequest(
        request_data=create, request_principal=None, client_host_address=b"127.0.0.1"
    )
    allocated = AllocateProducerIdsRequest(
        broker_id=other.broker.parts.node_id, broker_epoch=other.broker.parts.member.broker_epoch
    )
    blocks: list[int] = []
    allocate = controller.broker.parts.local_controller.allocate_producer_ids

    async def counted(node: int) -> range:
        blocks.append(node)
        return await allocate(node)

    with stuck_creations(controller) as stuck, RawClient(controller.bootstrap) as client:
        controller.run(
            lambda: setattr(
                controller.broker.parts.local_controller, "allocate_producer_ids", counted
            )
        )
        try:
            client.send(envelope, 0)
            client.send(allocated, 0)
            wait_until(
                lambda: stuck.waiting == 1 and blocks == [other.broker.parts.node_id],
                "both are handled",
            )
            stuck.let_go()
            assert client.receive()[1].error_code == 0
            assert client.receive()[1].error_code == 0
        finally:
            controller.run(
                lambda: delattr(controller.broker.parts.local_controller, "allocate_producer_ids")
            )


def test_topics_that_a_broker_creates_do_not_hold_up_its_other_requests(cluster: Cluster) -> None:
    """A broker that waits for a topic still gets producer ids, and its changes of
    an ISR through.
    """
    controller, other = controller_of(cluster), other_of(cluster)

    async def create() -> asyncio.Task[Any]:
        return asyncio.ensure_future(
            other.broker.parts.controller_client.create_topics([NewTopic("made-by-broker", 1, 1)])
        )

    async def outcome(task: asyncio.Task[Any]) -> Any:
        return await task

    with stuck_creations(controller) as stuck:
        creating = other.wait(create())
        wait_until(lambda: stuck.waiting == 1, "the controller is asked for the topic")
        assert len(other.wait(other.broker.parts.controller_client.allocate_producer_ids())) > 0
        assert not creating.done()
        stuck.let_go()
        assert other.wait(outcome(creating))["made-by-broker"].code == 0


def test_topic_creation_of_a_client_holds_back_its_own_connection_alone(cluster: Cluster) -> None:
    controller, other = controller_of(cluster), other_of(cluster)
    topic = CreatableTopic(name="slow-to-make", num_partitions=1, replication_factor=1)
    with stuck_creations(controller) as stuck, RawClient(other.bootstrap) as first:
        first.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        first.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        wait_until(lambda: stuck.waiting >= 1, "the controller is asked for the topic")
        with RawClient(other.bootstrap) as second:
            assert second.call(ApiVersionsRequest(), 0).error_code == 0
        assert stuck.waiting == 1, "the second request waits for the first"
        stuck.let_go()
        assert first.receive()[1].topics[0].error_code == 0
        assert first.receive()[1].topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_largest_request_is_passed_on_to_the_controller(cluster: Cluster) -> None:
    """An Envelope is larger than the request in it, which may be as large as any."""
    other = other_of(cluster)
    topic = CreatableTopic(name="named more than once", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic] * 1000, timeout_ms=10_000, validate_only=True)
    request.topics *= MAX_DECODED_BYTES // len(request.encode(7)) + 1
    width = len(request.encode(7)) / len(request.topics)
    del request.topics[int((MAX_DECODED_BYTES - 20) / width) :]
    assert MAX_DECODED_BYTES - 60 < len(request.encode(7)) < MAX_DECODED_BYTES - 14, (
        "the rest is for the header"
    )
    with RawClient(other.bootstrap, timeout_s=60) as client:
        (answer,) = client.call(request, 7).topics
        assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_forwarded_answer_beyond_the_bound_closes_the_connection_of_its_client_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, other = controller_of(cluster), other_of(cluster)
    topics = [
        CreatableTopic(name=f"n{n}", num_partitions=1, replication_factor=1) for n in range(200)
    ]
    large = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)
    with stuck_creations(controller) as stuck, RawClient(other.bootstrap) as neighbour:
        small = CreateTopicsRequest(topics=topics[:1], timeout_ms=10_000, validate_only=True)
        neighbour.send(small, 7)
        wait_until(lambda: stuck.waiting == 1, "the neighbour's request is at the controller")
        monkeypatch.setattr(dispatch, "MAX_RESPONSE_BYTES", 50_000)
        with RawClient(other.bootstrap) as client:
            client.send(large, 7)
            wait_until(lambda: stuck.waiting == 2, "the large request is at the controller")
            stuck.let_go()
            with pytest.raises(Closed):
                client.read_frame()
        assert neighbour.receive()[1].topics[0].error_code == 0
        assert stuck.waiting == 2, "neither request was sent again"
