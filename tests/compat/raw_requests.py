"""Requests in short: plain values in, the project's request messages out; and what is read from
answers.

``message("Fetch", topics=[{...}])`` builds any request from nested dictionaries; the functions
below it are the usual ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compat.raw_client import API
from millstream.wire.schema import Field, Struct

NULL_ID = bytes(16)
UNKNOWN_ID = bytes.fromhex("11111111222233334444555555555555")
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def message(api: str, **values: Any) -> Struct:
    """A request of this API."""
    return build(API[api].request_class(), values)


def build(cls: type[Struct], values: Mapping[str, Any]) -> Struct:
    fields = {field.name: field for field in cls.fields}
    return cls(**{name: _value(fields[name], value) for name, value in values.items()})


def _value(field: Field, value: Any) -> Any:
    if value is None or not isinstance(field.item, type):
        return value
    if field.kind == "array":
        return [build(field.item, one) for one in value]
    return build(field.item, value)


# ---- records ----


def produce(
    topic: str | bytes,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> Struct:
    """To one partition; a topic given as bytes is an id (v13)."""
    rows = [{"index": partition, "records": records}]
    return message(
        "Produce",
        acks=acks,
        timeout_ms=5000,
        transactional_id=transactional_id,
        topic_data=[named(topic, "name") | {"partition_data": rows}],
    )


def fetch(
    topic: str | bytes | None,
    offset: int = 0,
    *,
    partition: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    min_bytes: int = 0,
    max_wait_ms: int = 100,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[tuple[str | bytes, Sequence[int]]] = (),
    **more: Any,
) -> Struct:
    """From one partition, or none; ``session`` is (id, epoch)."""
    row = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": partition_max_bytes,
        "current_leader_epoch": leader_epoch,
        "last_fetched_epoch": last_fetched_epoch,
    }
    return message(
        "Fetch",
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[named(topic, "topic") | {"partitions": [row]}] if topic is not None else [],
        forgotten_topics_data=[
            named(gone, "topic") | {"partitions": list(rows)} for gone, rows in forget
        ],
        **more,
    )


def named(topic: str | bytes, field: str) -> dict[str, Any]:
    return {field: topic} if isinstance(topic, str) else {"topic_id": topic}


def list_offsets(
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    leader_epoch: int = -1,
    isolation_level: int = 0,
    replica_id: int = -1,
    times: int = 1,
) -> Struct:
    row = {
        "partition_index": partition,
        "timestamp": timestamp,
        "current_leader_epoch": leader_epoch,
    }
    return message(
        "ListOffsets",
        replica_id=replica_id,
        isolation_level=isolation_level,
        timeout_ms=5000,
        topics=[{"name": topic, "partitions": [row] * times}],
    )


def delete_records(topic: str, offset: int, *, partition: int = 0) -> Struct:
    rows = [{"partition_index": partition, "offset": offset}]
    return message("DeleteRecords", topics=[{"name": topic, "partitions": rows}], timeout_ms=5000)


def offset_for_leader_epoch(
    topic: str, epoch: int, *, partition: int = 0, current: int = -1
) -> Struct:
    row = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    return message(
        "OffsetForLeaderEpoch", replica_id=-1, topics=[{"topic": topic, "partitions": [row]}]
    )


def init_producer_id(
    transactional_id: str | None = None, timeout_ms: int = 60000, **more: int
) -> Struct:
    return message(
        "InitProducerId",
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        **more,
    )


# ---- topics ----


def new_topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    configs: Mapping[str, str | None] | Sequence[tuple[str, str | None]] = (),
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
) -> dict[str, Any]:
    pairs = configs.items() if isinstance(configs, Mapping) else configs
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": p, "broker_ids": list(nodes)} for p, nodes in assignments
        ],
        "configs": [{"name": key, "value": value} for key, value in pairs],
    }


def create_topics(
    *topics: Mapping[str, Any], validate_only: bool = False, timeout_ms: int = 10000
) -> Struct:
    return message(
        "CreateTopics", topics=topics, timeout_ms=timeout_ms, validate_only=validate_only
    )


def delete_topics(*topics: str | bytes) -> Struct:
    """By name or by id (v6)."""
    rows = [{"name": t} if isinstance(t, str) else {"name": None, "topic_id": t} for t in topics]
    return message("DeleteTopics", topics=rows, timeout_ms=10000)


def delete_topics_by_name(*names: str) -> Struct:
    """v1 to v5."""
    return message("DeleteTopics", topic_names=list(names), timeout_ms=10000)


def create_partitions(
    topic: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
    times: int = 1,
) -> Struct:
    rows = None if assignments is None else [{"broker_ids": list(nodes)} for nodes in assignments]
    return message(
        "CreatePartitions",
        topics=[{"name": topic, "count": count, "assignments": rows}] * times,
        timeout_ms=10000,
        validate_only=validate_only,
    )


def metadata(
    *topics: str | bytes | Mapping[str, Any], auto_create: bool = False, **more: Any
) -> Struct:
    """By name, by id (bytes) or by both (a dictionary)."""
    return message(
        "Metadata",
        topics=[_asked(t) for t in topics],
        allow_auto_topic_creation=auto_create,
        **more,
    )


def _asked(topic: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(topic, bytes):
        return {"name": None, "topic_id": topic}
    return {"name": topic} if isinstance(topic, str) else topic


def all_topics() -> Struct:
    return message("Metadata", topics=None, allow_auto_topic_creation=False)


def describe_topic_partitions(
    *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000
) -> Struct:
    place = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return message(
        "DescribeTopicPartitions",
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=place,
    )


# ---- settings ----


def describe_configs(
    kind: int, name: str, *keys: str, every: bool = False, synonyms: bool = True
) -> Struct:
    wanted = list(keys) if keys or every else None
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": wanted}
    return message("DescribeConfigs", resources=[resource], include_synonyms=synonyms)


def alter_incrementally(
    kind: int,
    name: str,
    *operations: tuple[str, int, str | None],
    validate_only: bool = False,
    times: int = 1,
) -> Struct:
    rows = [
        {"name": key, "config_operation": what, "value": value} for key, what, value in operations
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    return message(
        "IncrementalAlterConfigs", resources=[resource] * times, validate_only=validate_only
    )


def alter_configs(
    kind: int, name: str, *pairs: tuple[str, str | None], validate_only: bool = False
) -> Struct:
    rows = [{"name": key, "value": value} for key, value in pairs]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    return message("AlterConfigs", resources=[resource], validate_only=validate_only)


# ---- answers ----


def values(answer: Any, field: str) -> list[Any]:
    """Every value of the fields of this name, in the order of the answer."""
    return [value for name, value in _walk(answer) if name == field]


def _walk(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, Struct):
        for field in part.fields:
            value = getattr(part, field.name)
            yield field.name, value
            yield from _walk(value)
    elif isinstance(part, list):
        for one in part:
            yield from _walk(one)


def errors(answer: Any) -> list[int]:
    """Every error code of an answer."""
    return values(answer, "error_code")


def stored(answer: Any) -> bytes:
    """The records of a Fetch answer with one partition."""
    [records] = values(answer, "records")
    return bytes(records or b"")
