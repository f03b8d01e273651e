"""Kafka's znodes: for each, its path, how it is encoded, and how it is decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from millstream.core.ids import id_bytes, id_text

CLUSTER_ID = "/cluster/id"
FEATURES = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
TOPICS = "/brokers/topics"
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


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def encode_topic(topic_id: bytes, assignment: Mapping[int, tuple[int, ...]]) -> bytes:
    return _dump(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(index): list(replicas) for index, replicas in sorted(assignment.items())},
            "adding_replicas": {},
            "removing_replicas": {},
        }
    )


def decode_topic(data: bytes) -> tuple[bytes, dict[int, tuple[int, ...]]]:
    """(topic id, replicas of each partition)."""
    node = json.loads(data)
    partitions = {int(index): tuple(replicas) for index, replicas in node["partitions"].items()}
    return id_bytes(node["topic_id"]), partitions


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition, since which epoch, and which replicas are in sync."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int = 1


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


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


def decode_partition_state(data: bytes) -> PartitionState:
    node = json.loads(data)
    return PartitionState(node["leader"], node["leader_epoch"], tuple(node["isr"]), node["controller_epoch"])


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
    config: dict[str, str] = json.loads(data)["config"]
    return config


def deleted_topic_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


def encode_deleted_topic(topic_ids: list[bytes]) -> bytes:
    """Which incarnations of a topic are being deleted, so that a crash half-way does not bring one back."""
    return _dump({"version": 1, "topic_ids": [id_text(topic_id) for topic_id in topic_ids]})


def decode_deleted_topic(data: bytes) -> list[bytes]:
    return [id_bytes(text) for text in json.loads(data)["topic_ids"]]


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
