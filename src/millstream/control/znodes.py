"""The paths and encodings of Kafka's znodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from millstream.core.ids import id_bytes, id_text
from millstream.core.types import TopicPartition

CLUSTER_ID = "/cluster/id"
FEATURES = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
TOPICS = "/brokers/topics"
BROKERS = "/brokers/ids"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
# The registrations that controllers have processed. The next controller sees from them which
# brokers were down since.
BROKER_EPOCHS = "/brokers/epochs"
# Brokers that registered once and were not unregistered: placement counts them while they are down.
REGISTERED = "/brokers/registered"
# Internal topics whose replicas an operator has reduced: they do not grow automatically.
KEPT_SMALL = "/brokers/kept_small"
# By broker: the ids of its data directories. They reveal an empty disk in place of one (KIP-858).
DIRECTORIES = "/brokers/directories"
# Never a node: brokers in shutdown, which the controller sends to the others through its feed.
STOPPING = "/brokers/stopping"
# Never a node: by broker, the replicas that it cannot serve.
OFFLINE = "/brokers/offline"
# Never a node: by broker, the replicas whose directory has no room.
FULL = "/brokers/full"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
CLIENT_METRICS_CONFIGS = "/config/client-metrics"
DELETED_TOPICS = "/admin/delete_topics"
DEFAULT_BROKER = "<default>"


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(json.loads(data)["id"])


class ClusterMark(NamedTuple):
    """The cluster that a ZooKeeper tree belongs to.

    ``migrating``: the migration of its metadata has not finished, and no broker may use the tree.
    """

    cluster_id: str
    migrating: bool


def encode_reservation(cluster_id: str) -> bytes:
    """Encode the node that replaces the cluster id until a migration to this tree is complete."""
    return _dump({"version": "1", "moving": cluster_id})


def decode_cluster_mark(data: bytes) -> ClusterMark:
    value = json.loads(data)
    return ClusterMark(str(value.get("id", value.get("moving"))), migrating="id" not in value)


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of a partition; a reassignment adds ``adding`` and removes ``removing``."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas that a cancellation restores."""
        return tuple(node for node in self.replicas if node not in self.adding)


def encode_topic(
    topic_id: bytes,
    replicas: Mapping[int, tuple[int, ...]],
    reassigning: Iterable[tuple[int, Assignment]] = (),
) -> bytes:
    """Encode a topic; ``reassigning`` are the partitions under reassignment."""
    changing = dict(reassigning)
    return _dump(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(index): list(nodes) for index, nodes in sorted(replicas.items())},
            "adding_replicas": {
                str(index): list(change.adding)
                for index, change in changing.items()
                if change.adding
            },
            "removing_replicas": {
                str(index): list(change.removing)
                for index, change in changing.items()
                if change.removing
            },
        }
    )


def decode_topic(data: bytes) -> tuple[bytes, dict[int, tuple[int, ...]], dict[int, Assignment]]:
    """Return the topic id, the replicas of each partition, and those under reassignment."""
    node = json.loads(data)
    partitions = {int(index): tuple(replicas) for index, replicas in node["partitions"].items()}
    adding, removing = node.get("adding_replicas", {}), node.get("removing_replicas", {})
    reassigning = {
        int(index): Assignment(
            partitions[int(index)], tuple(adding.get(index, ())), tuple(removing.get(index, ()))
        )
        for index in {*adding, *removing}
    }
    return id_bytes(node["topic_id"]), partitions, reassigning


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The leader, leader epoch and ISR of a partition.

    ``partition_epoch`` is the version of its node, which rises with every change.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int = 1
    partition_epoch: int = 0


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{partition_path(topic, partition)}/state"


def encode_partition_state(state: PartitionState) -> bytes:
    return _dump(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        }
    )


def decode_partition_state(data: bytes, version: int = 0) -> PartitionState:
    node = json.loads(data)
    return PartitionState(
        node["leader"], node["leader_epoch"], tuple(node["isr"]), node["controller_epoch"], version
    )


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(broker: str) -> str:
    return f"{BROKER_CONFIGS}/{broker}"


def group_config_path(group: str) -> str:
    return f"{GROUP_CONFIGS}/{_sanitized(group)}"


def client_metrics_config_path(subscription: str) -> str:
    return f"{CLIENT_METRICS_CONFIGS}/{_sanitized(subscription)}"


def _sanitized(name: str) -> str:
    """Quote a name that clients choose freely as one part of a path, also ``.`` and ``..``."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


def name_in_path(part: str) -> str:
    return unquote(part)


def encode_config(config: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(data: bytes) -> dict[str, str]:
    config = json.loads(data)["config"]
    if not isinstance(config, dict):
        raise ValueError("its config does not map names to texts")
    # Accept a JSON number in a node that was written by hand.
    return {
        name: text if isinstance(text, str) else json.dumps(text) for name, text in config.items()
    }


def deleted_topic_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


def encode_deleted_topic(topic_ids: list[bytes], brokers: Iterable[int] = ()) -> bytes:
    """Encode the ids of a topic that are being deleted, and the brokers with replicas of them.

    With the ids, a crash during the deletion does not restore a deleted topic.
    """
    ids = [id_text(topic_id) for topic_id in topic_ids]
    return _dump({"version": 1, "topic_ids": ids, "brokers": sorted(brokers)})


def decode_deleted_topic(data: bytes) -> tuple[list[bytes], frozenset[int]]:
    node = json.loads(data)
    return [id_bytes(text) for text in node["topic_ids"]], frozenset(node.get("brokers", ()))


def encode_features(levels: Mapping[str, int], epoch: int) -> bytes:
    return _dump({"features": dict(levels), "version": 2, "status": 1, "epoch": epoch})


def decode_features(data: bytes) -> tuple[dict[str, int], int]:
    node: dict[str, Any] = json.loads(data)
    return node["features"], node.get("epoch", 0)


def encode_producer_id_block(broker: int, start: int, end: int) -> bytes:
    return _dump({"version": 1, "broker": broker, "block_start": str(start), "block_end": str(end)})


def decode_producer_id_block(data: bytes) -> int:
    """Return the last id of the block."""
    return int(json.loads(data)["block_end"])


class BrokerEndpoint(NamedTuple):
    """The address of a broker for the clients of one listener."""

    listener: str
    host: str
    port: int
    security: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker.

    ``incarnation`` identifies its data directories. A broker that restarts before its old session
    has expired may replace its old registration, but not that of another broker. ``epoch`` is the
    transaction that created the node. ``torn``: its machine crashed with logs in use, so their
    tails may be lost.
    """

    node_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    incarnation: str = ""
    epoch: int = 0
    torn: bool = False

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        return next(
            (endpoint for endpoint in self.endpoints if endpoint.listener == listener), None
        )


def directories_path(node_id: int) -> str:
    return f"{DIRECTORIES}/{node_id}"


def encode_directories(ids: Iterable[str]) -> bytes:
    return _dump({"version": 1, "directories": sorted(ids)})


def decode_directories(data: bytes) -> list[str]:
    return [str(directory) for directory in json.loads(data)["directories"]]


def broker_path(node_id: int) -> str:
    return f"{BROKERS}/{node_id}"


def encode_broker(broker: BrokerRegistration, *, now_ms: int) -> bytes:
    first = broker.endpoints[0]
    return _dump(
        {
            "version": 5,
            "host": first.host,
            "port": first.port,
            "jmx_port": -1,
            "timestamp": str(now_ms),
            "endpoints": list(map(_endpoint_text, broker.endpoints)),
            "listener_security_protocol_map": {
                endpoint.listener: endpoint.security for endpoint in broker.endpoints
            },
            "rack": broker.rack,
            "features": {},
            "incarnation": broker.incarnation,
            "torn": broker.torn,
        }
    )


def broker_id(name: str) -> int:
    """Return the broker id of a node below BROKERS; reject ``07``, which would mean another one."""
    if not name.isdecimal() or str(int(name)) != name:
        raise ValueError(f"{name!r} is not the id of a broker")
    return int(name)


def decode_broker(node_id: int, data: bytes, created: int = 0) -> BrokerRegistration:
    node: dict[str, Any] = json.loads(data)
    security = node.get("listener_security_protocol_map", {})
    endpoints = tuple(_endpoint(text, security) for text in node["endpoints"])
    if not endpoints:
        raise ValueError("it has no endpoints")
    return BrokerRegistration(
        node_id,
        endpoints,
        node.get("rack"),
        node.get("incarnation", ""),
        created,
        node.get("torn", False),
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _endpoint_text(endpoint: BrokerEndpoint) -> str:
    return f"{endpoint.listener}://{_bracketed(endpoint.host)}:{endpoint.port}"


def _endpoint(text: str, security: Mapping[str, str]) -> BrokerEndpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return BrokerEndpoint(listener, host.strip("[]"), int(port), security.get(listener, listener))


def encode_broker_epochs(epochs: Mapping[int, int]) -> bytes:
    return _dump(
        {"version": 1, "epochs": {str(node): epoch for node, epoch in sorted(epochs.items())}}
    )


def decode_broker_epochs(data: bytes) -> dict[int, int]:
    return {int(node): epoch for node, epoch in json.loads(data)["epochs"].items()}


def encode_registered(brokers: Iterable[BrokerRegistration]) -> bytes:
    rows = {
        str(broker.node_id): {
            "endpoints": list(map(_endpoint_text, broker.endpoints)),
            "listener_security_protocol_map": {
                endpoint.listener: endpoint.security for endpoint in broker.endpoints
            },
            "rack": broker.rack,
        }
        for broker in sorted(brokers, key=lambda broker: broker.node_id)
    }
    return _dump({"version": 1, "brokers": rows})


def decode_registered(data: bytes) -> dict[int, BrokerRegistration]:
    """Return brokers at their last known addresses; without endpoints if only the id is known."""
    brokers: dict[int, BrokerRegistration] = {}
    for name, row in json.loads(data)["brokers"].items():
        security = row.get("listener_security_protocol_map", {})
        endpoints = tuple(_endpoint(text, security) for text in row.get("endpoints", ()))
        brokers[int(name)] = BrokerRegistration(int(name), endpoints, row.get("rack"))
    return brokers


def encode_kept_small(topic_ids: Iterable[bytes]) -> bytes:
    return _dump({"version": 1, "topic_ids": sorted(map(id_text, topic_ids))})


def decode_kept_small(data: bytes) -> frozenset[bytes]:
    return frozenset(map(id_bytes, json.loads(data)["topic_ids"]))


def encode_controller(
    node_id: int, host: str, port: int, incarnation: str, *, now_ms: int
) -> bytes:
    """Encode the controller with its address and data directories.

    They are needed because a broker may become the controller before it has registered.
    """
    node = {"version": 2, "brokerid": node_id, "timestamp": str(now_ms), "kraftControllerEpoch": -1}
    return _dump({**node, "host": host, "port": port, "incarnation": incarnation})


def decode_controller(data: bytes) -> int:
    return int(json.loads(data)["brokerid"])


def decode_controller_incarnation(data: bytes) -> str:
    return str(json.loads(data).get("incarnation", ""))


def decode_controller_address(data: bytes) -> tuple[str, int]:
    node = json.loads(data)
    return node["host"], node["port"]


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    return int(data)


def encode_stopping(brokers: Iterable[int]) -> bytes:
    return _dump(sorted(brokers))


def decode_stopping(data: bytes) -> frozenset[int]:
    return frozenset(json.loads(data))


def offline_path(node_id: int) -> str:
    return f"{OFFLINE}/{node_id}"


def full_path(node_id: int) -> str:
    return f"{FULL}/{node_id}"


def encode_offline(replicas: Iterable[TopicPartition]) -> bytes:
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(replicas):
        indexes.setdefault(topic, []).append(index)
    return _dump(indexes)


def decode_offline(data: bytes) -> frozenset[TopicPartition]:
    indexes: dict[str, list[int]] = json.loads(data)
    return frozenset(
        TopicPartition(topic, index)
        for topic, partitions in indexes.items()
        for index in partitions
    )
