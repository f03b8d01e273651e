"""Clients that come to the wrong broker are told who leads, and where that is (KIP-951)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.raw import RawClient, produce_request

TOPIC = "led-elsewhere"
LEADER, FOLLOWER, STRANGER = 0, 1, 2


@pytest.fixture(scope="module")
def topic_id(shared_cluster: InProcessCluster) -> bytes:
    return shared_cluster.create_topic(TOPIC, at={0: (LEADER, FOLLOWER)}, min_insync_replicas=1)


def addresses(answer: Any) -> list[tuple[int, str]]:
    return [(node.node_id, f"{node.host}:{node.port}") for node in answer.node_endpoints]


def fetch(client: RawClient, topic_id: bytes, version: int, epoch: int = -1) -> Any:
    row = FetchPartition(partition=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
    topic = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[row])
    return client.call(FetchRequest(max_bytes=1 << 20, session_epoch=-1, topics=[topic]), version)


@pytest.mark.parametrize("node", [FOLLOWER, STRANGER])
def test_a_producer_is_told_the_leader(
    shared_cluster: InProcessCluster, topic_id: bytes, node: int
) -> None:
    epoch = shared_cluster.brokers[LEADER].broker.parts.replicas.leader(TOPIC, 0).leader_epoch
    batch = build_batch([Record(0, 1, None, b"v", ())])
    with shared_cluster.client(node) as client:
        answer = client.call(produce_request(TOPIC, 0, batch), 10)
        before = client.call(produce_request(TOPIC, 0, batch), 9)
    (row,) = answer.responses[0].partition_responses
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (LEADER, epoch)
    assert addresses(answer) == [(LEADER, shared_cluster.bootstrap_of(LEADER))]
    assert before.responses[0].partition_responses[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert before.node_endpoints == []


def test_a_producer_at_the_leader_is_told_nothing(
    shared_cluster: InProcessCluster, topic_id: bytes
) -> None:
    batch = build_batch([Record(0, 1, None, b"v", ())])
    with shared_cluster.client(LEADER) as client:
        answer = client.call(produce_request(TOPIC, 0, batch), 10)
    (row,) = answer.responses[0].partition_responses
    assert (row.error_code, row.current_leader.leader_id, addresses(answer)) == (E.NONE, -1, [])


@pytest.mark.parametrize("version", [9, 10])
def test_a_batch_behind_one_that_came_before_its_leader_led_is_told_the_same(
    shared_cluster: InProcessCluster, version: int
) -> None:
    """Called out of order, librdkafka would begin a new epoch and send again what is written
    already.
    """
    topic = f"taken-over-{version}"
    shared_cluster.create_topic(topic, at={0: (LEADER, FOLLOWER)}, min_insync_replicas=1)

    def send(client: RawClient, sequence: int) -> int:
        record = Record(0, time.time_ns() // 1_000_000, None, b"v")
        batch = build_batch([record], producer_id=4242, producer_epoch=0, base_sequence=sequence)
        answer = client.call(produce_request(topic, 0, batch, acks=-1), version)
        return int(answer.responses[0].partition_responses[0].error_code)

    with shared_cluster.client(LEADER) as client:
        assert send(client, 0) == E.NONE
    with shared_cluster.client(FOLLOWER) as client:
        assert send(client, 1) == E.NOT_LEADER_OR_FOLLOWER
        shared_cluster.move_leader(topic, 0, FOLLOWER)
        assert send(client, 2) == E.NOT_LEADER_OR_FOLLOWER
        assert [send(client, sequence) for sequence in (1, 2)] == [E.NONE, E.NONE]


def test_a_consumer_is_told_the_leader(shared_cluster: InProcessCluster, topic_id: bytes) -> None:
    epoch = shared_cluster.brokers[LEADER].broker.parts.replicas.leader(TOPIC, 0).leader_epoch
    with shared_cluster.client(STRANGER) as client:
        answer, before = fetch(client, topic_id, 16), fetch(client, topic_id, 15)
    (row,) = answer.responses[0].partitions
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (LEADER, epoch)
    assert addresses(answer) == [(LEADER, shared_cluster.bootstrap_of(LEADER))]
    (row,) = before.responses[0].partitions
    assert (row.error_code, row.current_leader.leader_id) == (E.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_consumer_with_an_old_epoch_is_told_the_new_one(
    shared_cluster: InProcessCluster, topic_id: bytes
) -> None:
    shared_cluster.move_leader(TOPIC, 0, FOLLOWER)
    shared_cluster.move_leader(TOPIC, 0, LEADER)
    epoch = shared_cluster.brokers[LEADER].broker.parts.replicas.leader(TOPIC, 0).leader_epoch
    with shared_cluster.client(LEADER) as client:
        answer = fetch(client, topic_id, 16, epoch=epoch - 1)
    (row,) = answer.responses[0].partitions
    assert row.error_code == E.FENCED_LEADER_EPOCH
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (LEADER, epoch)
    assert addresses(answer) == [(LEADER, shared_cluster.bootstrap_of(LEADER))]
