"""A handwritten encoder of Fetch responses, which sends records from where they are stored.

The generated codec of ``messages/fetch.py`` would need the records as bytes in memory. This encoder
returns the response as a list of parts, in which any object with a length can represent records. A
test compares both for all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Generic, NamedTuple, TypeVar

from millstream.wire.compiler import write_uvarint
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.node_endpoints import NodeEndpoint, write_tags

FETCH_KEY = 1
# The first versions with flexible encoding, topic ids, and endpoints of new leaders.
FLEXIBLE = 12
BY_ID = 13
WITH_NODES = 16

_R = TypeVar("_R")


class PartitionData(NamedTuple, Generic[_R]):
    """One partition of a response. ``records`` is sent unchanged; ``size`` is its byte length."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: _R | None
    size: int
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1


Topics = Sequence[tuple[str | bytes, Sequence[PartitionData[_R]]]]

_HEAD_0 = struct.Struct(">ihq").pack
_HEAD_4 = struct.Struct(">ihqq").pack
_HEAD_5 = struct.Struct(">ihqqq").pack
_I32 = struct.Struct(">i").pack
_ABORTED = struct.Struct(">qq").pack
_EPOCH_END = struct.Struct(">iq").pack
_LEADER = struct.Struct(">ii").pack


def encode(
    version: int,
    correlation_id: int,
    topics: Topics[_R],
    *,
    session_id: int = 0,
    error_code: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> list[bytearray | _R]:
    """Encode a whole response, with its size. ``nodes`` are the endpoints of its leaders."""
    writer = _Writer[_R](version, correlation_id, session_id, error_code)
    writer.count(len(topics))
    for topic, partitions in topics:
        writer.topic(topic, partitions)
    return writer.finish(nodes if version >= WITH_NODES else ())


def encode_steps(
    version: int,
    correlation_id: int,
    topics: Topics[_R],
    *,
    session_id: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> Generator[None, None, list[bytearray | _R]]:
    """``encode`` as a generator that yields after every partition."""
    writer = _Writer[_R](version, correlation_id, session_id, 0)
    writer.count(len(topics))
    for topic, partitions in topics:
        yield from writer.topic_steps(topic, partitions)
    return writer.finish(nodes if version >= WITH_NODES else ())


class _Writer(Generic[_R]):
    """Writes to a buffer, and starts a new one after each part of records."""

    def __init__(self, version: int, correlation_id: int, session_id: int, error_code: int) -> None:
        self.version = version
        self.flexible = version >= FLEXIBLE
        self.head = self.out = begin_response(FETCH_KEY, version, correlation_id)
        self.parts: list[bytearray | _R] = [self.head]
        self.record_bytes = 0
        if version >= 1:
            self.out += _I32(0)
        if version >= 7:
            self.out += struct.pack(">hi", error_code, session_id)

    def count(self, n: int) -> None:
        if self.flexible:
            write_uvarint(self.out, n + 1)
        else:
            self.out += _I32(n)

    def topic(self, topic: str | bytes, partitions: Sequence[PartitionData[_R]]) -> None:
        if isinstance(topic, bytes):
            self.out += topic
        else:
            name = topic.encode()
            if self.flexible:
                write_uvarint(self.out, len(name) + 1)
            else:
                self.out += struct.pack(">h", len(name))
            self.out += name
        self.count(len(partitions))
        for partition in partitions:
            self.partition(partition)
        if self.flexible:
            self.out.append(0)

    def topic_steps(
        self, topic: str | bytes, partitions: Sequence[PartitionData[_R]]
    ) -> Generator[None, None, None]:
        self.topic(topic, ())
        # Remove the partition count of 0 (and the empty tags).
        del self.out[-2 if self.flexible else -4 :]
        self.count(len(partitions))
        for partition in partitions:
            self.partition(partition)
            yield
        if self.flexible:
            self.out.append(0)

    def partition(self, data: PartitionData[_R]) -> None:
        version = self.version
        if version >= 5:
            self.out += _HEAD_5(
                data.partition,
                data.error_code,
                data.high_watermark,
                data.last_stable_offset,
                data.log_start_offset,
            )
        elif version == 4:
            self.out += _HEAD_4(
                data.partition, data.error_code, data.high_watermark, data.last_stable_offset
            )
        else:
            self.out += _HEAD_0(data.partition, data.error_code, data.high_watermark)
        if version >= 4:
            self.aborted(data.aborted)
        if version >= 11:
            self.out += _I32(data.preferred_read_replica)
        self.records(data)
        if self.flexible:
            self.tags(data)

    def aborted(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        if aborted is None:
            self.out += b"\x00" if self.flexible else b"\xff\xff\xff\xff"
            return
        self.count(len(aborted))
        for producer_id, first_offset in aborted:
            self.out += _ABORTED(producer_id, first_offset)
            if self.flexible:
                self.out.append(0)

    def records(self, data: PartitionData[_R]) -> None:
        self.count(data.size)
        if data.records is not None and data.size:
            self.parts.append(data.records)
            self.record_bytes += data.size
            self.out = bytearray()
            self.parts.append(self.out)

    def tags(self, data: PartitionData[_R]) -> None:
        tags: list[tuple[int, bytes]] = []
        if data.diverging is not None:
            tags.append((0, _EPOCH_END(*data.diverging)))
        if data.current_leader is not None:
            tags.append((1, _LEADER(*data.current_leader)))
        self.out.append(len(tags))
        for tag, body in tags:
            self.out.append(tag)
            self.out.append(len(body) + 1)
            self.out += body
            self.out.append(0)

    def finish(self, nodes: Sequence[NodeEndpoint]) -> list[bytearray | _R]:
        if self.flexible:
            write_tags(self.out, nodes)
        buffered = sum(len(part) for part in self.parts if isinstance(part, bytearray))
        finish_response(self.head, self.record_bytes + buffered - len(self.head))
        return self.parts
