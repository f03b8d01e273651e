"""The image of the cluster: brokers, topics, settings, features. Changed only by nodes that were acknowledged.

``apply(path, data)`` is the one writer, for the nodes read at start as for each later write; it tells which topics it touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.control import znodes
from millstream.control.znodes import PartitionState


@dataclass(slots=True)
class TopicImage:
    """One topic: id, replicas and state of each partition."""

    name: str
    topic_id: bytes
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        return len(self.replicas)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(slots=True)
class ClusterImage:
    """Everything that is known of the cluster."""

    cluster_id: str = ""
    topics: dict[str, TopicImage] = field(default_factory=dict)
    names_by_id: dict[bytes, str] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    client_metrics_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    being_deleted: dict[str, list[bytes]] = field(default_factory=dict)
    feature_levels: dict[str, int] = field(default_factory=dict)
    feature_epoch: int = 0
    last_producer_id: int = -1

    def apply(self, path: str, data: bytes | None) -> str | None:
        """Takes in one node (None: it was deleted). Returns the topic whose partitions or settings changed."""
        parts = path.split("/")
        if path.startswith(znodes.TOPICS + "/"):
            return self._apply_topic(parts[3], parts[4:], data)
        if path.startswith(znodes.TOPIC_CONFIGS + "/"):
            return self._apply_topic_config(parts[3], data)
        if path.startswith(znodes.BROKER_CONFIGS + "/"):
            self.broker_configs[parts[3]] = znodes.decode_config(data) if data is not None else {}
        elif path.startswith(znodes.GROUP_CONFIGS + "/"):
            _set_config(self.group_configs, znodes.name_in_path(parts[3]), data)
        elif path.startswith(znodes.CLIENT_METRICS_CONFIGS + "/"):
            _set_config(self.client_metrics_configs, znodes.name_in_path(parts[3]), data)
        elif path.startswith(znodes.DELETED_TOPICS + "/"):
            if data is None:
                self.being_deleted.pop(parts[3], None)
            else:
                self.being_deleted[parts[3]] = znodes.decode_deleted_topic(data)
        elif data is not None:
            self._apply_single(path, data)
        return None

    def _apply_topic(self, name: str, rest: list[str], data: bytes | None) -> str:
        if data is None:
            gone = self.topics.pop(name, None)
            if gone is not None:
                self.names_by_id.pop(gone.topic_id, None)
        elif not rest:
            topic_id, replicas = znodes.decode_topic(data)
            topic = self.topics.setdefault(name, TopicImage(name, topic_id))
            topic.replicas = replicas
            self.names_by_id[topic_id] = name
        elif len(rest) == 3 and rest[0] == "partitions" and name in self.topics:
            self.topics[name].states[int(rest[1])] = znodes.decode_partition_state(data)
        return name

    def _apply_topic_config(self, name: str, data: bytes | None) -> str:
        _set_config(self.topic_configs, name, data)
        return name

    def _apply_single(self, path: str, data: bytes) -> None:
        if path == znodes.CLUSTER_ID:
            self.cluster_id = znodes.decode_cluster_id(data)
        elif path == znodes.FEATURES:
            self.feature_levels, self.feature_epoch = znodes.decode_features(data)
        elif path == znodes.PRODUCER_ID_BLOCK:
            self.last_producer_id = znodes.decode_producer_id_block(data)


def _set_config(configs: dict[str, dict[str, str]], name: str, data: bytes | None) -> None:
    if data is None:
        configs.pop(name, None)
    else:
        configs[name] = znodes.decode_config(data)
