"""Reading one range of offsets on an executor: fetch, leave out what does not count, hand out Arrow batches.

The range ends exactly at its end: offsets without a record (markers of transactions, what compaction removed, aborted
transactions) are passed over, and a fetch that brings nothing new is repeated only until ``retryTimeoutMs``. The next fetch is on its way
while the records of the last one are decoded and handed out. Connections stay open for the next task of the same Python worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.client.connection import Connection
from millstream.client.errors import BrokerUnreachable, ClientError, refusal
from millstream.client.protocol import Address, Pending, Protocol, Scratch
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.spark.source.arrow_decode import (
    COLUMNS,
    Body,
    Columns,
    arrow_schema,
    decode,
    from_records,
    to_record_batch,
)
from millstream.spark.source.arrow_json import UNPROVEN, Plan, proven
from millstream.spark.source.cluster_view import AWAY, READ_COMMITTED, REQUEST_TIMEOUT_S, RETRY_S
from millstream.spark.source.data_loss import DataLoss, report_skipped
from millstream.spark.source.offsets import EARLIEST, LATEST, Loss, Range
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.records.batch import BatchHeader, crc_matches, parse_header, read_marker
from millstream.wire.records.compression import decompress
from millstream.wire.records.corrupt import CorruptBatch
from millstream.wire.records.layout import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_AT
from millstream.wire.records.legacy import read_message_set
from millstream.wire.schema import NULL_UUID

FETCH_WAIT_MS = 500
# Decompressed bytes that are decoded together; an Arrow batch has about as many.
GROUP_BYTES = 2 << 20
MAX_DECOMPRESSED_BYTES = 1 << 30
KEPT_BYTES = 32 << 20  # memory for answers that a process keeps for its next task
CONFIRM_S = 3.0  # a topic that is missing, or a log that is too short, is believed after this time
TOPIC_GONE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass(frozen=True)
class Task:
    """All that an executor needs to read a range."""

    span: Range
    leader: Address
    topic_id: bytes
    connection: Connection
    isolation: int = READ_COMMITTED
    columns: tuple[tuple[str, bool], ...] = tuple(
        (name, True) for name in COLUMNS
    )  # and whether they may be null
    json: Plan | None = None
    fail_on_data_loss: bool = True
    fetch_bytes: int = 4 << 20
    retry_timeout_ms: int = 60_000


class Fetched(NamedTuple):
    """What one fetch brought; the next one overwrites the records."""

    records: memoryview | bytes
    aborted: list[tuple[int, int]]  # producer id, first offset


_protocols: dict[tuple[int, str], Protocol] = {}
_scratches: list[Scratch] = []  # of this process, for the next task


def _protocol(connection: Connection) -> Protocol:
    """The connections of this process to a cluster; a forked worker opens its own."""
    key = (os.getpid(), connection.bootstrap)
    if key not in _protocols:
        _protocols[key] = Protocol(connection)
    return _protocols[key]


@dataclass
class Fetcher:
    """Reads one range, once."""

    task: Task
    protocol: Protocol | None = None
    """Connections of one's own, where several threads of a process read; else those of the process."""
    position: int = field(init=False)
    leader: Address = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.task.span.start
        self.leader = self.task.leader
        self._protocol = self.protocol or _protocol(self.task.connection)
        self._protocol.place(self.leader)
        names = [name for name, _ in self.task.columns]
        schema = arrow_schema(names, self.task.json)
        self._schema = pa.schema([schema.field(name).with_nullable(null) for name, null in self.task.columns])
        self._include_headers = "headers" in names
        self._pending: Pending | None = None
        self._scratch = Scratch()
        self._since_s = 0.0  # when there was progress last

    @property
    def partition(self) -> TopicPartition:
        return self.task.span.partition

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the range as Arrow batches."""
        end = self.task.span.end
        self._scratch = _scratches.pop() if _scratches else Scratch()
        try:
            self._be_patient()
            while self.position < end:
                fetched = self._fetch()
                first = self.position
                bodies = self._bodies(fetched)
                if self.position > first:
                    self._be_patient()
                if self.position < end:
                    self._send_ahead()
                yield from self._decoded(bodies, first)
        finally:
            if self._pending is not None:  # the reader stopped early: an answer nobody wants is on its way
                self._protocol.forget(self.leader.node)
            if len(self._scratch) <= KEPT_BYTES:
                _scratches.append(self._scratch)

    # ---------------------------------------------------------------- fetching

    def _be_patient(self) -> None:
        self._since_s = time.monotonic()

    def _waited_too_long(self) -> bool:
        return time.monotonic() - self._since_s > self.task.retry_timeout_ms / 1000

    def _is_confirmed(self) -> bool:
        """Brokers that are just starting or taking over may not know everything yet."""
        return time.monotonic() - self._since_s > min(CONFIRM_S, self.task.retry_timeout_ms / 1000)

    def _fetch(self) -> Fetched:
        while True:
            try:
                if self._pending is None:
                    self._send()
                assert self._pending is not None
                pending, self._pending = self._pending, None
                found = self._opened(pending.answer(self._scratch))
                if len(found.records):
                    return found
                self._check_not_at_the_end()
            except DataLoss:
                raise
            except ClientError as error:
                self._pending = None
                self._recover(error)
            if self.position >= self.task.span.end:
                return Fetched(b"", [])

    def _send(self) -> None:
        part = FetchPartition(
            partition=self.partition.partition,
            fetch_offset=self.position,
            partition_max_bytes=self.task.fetch_bytes,
        )
        topic = FetchTopic(topic=self.partition.topic, topic_id=self.task.topic_id, partitions=[part])
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self.task.fetch_bytes,
            isolation_level=self.task.isolation,
            topics=[topic],
        )
        self._pending = self._protocol.begin(request, node=self.leader.node)

    def _send_ahead(self) -> None:
        try:
            self._send()
        except BrokerUnreachable:
            pass  # the next fetch finds out and deals with it

    def _opened(self, answer: Any) -> Fetched:
        if answer.error_code:
            raise refusal(answer.error_code, doing=f"read {self.partition}")
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code:
                    raise refusal(
                        part.error_code, doing=f"read {self.partition}", subject=self.partition.topic
                    )
                aborted = [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
                return Fetched(part.records if part.records is not None else b"", aborted)
        return Fetched(b"", [])

    # ---------------------------------------------------------------- trouble

    def _recover(self, error: ClientError) -> None:
        """Return when the fetch is worth another try, or there is nothing left to fetch."""
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                self._out_of_range()
                return
            except DataLoss:
                raise
            except ClientError as another:
                error = another
        gone = error.code in TOPIC_GONE
        if not gone and not isinstance(error, BrokerUnreachable) and error.code not in AWAY:
            raise error
        if self._waited_too_long():
            raise error
        time.sleep(RETRY_S)
        self._find_leader(gone)

    def _find_leader(self, gone: bool) -> None:
        """Ask who leads now. A topic that is missing or has another id by now is lost, unless brokers are just starting."""
        try:
            answer = self._protocol.metadata([self.partition.topic])
        except BrokerUnreachable:
            return  # the next try tells
        for topic in answer.topics:
            other_id = (
                topic.topic_id not in (NULL_UUID, self.task.topic_id) and self.task.topic_id != NULL_UUID
            )
            if other_id or (gone and topic.error_code in TOPIC_GONE and self._is_confirmed()):
                self._lost(
                    Loss(
                        self.partition,
                        "recreated" if other_id else "gone",
                        self.position,
                        0 if other_id else None,
                    )
                )
                return
            for one in topic.partitions:
                if one.partition_index == self.partition.partition and one.leader_id >= 0:
                    self.leader = self._protocol.address(one.leader_id)

    def _out_of_range(self) -> None:
        earliest, latest = self._edge(EARLIEST), self._edge(LATEST)
        if self.position < earliest:
            self._lost(Loss(self.partition, "deleted", self.position, min(earliest, self.task.span.end)))
        elif self.position > latest:
            if not self._is_confirmed():
                time.sleep(RETRY_S)
                return
            self._lost(Loss(self.partition, "shrunk", self.position, latest))

    def _check_not_at_the_end(self) -> None:
        """Nothing came although there was something when the batch was planned."""
        if self._waited_too_long():
            latest = self._edge(LATEST)
            if latest < self.task.span.end:
                self._lost(Loss(self.partition, "shrunk", self.task.span.end, latest))
            else:
                raise ClientError(
                    f"no records of {self.partition} from offset {self.position} on came within "
                    f"{self.task.retry_timeout_ms / 1000:.0f} s, although it goes on to {latest}",
                    hint="look at the log of the broker",
                )

    def _edge(self, mark: int) -> int:
        part = ListOffsetsPartition(partition_index=self.partition.partition, timestamp=mark)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self.task.isolation,
            topics=[ListOffsetsTopic(name=self.partition.topic, partitions=[part])],
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        )
        found = self._protocol.ask(request, node=self.leader.node).topics[0].partitions[0]
        if found.error_code:
            raise refusal(found.error_code, doing=f"find the offsets of {self.partition}")
        return int(found.offset)

    def _lost(self, loss: Loss) -> None:
        if self.task.fail_on_data_loss:
            raise DataLoss([loss])
        report_skipped([loss])
        if loss.kind == "deleted" and loss.resume is not None:
            self.position = loss.resume
        else:
            self.position = self.task.span.end

    # ---------------------------------------------------------------- batches

    def _bodies(self, fetched: Fetched) -> list[Body | bytes]:
        """The batches that count, up to the end of the range; moves the position behind what was looked at."""
        buffer = memoryview(fetched.records)
        aborted = _Aborted(fetched.aborted) if self.task.isolation == READ_COMMITTED else None
        bodies: list[Body | bytes] = []
        pos = 0
        while pos + HEADER_SIZE <= len(buffer) and self.position < self.task.span.end:
            if buffer[pos + MAGIC_AT] < MAGIC:
                return bodies + self._old_messages(bytes(buffer[pos:]))
            header = parse_header(buffer, pos)
            if pos + header.size > len(buffer):
                break  # brokers may cut the last batch short
            self._check_crc(buffer, pos, header)
            if self._counts(buffer, pos, header, aborted):
                bodies.append(Body(header, buffer, pos + HEADER_SIZE, pos + header.size))
            self.position = max(self.position, min(header.next_offset, self.task.span.end))
            pos += header.size
        return bodies

    def _counts(self, buffer: memoryview, pos: int, header: BatchHeader, aborted: _Aborted | None) -> bool:
        if aborted is not None and aborted.hides(buffer, pos, header):
            return False
        if header.control or not header.count:
            return False
        return header.next_offset > self.task.span.start and header.base_offset < self.task.span.end

    def _check_crc(self, buffer: memoryview, pos: int, header: BatchHeader) -> None:
        if not crc_matches(buffer, pos, header):
            raise self._corrupt(header.base_offset, "its checksum is wrong")

    def _corrupt(self, offset: int, why: str) -> ClientError:
        return ClientError(
            f"the batch of {self.partition} at offset {offset} is damaged: {why}",
            hint="look at it with `millstream log dump`; to go on without it, start behind it with startingOffsets",
            code=ErrorCode.CORRUPT_MESSAGE,
        )

    def _old_messages(self, buffer: bytes) -> list[Body | bytes]:
        """Message sets of before Kafka 0.11, which brokers give out as they stored them."""
        records = read_message_set(buffer, max_bytes=MAX_DECOMPRESSED_BYTES)
        if records:
            self.position = max(self.position, min(records[-1].offset + 1, self.task.span.end))
        return [buffer]

    def _decoded(self, bodies: list[Body | bytes], first: int) -> Iterator[pa.RecordBatch]:
        group: list[Body] = []
        size = 0
        for body in bodies:
            if isinstance(body, bytes):
                yield from self._arrow(group, first)
                yield from self._old_arrow(body, first)
                group, size = [], 0
                continue
            group.append(self._decompressed(body))
            size += group[-1].end - group[-1].start
            if size >= GROUP_BYTES:
                yield from self._arrow(group, first)
                group, size = [], 0
        yield from self._arrow(group, first)

    def _decompressed(self, body: Body) -> Body:
        if not body.header.codec:
            return body
        packed = memoryview(body.buffer)[body.start : body.end]
        try:
            plain = decompress(body.header.codec, packed, max_bytes=MAX_DECOMPRESSED_BYTES)
        except CorruptBatch as error:
            raise self._corrupt(body.header.base_offset, str(error)) from None
        return Body(body.header, plain, 0, len(plain))

    def _arrow(self, group: list[Body], first: int) -> Iterator[pa.RecordBatch]:
        if not group:
            return
        try:
            columns = decode(group, first, self.task.span.end, self._include_headers)
        except CorruptBatch as error:
            raise self._corrupt(group[0].header.base_offset, str(error)) from None
        if len(columns.offsets):
            yield from self._batch(columns)

    def _old_arrow(self, buffer: bytes, first: int) -> Iterator[pa.RecordBatch]:
        found = read_message_set(buffer, max_bytes=MAX_DECOMPRESSED_BYTES)
        records = [record for record in found if first <= record.offset < self.task.span.end]
        if records:
            yield from self._batch(from_records(records, [0] * len(records), self._include_headers))

    def _batch(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        batch = to_record_batch(columns, *self.partition, self._schema, self.task.json)
        if self.task.json is not None and UNPROVEN in self._schema.names:
            batch = batch.filter(pa.array(~proven(columns.values, self.task.json)))
        if batch.num_rows:
            yield batch


class _Aborted:
    """Which batches belong to aborted transactions, in the order of the log."""

    def __init__(self, aborted: list[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: memoryview, pos: int, header: BatchHeader) -> bool:
        if not self._coming and not self._open:
            return False
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open or not header.transactional:
            return False
        if header.control:
            marker = read_marker(buffer[pos : pos + header.length + LOG_OVERHEAD])
            if marker is not None and not marker.commit:
                self._open.discard(header.producer_id)
        return True
