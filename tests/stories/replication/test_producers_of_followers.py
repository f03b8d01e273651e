"""DescribeProducers: every replica knows the producers of its partition, not only the leader."""

from __future__ import annotations

from typing import Any

from millstream.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import produce_request

TOPIC = "producers"
NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC = 6, 3


def producers(cluster: InProcessCluster, node: int, topic: str = TOPIC, partition: int = 0) -> Any:
    asked = DescribeProducersRequest(
        topics=[TopicRequest(name=topic, partition_indexes=[partition])]
    )
    with cluster.client(node) as client:
        return client.call(asked, 0).topics[0].partitions[0]


def test_followers_tell_of_the_producers_that_they_know(shared_cluster: InProcessCluster) -> None:
    cluster = shared_cluster
    cluster.create_topic(TOPIC, at={0: (0, 1)})
    records = build_batch(
        [Record(0, 1_700_000_000_000, None, b"x", ())],
        producer_id=77,
        producer_epoch=3,
        base_sequence=0,
    )
    with cluster.client(0) as client:
        answer = client.call(produce_request(TOPIC, 0, records, acks=-1), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    wait_until(
        lambda: bool(producers(cluster, 1).active_producers), "the follower to have the batch"
    )
    for node in (0, 1):
        told = producers(cluster, node)
        (row,) = told.active_producers
        assert (told.error_code, row.producer_id, row.producer_epoch, row.last_sequence) == (
            0,
            77,
            3,
            0,
        )
    assert producers(cluster, 2).error_code == NOT_LEADER_OR_FOLLOWER
    assert producers(cluster, 2, partition=1).error_code == UNKNOWN_TOPIC
    assert producers(cluster, 2, "nothing").error_code == UNKNOWN_TOPIC
