"""Kafka's znodes: for each, its path, how it is encoded, and how it is decoded."""

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
# Which registrations the controllers have taken in, so that the next one knows who has been away since.
BROKER_EPOCHS = "/brokers/epochs"
# Brokers that were seen once and not unregistered since: they count for placement while they are away.
REGISTERED = "/brokers/registered"
# Internal topics that an operator has given fewer replicas than they had: nobody gives them more of himself.
KEPT_SMALL = "/brokers/kept_small"
# By broker: the ids of its data directories, so that an empty disk in the place of one is noticed (KIP-858).
DIRECTORIES = "/brokers/directories"
# Never a node: brokers on their way out, which the controller tells to the others through its feed.
STOPPING = "/brokers/stopping"
# The same: by broker, the replicas that it has and cannot serve.
OFFLINE = "/brokers/offline"
# The same: by broker, the replicas whose directory has no room.
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
    """Whose a tree is. ``moving``: the metadata of that cluster is only on its way there, and no broker may use the tree."""

    cluster_id: str
    moving: bool


def encode_reservation(cluster_id: str) -> bytes:
    """Stands in the place of the cluster id until all of a cluster that is moved there is there."""
    return _dump({"version": "1", "moving": cluster_id})


def decode_cluster_mark(data: bytes) -> ClusterMark:
    value = json.loads(data)
    return ClusterMark(str(value.get("id", value.get("moving"))), moving="id" not in value)


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of a partition; those in ``adding`` are on their way in, those in ``removing`` on their way out."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """What a cancellation goes back to."""
        return tuple(node for node in self.replicas if node not in self.adding)


def encode_topic(
    topic_id: bytes,
    replicas: Mapping[int, tuple[int, ...]],
    moving: Iterable[tuple[int, Assignment]] = (),
) -> bytes:
    """``moving`` are the partitions under reassignment."""
    on_their_way = dict(moving)
    return _dump(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(index): list(nodes) for index, nodes in sorted(replicas.items())},
            "adding_replicas": {str(i): list(one.adding) for i, one in on_their_way.items() if one.adding},
            "removing_replicas": {
                str(i): list(one.removing) for i, one in on_their_way.items() if one.removing
            },
        }
    )


def decode_topic(data: bytes) -> tuple[bytes, dict[int, tuple[int, ...]], dict[int, Assignment]]:
    """(topic id, replicas of each partition, those under reassignment)."""
    node = json.loads(data)
    partitions = {int(index): tuple(replicas) for index, replicas in node["partitions"].items()}
    adding, removing = node.get("adding_replicas", {}), node.get("removing_replicas", {})
    moving = {
        int(index): Assignment(
            partitions[int(index)], tuple(adding.get(index, ())), tuple(removing.get(index, ()))
        )
        for index in {*adding, *removing}
    }
    return id_bytes(node["topic_id"]), partitions, moving


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition, since which epoch, and which replicas are in sync. ``partition_epoch`` is the version of its
    node, which rises with every change."""

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
    """Names that clients choose freely, as one part of a path; ``.`` and ``..`` are none."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


def name_in_path(part: str) -> str:
    return unquote(part)


def encode_config(config: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(data: bytes) -> dict[str, str]:
    config = json.loads(data)["config"]
    if not isinstance(config, dict):
        raise ValueError("its config is not names and texts")
    # Written by hand a number may be one.
    return {name: text if isinstance(text, str) else json.dumps(text) for name, text in config.items()}


def deleted_topic_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


def encode_deleted_topic(topic_ids: list[bytes], brokers: Iterable[int] = ()) -> bytes:
    """Which incarnations of a topic are being deleted, so that a crash half-way does not bring one back, and which brokers
    have replicas of them."""
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
    """The last id that has been given out."""
    return int(json.loads(data)["block_end"])


class BrokerEndpoint(NamedTuple):
    """Where clients of one listener find a broker."""

    listener: str
    host: str
    port: int
    security: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker. ``incarnation`` names its data directories: one that comes back before its old session has ended
    may replace its own registration, but nobody else's. ``epoch`` is the transaction that created the node. ``torn``: its machine
    went down with logs in use, so their ends may be gone."""

    node_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    incarnation: str = ""
    epoch: int = 0
    torn: bool = False

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        return next((one for one in self.endpoints if one.listener == listener), None)


def directories_path(node_id: int) -> str:
    return f"{DIRECTORIES}/{node_id}"


def encode_directories(ids: Iterable[str]) -> bytes:
    return _dump({"version": 1, "directories": sorted(ids)})


def decode_directories(data: bytes) -> list[str]:
    return [str(one) for one in json.loads(data)["directories"]]


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
            "listener_security_protocol_map": {one.listener: one.security for one in broker.endpoints},
            "rack": broker.rack,
            "features": {},
            "incarnation": broker.incarnation,
            "torn": broker.torn,
        }
    )


def broker_id(name: str) -> int:
    """Of a node below BROKERS; one that only looks like an id (``07``) would stand for another broker."""
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
    return _dump({"version": 1, "epochs": {str(node): epoch for node, epoch in sorted(epochs.items())}})


def decode_broker_epochs(data: bytes) -> dict[int, int]:
    return {int(node): epoch for node, epoch in json.loads(data)["epochs"].items()}


def encode_registered(brokers: Iterable[BrokerRegistration]) -> bytes:
    rows = {
        str(broker.node_id): {
            "endpoints": list(map(_endpoint_text, broker.endpoints)),
            "listener_security_protocol_map": {one.listener: one.security for one in broker.endpoints},
            "rack": broker.rack,
        }
        for broker in sorted(brokers, key=lambda broker: broker.node_id)
    }
    return _dump({"version": 1, "brokers": rows})


def decode_registered(data: bytes) -> dict[int, BrokerRegistration]:
    """The brokers at their last known addresses. One of which only the id is known has no endpoints."""
    found: dict[int, BrokerRegistration] = {}
    for name, row in json.loads(data)["brokers"].items():
        security = row.get("listener_security_protocol_map", {})
        endpoints = tuple(_endpoint(text, security) for text in row.get("endpoints", ()))
        found[int(name)] = BrokerRegistration(int(name), endpoints, row.get("rack"))
    return found


def encode_kept_small(topic_ids: Iterable[bytes]) -> bytes:
    return _dump({"version": 1, "topic_ids": sorted(map(id_text, topic_ids))})


def decode_kept_small(data: bytes) -> frozenset[bytes]:
    return frozenset(map(id_bytes, json.loads(data)["topic_ids"]))


def encode_controller(node_id: int, host: str, port: int, incarnation: str, *, now_ms: int) -> bytes:
    """With its address and its data directories, because a broker may be the controller before it has registered."""
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
    return frozenset(TopicPartition(topic, index) for topic, some in indexes.items() for index in some)
