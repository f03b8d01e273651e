"""The admin calls of every client, answered as Apache Kafka answers them."""

from __future__ import annotations

from interop.conftest import Target
from interop.programs import Program

DEFAULT_RETENTION = "604800000 DEFAULT_CONFIG"

# Observed with the same programs against Apache Kafka 4.3.
ANSWERS: list[dict[str, object]] = [
    {"op": "describe_cluster", "nodes": 1, "controller_known": True, "cluster_id_length": 22},
    {
        "op": "create_topic",
        "partitions": 2,
        "replication_factor": 1,
        "has_id": True,
        "retention_ms": "3600000",
    },
    {"op": "create_again", "error": "TOPIC_ALREADY_EXISTS"},
    {"op": "create_wrong_config", "error": "INVALID_CONFIG"},
    {"op": "create_replication_9", "error": "INVALID_REPLICATION_FACTOR"},
    {"op": "create_bad_name", "error": "INVALID_TOPIC_EXCEPTION"},
    {"op": "validate_only", "partitions": 3},
    {
        "op": "describe_topic",
        "partitions": 2,
        "internal": False,
        "has_id": True,
        "led_by_its_replica": True,
    },
    {"op": "describe_topic_by_id", "same_name": True},
    {"op": "describe_unknown", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
    {"op": "list_topics", "has_it": True},
    {"op": "create_partitions", "error": "NONE"},
    {"op": "fewer_partitions", "error": "INVALID_PARTITIONS"},
    {"op": "partitions_now", "count": 4},
    {
        "op": "describe_configs",
        "retention_ms": "3600000 DYNAMIC_TOPIC_CONFIG",
        "segment_bytes": "1073741824 DEFAULT_CONFIG",
        "cleanup_policy": "delete DEFAULT_CONFIG",
    },
    {"op": "alter_set", "error": "NONE", "retention_ms": "7200000 DYNAMIC_TOPIC_CONFIG"},
    {"op": "alter_append", "error": "NONE", "cleanup_policy": "delete,compact"},
    {"op": "alter_subtract", "error": "NONE", "cleanup_policy": "delete"},
    {"op": "alter_delete", "error": "NONE", "retention_ms": DEFAULT_RETENTION},
    {"op": "alter_unknown", "error": "INVALID_CONFIG"},
    {"op": "alter_wrong_value", "error": "INVALID_CONFIG"},
    {"op": "alter_append_number", "error": "INVALID_CONFIG"},
    {"op": "describe_configs_unknown", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
    {"op": "broker_configs", "many": True},
    {
        "op": "broker_default_set",
        "error": "NONE",
        "topic_sees": "604000000 DYNAMIC_DEFAULT_BROKER_CONFIG",
    },
    {"op": "broker_default_delete", "error": "NONE", "topic_sees": DEFAULT_RETENTION},
    {"op": "broker_read_only", "error": "INVALID_REQUEST"},
    {"op": "describe_producers", "count": 1, "last_sequence": 9},
    {"op": "delete_records", "low_watermark": 4},
    {"op": "delete_records_beyond", "error": "OFFSET_OUT_OF_RANGE"},
    {
        "op": "list_offsets",
        "earliest": 4,
        "latest": 10,
        "max_timestamp": 6,
        "max_timestamp_ms": 500,
        "for_timestamp": 5,
        "beyond": -1,
        "earliest_local": 4,
        "latest_tiered": -1,
    },
    {"op": "describe_log_dirs", "dirs": 1, "size_known": True, "free_known": True},
    {"op": "alter_log_dir_unknown", "error": "LOG_DIR_NOT_FOUND"},
    {"op": "list_config_resources", "types": ["BROKER", "TOPIC"]},
    {"op": "describe_features", "finalized_known": True},
    {"op": "update_features_unknown", "error": "INVALID_UPDATE_VERSION"},
    {"op": "delete_topic_by_id", "error": "NONE"},
    {"op": "delete_topic_again", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
    {"op": "describe_deleted", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
]

KAFKAJS_ANSWERS: list[dict[str, object]] = [
    {"op": "describe_cluster", "nodes": 1, "controller_known": True, "cluster_id_length": 22},
    {"op": "create_topic_plain", "error": "NONE"},
    {"op": "create_again", "made": False},
    {"op": "create_wrong_config", "error": "INVALID_CONFIG"},
    {"op": "create_replication_9", "error": "INVALID_REPLICATION_FACTOR"},
    {"op": "describe_topic", "partitions": 2, "led_by_its_replica": True},
    {"op": "list_topics", "has_it": True},
    {"op": "create_partitions", "error": "NONE"},
    {"op": "fewer_partitions", "error": "INVALID_PARTITIONS"},
    {"op": "partitions_now", "count": 4},
    {
        "op": "describe_configs",
        "retention_ms": "3600000 DYNAMIC_TOPIC_CONFIG",
        "segment_bytes": "1073741824 DEFAULT_CONFIG",
        "cleanup_policy": "delete DEFAULT_CONFIG",
    },
    {"op": "alter_set", "error": "NONE", "retention_ms": "7200000 DYNAMIC_TOPIC_CONFIG"},
    {"op": "alter_unknown", "error": "INVALID_CONFIG"},
    {"op": "delete_records", "error": "NONE"},
    {"op": "delete_topic", "error": "NONE"},
    {"op": "delete_topic_again", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
]


def by_name(lines: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    return {line["op"]: line for line in lines}


def test_java_admin_calls(target: Target, java: Program, topic_name: str) -> None:
    assert by_name(java.run(target.bootstrap, "admin", topic=topic_name)) == by_name(ANSWERS)


def test_franz_go_admin_calls(target: Target, go: Program, topic_name: str) -> None:
    assert by_name(go.run(target.bootstrap, "admin", topic=topic_name)) == by_name(ANSWERS)


def test_kafkajs_admin_calls(target: Target, node: Program, topic_name: str) -> None:
    assert by_name(node.run(target.bootstrap, "admin", topic=topic_name)) == by_name(
        KAFKAJS_ANSWERS
    )
