"""Topics whose creation is in progress: the states of the last partitions may be unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.handlers import describe_topic_partitions, metadata
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.steps import finish

BROKERS = (1, 2)


@pytest.fixture
def broker() -> Any:
    """Has two partitions of a topic, and the state of one."""
    image = ClusterImage()
    replicas = {0: (1, 2), 1: (2, 1)}
    image.topics["large"] = TopicImage(
        "large", bytes(16), replicas, {0: PartitionState(1, 4, (1, 2))}
    )
    nodes = [SimpleNamespace(node_id=node, host="h", port=9092, rack=None) for node in BROKERS]
    return SimpleNamespace(
        image=image,
        nodes=SimpleNamespace(reached_by=lambda listener: nodes),
        replicas=SimpleNamespace(is_online=lambda topic, index, node: True),
        member=SimpleNamespace(controller_id=1),
        config=SimpleNamespace(flag=lambda name: True, integer=lambda name: 2000),
    )


def rows(response: Any) -> list[tuple[int, int, int, list[int], list[int]]]:
    (topic,) = response.topics
    return [
        (row.error_code, row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes)
        for row in topic.partitions
    ]


TOLD = [
    (ErrorCode.NONE, 1, 4, [1, 2], [1, 2]),
    (ErrorCode.LEADER_NOT_AVAILABLE, -1, -1, [2, 1], []),
]


@pytest.mark.parametrize("version", [0, 5, 13])
@pytest.mark.parametrize("names", [None, ["large"]], ids=["all", "one"])
def test_metadata_lists_partitions_without_a_leader(
    broker: Any, version: int, names: list[str] | None
) -> None:
    context: Any = SimpleNamespace(
        version=version, connection=SimpleNamespace(listener="PLAINTEXT")
    )
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    assert rows(finish(metadata.handle(broker, context, MetadataRequest(topics=topics)))) == TOLD


def test_so_does_the_description_in_pages(broker: Any) -> None:
    context: Any = SimpleNamespace(version=0, connection=SimpleNamespace(listener="PLAINTEXT"))
    request = DescribeTopicPartitionsRequest(response_partition_limit=10)
    assert rows(finish(describe_topic_partitions.handle(broker, context, request))) == TOLD
