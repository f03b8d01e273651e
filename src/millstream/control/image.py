"""The cluster image: brokers, topics, settings, features. Only acknowledged writes change it.

``apply(path, data)`` is the only writer, for the nodes read at startup and for each later write. It
returns what it changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from millstream.control import znodes
from millstream.control.znodes import Assignment, BrokerRegistration, PartitionState
from millstream.core.types import TopicPartition

# Means the version after the known one. A state with an older explicit version is ignored.
NEXT_VERSION = -1


class Change(NamedTuple):
    """The effect of one node: a change of a topic, or of the state of one of its partitions.

    A topic changes when it is created, expanded, reassigned, configured or deleted. Without a
    topic, brokers, their settings or features have changed.
    """

    topic: str | None
    partition: int | None = None


NOT_A_TOPIC = Change(None)


class NodeData(NamedTuple):
    """A node to apply; ``data`` is None if it was deleted."""

    path: str
    data: bytes | None
    version: int = NEXT_VERSION


@dataclass(slots=True)
class TopicImage:
    """A topic: its id, the replicas and state of each partition, and current reassignments."""

    name: str
    topic_id: bytes
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)
    reassigning: dict[int, Assignment] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        return len(self.replicas)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def assignment(self, index: int) -> Assignment:
        return self.reassigning.get(index) or Assignment(self.replicas[index])


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(slots=True)
class ClusterImage:
    """The metadata of the cluster."""

    cluster_id: str = ""
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    # By live broker: replicas that it cannot serve.
    offline: dict[int, frozenset[TopicPartition]] = field(default_factory=dict)
    # By live broker: replicas whose directory has no room.
    full: dict[int, frozenset[TopicPartition]] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    names_by_id: dict[bytes, str] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    client_metrics_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    # By topic name: the ids that are being deleted, and the brokers that have replicas of them.
    being_deleted: dict[str, list[bytes]] = field(default_factory=dict)
    deleted_from: dict[str, frozenset[int]] = field(default_factory=dict)
    feature_levels: dict[str, int] = field(default_factory=dict)
    feature_epoch: int = 0
    last_producer_id: int = -1
    # By node: the last registration that a controller has processed.
    broker_epochs: dict[int, int] = field(default_factory=dict)
    # Brokers that registered once and were not unregistered, as the last controller recorded them.
    registered: dict[int, BrokerRegistration] = field(default_factory=dict)
    # Ids of internal topics that must not get more replicas automatically.
    kept_small: frozenset[bytes] = frozenset()

    def apply(self, path: str, data: bytes | None, version: int = NEXT_VERSION) -> Change | None:
        """Apply a node, deleted if ``data`` is None; return the changed topic or partition."""
        parts = path.split("/")
        if path.startswith(znodes.TOPICS + "/"):
            return self._apply_topic(parts[3], parts[4:], data, version)
        if path.startswith(znodes.TOPIC_CONFIGS + "/"):
            return self._apply_topic_config(parts[3], data)
        if path.startswith(znodes.BROKER_CONFIGS + "/"):
            self.broker_configs[parts[3]] = znodes.decode_config(data) if data is not None else {}
            return NOT_A_TOPIC
        if path.startswith(znodes.BROKERS + "/"):
            self._apply_broker(int(parts[3]), data, version)
            return NOT_A_TOPIC
        if path.startswith(znodes.OFFLINE + "/"):
            _set_replicas(self.offline, int(parts[3]), data)
            # Only responses to explicit requests contain it.
            return None
        if path.startswith(znodes.FULL + "/"):
            _set_replicas(self.full, int(parts[3]), data)
            # The partition states that change with it follow.
            return None
        if path.startswith(znodes.GROUP_CONFIGS + "/"):
            _set_config(self.group_configs, znodes.name_in_path(parts[3]), data)
            return NOT_A_TOPIC
        if path.startswith(znodes.CLIENT_METRICS_CONFIGS + "/"):
            _set_config(self.client_metrics_configs, znodes.name_in_path(parts[3]), data)
        elif path.startswith(znodes.DELETED_TOPICS + "/"):
            if data is None:
                self.being_deleted.pop(parts[3], None)
                self.deleted_from.pop(parts[3], None)
            else:
                self.being_deleted[parts[3]], self.deleted_from[parts[3]] = (
                    znodes.decode_deleted_topic(data)
                )
        elif data is not None and self._apply_single(path, data):
            return NOT_A_TOPIC
        return None

    def _apply_topic(self, name: str, rest: list[str], data: bytes | None, version: int) -> Change:
        if data is None:
            deleted = self.topics.pop(name, None)
            if deleted is not None:
                self.names_by_id.pop(deleted.topic_id, None)
        elif not rest:
            self._apply_assignment(name, data)
        elif len(rest) == 3 and rest[0] == "partitions" and name in self.topics:
            index = int(rest[1])
            self._apply_state(self.topics[name].states, index, data, version)
            return Change(name, index)
        return Change(name)

    def _apply_assignment(self, name: str, data: bytes) -> None:
        topic_id, replicas, reassigning = znodes.decode_topic(data)
        topic = self.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            if topic is not None:
                self.names_by_id.pop(topic.topic_id, None)
            topic = self.topics[name] = TopicImage(name, topic_id)
        topic.replicas, topic.reassigning = replicas, reassigning
        self.names_by_id[topic_id] = name

    @staticmethod
    def _apply_state(
        states: dict[int, PartitionState], index: int, data: bytes, version: int
    ) -> None:
        known = states.get(index)
        if version == NEXT_VERSION:
            version = 0 if known is None else known.partition_epoch + 1
        if known is None or version >= known.partition_epoch:
            states[index] = znodes.decode_partition_state(data, version)

    def _apply_broker(self, node_id: int, data: bytes | None, created: int) -> None:
        if data is None:
            self.brokers.pop(node_id, None)
            # The broker reports these again when it is back.
            self.offline.pop(node_id, None)
            self.full.pop(node_id, None)
        else:
            self.brokers[node_id] = znodes.decode_broker(node_id, data, created)

    def _apply_topic_config(self, name: str, data: bytes | None) -> Change:
        _set_config(self.topic_configs, name, data)
        return Change(name)

    def _apply_single(self, path: str, data: bytes) -> bool:
        """Apply a single node; return whether it is a change to report."""
        if path == znodes.CLUSTER_ID:
            self.cluster_id = znodes.decode_cluster_id(data)
        elif path == znodes.PRODUCER_ID_BLOCK:
            self.last_producer_id = znodes.decode_producer_id_block(data)
        elif path == znodes.BROKER_EPOCHS:
            self.broker_epochs = znodes.decode_broker_epochs(data)
        elif path == znodes.REGISTERED:
            self.registered = znodes.decode_registered(data)
        elif path == znodes.KEPT_SMALL:
            self.kept_small = znodes.decode_kept_small(data)
        elif path == znodes.FEATURES:
            self.feature_levels, self.feature_epoch = znodes.decode_features(data)
            return True
        elif path == znodes.STOPPING:
            self.stopping = znodes.decode_stopping(data)
            return True
        return False

    def registered_brokers(self) -> dict[int, BrokerRegistration]:
        """Return the live brokers, and those that are down and were not unregistered."""
        return self.registered | self.brokers

    def known_brokers(self) -> set[int]:
        """Return registered brokers, and others that have broker settings or replicas."""
        known = self.registered_brokers().keys() | {
            int(name) for name, config in self.broker_configs.items() if config and name.isdecimal()
        }
        for topic in self.topics.values():
            known.update(*topic.replicas.values())
        return known

    def become(self, other: ClusterImage) -> None:
        """Replace the contents in place, so that all holders of this image see the other's."""
        for item in fields(self):
            setattr(self, item.name, getattr(other, item.name))

    # ---- back to nodes ----

    def nodes(self, *, now_ms: int) -> Iterator[NodeData]:
        """Yield the nodes that turn an empty image into this one.

        The image may change during the iteration. The receiver then applies the changes as well:
        each node is complete, and versions show which state is newer.
        """
        yield NodeData(znodes.CLUSTER_ID, znodes.encode_cluster_id(self.cluster_id))
        yield NodeData(
            znodes.FEATURES, znodes.encode_features(self.feature_levels, self.feature_epoch)
        )
        yield NodeData(znodes.STOPPING, znodes.encode_stopping(self.stopping))
        if self.last_producer_id >= 0:
            block = znodes.encode_producer_id_block(
                -1, self.last_producer_id, self.last_producer_id
            )
            yield NodeData(znodes.PRODUCER_ID_BLOCK, block)
        for broker in list(self.brokers.values()):
            data = znodes.encode_broker(broker, now_ms=now_ms)
            yield NodeData(znodes.broker_path(broker.node_id), data, broker.epoch)
        if self.registered:
            yield NodeData(znodes.REGISTERED, znodes.encode_registered(self.registered.values()))
        for node_id, replicas in list(self.offline.items()):
            yield NodeData(znodes.offline_path(node_id), znodes.encode_offline(replicas))
        for node_id, replicas in list(self.full.items()):
            yield NodeData(znodes.full_path(node_id), znodes.encode_offline(replicas))
        for name, config in list(self.broker_configs.items()):
            yield NodeData(znodes.broker_config_path(name), znodes.encode_config(config))
        for name, config in list(self.group_configs.items()):
            yield NodeData(znodes.group_config_path(name), znodes.encode_config(config))
        for name, config in list(self.client_metrics_configs.items()):
            yield NodeData(znodes.client_metrics_config_path(name), znodes.encode_config(config))
        for name, ids in list(self.being_deleted.items()):
            data = znodes.encode_deleted_topic(ids, self.deleted_from.get(name, ()))
            yield NodeData(znodes.deleted_topic_path(name), data)
        for topic in list(self.topics.values()):
            yield from _topic_nodes(topic)
        for name, config in list(self.topic_configs.items()):
            yield NodeData(znodes.topic_config_path(name), znodes.encode_config(config))


def _topic_nodes(topic: TopicImage) -> Iterator[NodeData]:
    data = znodes.encode_topic(topic.topic_id, topic.replicas, topic.reassigning.items())
    yield NodeData(znodes.topic_path(topic.name), data)
    for index, state in list(topic.states.items()):
        path = znodes.partition_state_path(topic.name, index)
        yield NodeData(path, znodes.encode_partition_state(state), state.partition_epoch)


def _set_replicas(
    by_broker: dict[int, frozenset[TopicPartition]], node_id: int, data: bytes | None
) -> None:
    replicas = znodes.decode_offline(data) if data is not None else frozenset()
    if replicas:
        by_broker[node_id] = replicas
    else:
        by_broker.pop(node_id, None)


def _set_config(configs: dict[str, dict[str, str]], name: str, data: bytes | None) -> None:
    if data is None:
        configs.pop(name, None)
    else:
        configs[name] = znodes.decode_config(data)
