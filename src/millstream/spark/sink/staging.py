"""The staging topic of a batch write (``df.write``).

Tasks write their record batches there, as often as Spark runs them. Their commit messages name the
batches of successful tasks. When the job has succeeded, one writer copies exactly those to their
topics in one transaction. Only the producer fields of a batch change. The topic is named after the
job and is deleted with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.client.errors import refusal
from millstream.client.protocol import Protocol
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.spark.sink.failures import WriteFailed
from millstream.spark.sink.progress import CREATE_TIMEOUT_MS, ask_controller
from millstream.spark.sink.targets import Targets, take_snapshot
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.records.batch import parse_header
from millstream.wire.records.layout import HEADER_SIZE, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT

PREFIX = "__millstream_staging_"
PARTITIONS = 8
FETCH_BYTES = 16 << 20
FETCH_WAIT_MS = 500
FETCH_PATIENCE_S = 60.0


class Staged(NamedTuple):
    """A staged batch, and the topic and partition it is for."""

    partition: int
    offset: int
    topic: str
    target: int


def topic_of(job: str) -> str:
    return PREFIX + job


def create(protocol: Protocol, job: str, largest: int, patience_s: float) -> Targets:
    """Create the staging topic of a job; the first task does.

    Its retention is unlimited, because records may have any timestamp.
    """
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": str(largest),
    }
    topic = CreatableTopic(
        name=topic_of(job),
        num_partitions=PARTITIONS,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
    (created,) = ask_controller(protocol, request).topics
    if created.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise refusal(
            created.error_code, doing="create a staging topic", reason=created.error_message
        )
    return take_snapshot(protocol, [topic_of(job)], others=(), patience_s=patience_s)


def delete(protocol: Protocol, job: str) -> None:
    """Delete the topic, if it exists."""
    name = topic_of(job)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=CREATE_TIMEOUT_MS
    )
    (deleted,) = ask_controller(protocol, request).responses
    if deleted.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise refusal(
            deleted.error_code,
            doing=f"delete the staging topic {name!r}",
            reason=deleted.error_message,
        )


def read(
    protocol: Protocol, job: str, staged: Iterable[Staged]
) -> Iterator[tuple[Staged, bytes, memoryview]]:
    """Yield the staged batches by partition, each with its header and its records.

    The header is as it was before the batch was sent.
    """
    by_partition: dict[int, dict[int, Staged]] = {}
    for batch in staged:
        by_partition.setdefault(batch.partition, {})[batch.offset] = batch
    for partition, by_offset in sorted(by_partition.items()):
        yield from _read_partition(protocol, topic_of(job), partition, by_offset)


def _read_partition(
    protocol: Protocol, topic: str, partition: int, by_offset: dict[int, Staged]
) -> Iterator[tuple[Staged, bytes, memoryview]]:
    position, last = min(by_offset), max(by_offset)
    deadline_s = time.monotonic() + FETCH_PATIENCE_S
    count = 0
    while position <= last:
        records = _fetch(protocol, topic, partition, position)
        at = 0
        while len(records) - at >= HEADER_SIZE:
            header = parse_header(records, at)
            if at + header.size > len(records):
                break
            staged = by_offset.get(header.base_offset)
            if staged is not None:
                count += 1
                yield (
                    staged,
                    _unsent(records[at : at + HEADER_SIZE]),
                    records[at + HEADER_SIZE : at + header.size],
                )
            at += header.size
            position = header.next_offset
            deadline_s = time.monotonic() + FETCH_PATIENCE_S
        if time.monotonic() > deadline_s:
            raise WriteFailed(f"{topic}-{partition} cannot be read at offset {position}")
    if count != len(by_offset):
        raise WriteFailed(f"{topic}-{partition} has lost {len(by_offset) - count} staged batches")


def _fetch(protocol: Protocol, topic: str, partition: int, position: int) -> memoryview:
    def attempt() -> memoryview:
        metadata = protocol.metadata([topic])
        (described,) = metadata.topics
        leader = {part.partition_index: part.leader_id for part in described.partitions}.get(
            partition, -1
        )
        fetch_partition = FetchPartition(
            partition=partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchTopic(topic=topic, topic_id=described.topic_id, partitions=[fetch_partition])
            ],
        )
        response = protocol.ask(request, node=leader)
        code = response.error_code or response.responses[0].partitions[0].error_code
        if code:
            raise refusal(code, doing=f"read {TopicPartition(topic, partition)}", subject=topic)
        return memoryview(response.responses[0].partitions[0].records or b"")

    return protocol.patiently(attempt)


def _unsent(head: memoryview) -> bytes:
    """Return a header without the fields that the broker set: offset and leader epoch."""
    fresh = bytearray(head)
    fresh[:LENGTH_AT] = bytes(LENGTH_AT)
    fresh[LEADER_EPOCH_AT:MAGIC_AT] = b"\xff\xff\xff\xff"
    return bytes(fresh)
