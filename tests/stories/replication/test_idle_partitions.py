"""Partitions in which nothing happens cost a leader nothing, and are written to as if they had been
looked at all the time.
"""

from __future__ import annotations

import pytest

from millstream.replication.fetch_session import FetchSession
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import produce_request

TOPIC = "mostly-idle"
LEADER, FOLLOWER = 0, 1
PARTITIONS = 5


@pytest.fixture(scope="module")
def topic_id(shared_cluster: InProcessCluster) -> bytes:
    at = dict.fromkeys(range(PARTITIONS), (LEADER, FOLLOWER))
    return shared_cluster.create_topic(TOPIC, at=at, min_insync_replicas=2)


def sessions(cluster: InProcessCluster) -> list[FetchSession]:
    return list(cluster.brokers[LEADER].broker.parts.fetch_sessions._sessions.values())


def parked(cluster: InProcessCluster, topic_id: bytes) -> set[int]:
    return {
        index for one in sessions(cluster) for topic, index in list(one.idle) if topic == topic_id
    }


def write(cluster: InProcessCluster, partition: int) -> int:
    batch = build_batch([Record(0, 1, None, b"v", ())])
    with cluster.client(LEADER) as client:
        answer = client.call(produce_request(TOPIC, partition, batch, acks=-1), 9)
    (row,) = answer.responses[0].partition_responses
    assert row.error_code == 0
    return int(row.base_offset)


def test_rows_of_a_follower_that_has_everything_are_parked(
    shared_cluster: InProcessCluster, topic_id: bytes
) -> None:
    # A few are looked at again with each request.
    wait_until(lambda: len(parked(shared_cluster, topic_id)) >= PARTITIONS - 3, "parked rows")


def test_a_parked_partition_is_written_and_replicated(
    shared_cluster: InProcessCluster, topic_id: bytes
) -> None:
    for _ in range(3):
        for partition in range(PARTITIONS):
            offset = write(shared_cluster, partition)
            follower = shared_cluster.brokers[FOLLOWER].broker.parts.replicas.replica(
                TOPIC, partition
            )
            assert follower.online_log.log_end_offset == offset + 1
        wait_until(lambda: len(parked(shared_cluster, topic_id)) > 0, "parked rows")


def test_another_leader_is_followed_and_the_first_one_again(
    shared_cluster: InProcessCluster, topic_id: bytes
) -> None:
    wait_until(lambda: 0 in parked(shared_cluster, topic_id), "the first to be parked")
    shared_cluster.move_leader(TOPIC, 0, FOLLOWER)
    wait_until(lambda: 0 not in parked(shared_cluster, topic_id), "the first to be forgotten")
    shared_cluster.move_leader(TOPIC, 0, LEADER)
    write(shared_cluster, 0)
    assert shared_cluster.in_sync(TOPIC) == 2
