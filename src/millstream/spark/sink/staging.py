"""A topic in which the tasks of a batch write lay down finished record batches until all of them are done.

Tasks write there what they encoded, as often as Spark runs them; their commit messages name the batches that count. When the job has
succeeded, one writer carries exactly those over to their topics in one transaction, byte for byte but for the producer. The topic
carries the name of the job and is deleted with it.
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
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
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
    """A batch that was laid down, and where it is to go."""

    partition: int
    offset: int
    topic: str
    target: int


def topic_of(job: str) -> str:
    return PREFIX + job


def create(protocol: Protocol, job: str, largest: int, patience_s: float) -> Targets:
    """The staging topic of a job, made by whichever task comes first. It deletes nothing by itself: records may be of any age."""
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
    (made,) = ask_controller(protocol, request).topics
    if made.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise refusal(made.error_code, doing="create a staging topic", reason=made.error_message)
    return take_snapshot(protocol, [topic_of(job)], others=(), patience_s=patience_s)


def delete(protocol: Protocol, job: str) -> None:
    """Remove the topic; one that is not there was never needed."""
    name = topic_of(job)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=CREATE_TIMEOUT_MS
    )
    (gone,) = ask_controller(protocol, request).responses
    if gone.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise refusal(gone.error_code, doing=f"delete the staging topic {name!r}", reason=gone.error_message)


def read(
    protocol: Protocol, job: str, staged: Iterable[Staged]
) -> Iterator[tuple[Staged, bytes, memoryview]]:
    """The batches that count: header (as before it was sent) and records of each, in the order of their partitions."""
    by_partition: dict[int, dict[int, Staged]] = {}
    for one in staged:
        by_partition.setdefault(one.partition, {})[one.offset] = one
    for partition, wanted in sorted(by_partition.items()):
        yield from _read_partition(protocol, topic_of(job), partition, wanted)


def _read_partition(
    protocol: Protocol, topic: str, partition: int, wanted: dict[int, Staged]
) -> Iterator[tuple[Staged, bytes, memoryview]]:
    position, last = min(wanted), max(wanted)
    deadline_s = time.monotonic() + FETCH_PATIENCE_S
    found = 0
    while position <= last:
        records = _fetch(protocol, topic, partition, position)
        at = 0
        while len(records) - at >= HEADER_SIZE:
            header = parse_header(records, at)
            if at + header.size > len(records):
                break
            one = wanted.get(header.base_offset)
            if one is not None:
                found += 1
                yield (
                    one,
                    _unsent(records[at : at + HEADER_SIZE]),
                    records[at + HEADER_SIZE : at + header.size],
                )
            at += header.size
            position = header.next_offset
            deadline_s = time.monotonic() + FETCH_PATIENCE_S
        if time.monotonic() > deadline_s:
            raise WriteFailed(f"{topic}-{partition} cannot be read at offset {position}")
    if found != len(wanted):
        raise WriteFailed(f"{len(wanted) - found} batches are gone from {topic}-{partition}")


def _fetch(protocol: Protocol, topic: str, partition: int, position: int) -> memoryview:
    def attempt() -> memoryview:
        metadata = protocol.metadata([topic])
        (described,) = metadata.topics
        leader = {one.partition_index: one.leader_id for one in described.partitions}.get(partition, -1)
        part = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=topic, topic_id=described.topic_id, partitions=[part])],
        )
        answer = protocol.ask(request, node=leader)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code:
            raise refusal(code, doing=f"read {TopicPartition(topic, partition)}", subject=topic)
        return memoryview(answer.responses[0].partitions[0].records or b"")

    return protocol.patiently(attempt)


def _unsent(head: memoryview) -> bytes:
    """A header without what the broker put into it: offset and leader epoch."""
    fresh = bytearray(head)
    fresh[:LENGTH_AT] = bytes(LENGTH_AT)
    fresh[LEADER_EPOCH_AT:MAGIC_AT] = b"\xff\xff\xff\xff"
    return bytes(fresh)
