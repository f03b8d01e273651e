"""An image with a bit of everything."""

from __future__ import annotations

from millstream.control import znodes
from millstream.control.image import ClusterImage, NodeData
from millstream.control.znodes import Assignment, BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.types import TopicPartition

UNSERVED = frozenset({TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 7)})

ID, OTHER = b"i" * 16, b"o" * 16

BROKER = BrokerRegistration(
    3,
    (BrokerEndpoint("PLAINTEXT", "::1", 9092), BrokerEndpoint("OUTSIDE", "h", 19092, "SASL_SSL")),
    "r1",
    "x",
    77,
)


def state_node(index: int, state: PartitionState) -> NodeData:
    data = znodes.encode_partition_state(state)
    return NodeData(znodes.partition_state_path("t", index), data, state.partition_epoch)


def full_image() -> ClusterImage:
    image = ClusterImage()
    moving = {1: Assignment((1, 2, 0), adding=(2,), removing=(0,))}
    for path, data, version in [
        NodeData(znodes.CLUSTER_ID, znodes.encode_cluster_id("c")),
        NodeData(znodes.FEATURES, znodes.encode_features({"group.version": 1}, 4)),
        NodeData(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(0, 1000, 1999)),
        NodeData(znodes.STOPPING, znodes.encode_stopping({3})),
        NodeData(znodes.offline_path(3), znodes.encode_offline(UNSERVED)),
        NodeData(znodes.broker_path(3), znodes.encode_broker(BROKER, now_ms=5), 77),
        NodeData(znodes.broker_config_path("3"), znodes.encode_config({"a": "b"})),
        NodeData(
            znodes.topic_path("t"),
            znodes.encode_topic(ID, {0: (0, 1), 1: (1, 2, 0)}, moving.items()),
        ),
        state_node(0, PartitionState(1, 4, (1,), 2, 9)),
        state_node(1, PartitionState(-1, 5, (0, 1), 2, 3)),
        NodeData(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "1"})),
        NodeData(znodes.deleted_topic_path("u"), znodes.encode_deleted_topic([OTHER])),
    ]:
        image.apply(path, data, version)
    return image
