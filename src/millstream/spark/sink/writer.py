"""Write record batches to the leaders of their partitions: in order, pipelined, each exactly once.

Sequences start at 0 for every (producer id, epoch). So a broker recognises a batch that is repeated
after a lost response or a leader change. At most ``IN_FLIGHT`` batches of a partition are
unanswered, fewer than the five that a broker remembers. After a failure the writer first waits for
everything in flight, and then sends the failed batches again, in order.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.client.connection import Connection
from millstream.client.errors import BrokerUnreachable, ClientError
from millstream.client.protocol import Address, Protocol
from millstream.core.errors import ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from millstream.spark.sink.arrow_encode import count_of, stamp
from millstream.spark.sink.failures import RecordTooLarge, SinkError, SinkFenced, WriteFailed
from millstream.spark.sink.produce_link import PartitionBatch, ProduceLink
from millstream.wire.schema import DecodeError

IN_FLIGHT = 4
REQUEST_BYTES = 1 << 20
REQUEST_TIMEOUT_S = 30.0
FIRST_RETRY_S, LAST_RETRY_S = 0.005, 0.5

WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Producer(NamedTuple):
    """The producer id and epoch of a transaction."""

    id: int
    epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True)
class Destination:
    """All that a writer needs to know, wherever it runs."""

    connection: Connection
    leaders: Mapping[TopicPartition, int]
    brokers: Mapping[int, Address]
    transactional_id: str | None = None
    producer: Producer = NO_PRODUCER
    timeout_s: float = 120.0
    before: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that the transaction already has in a partition; sequences continue after them."""


class WrittenPartition(NamedTuple):
    """The report of one writer about one partition. ``last_sequence`` is -1 without a producer."""

    topic: str
    partition: int
    records: int
    last_sequence: int
    batches: int


@dataclass(slots=True)
class Batch:
    """A batch to send; ``offset`` is where the broker appended it."""

    partition: TopicPartition
    sequence: int
    data: PartitionBatch
    count: int
    offset: int = -1


@dataclass(slots=True)
class _Lane:
    """The requests to one broker."""

    link: ProduceLink
    waiting: list[Batch] = field(default_factory=list)
    waiting_bytes: int = 0
    sent: deque[list[Batch]] = field(default_factory=deque)


class Writer:
    """Writes batches for one task.

    Call ``send`` for any number of batches, then ``finish``; or ``close`` after a failure.
    """

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._leaders = dict(destination.leaders)
        self._brokers = dict(destination.brokers)
        self._lanes: dict[int, _Lane] = {}
        self._failed: list[Batch] = []
        self._reason = ""
        # Whether leaders may have changed.
        self._moved = False
        self._protocol: Protocol | None = None
        # Records and batches of each partition.
        self._totals: dict[TopicPartition, list[int]] = {}

    def send(self, topic: str, partition: int, head: bytes, body: bytes | memoryview) -> Batch:
        """Queue a batch for its leader. Blocks only if too much is in flight.

        The offset of the batch is known after ``finish``.
        """
        target = TopicPartition(topic, partition)
        count = count_of(head)
        totals = self._totals.setdefault(target, [0, 0])
        sequence = -1
        if self._to.producer.id >= 0:
            sequence = (self._to.before.get(target, 0) + totals[0]) & 0x7FFFFFFF
        totals[0] += count
        totals[1] += 1
        id_, epoch = self._to.producer
        stamped = stamp(head, body, producer_id=id_, producer_epoch=epoch, sequence=sequence)
        batch = Batch(target, sequence, PartitionBatch(topic, partition, stamped, body), count)
        self._queue(batch)
        return batch

    def finish(self) -> list[WrittenPartition]:
        """Wait until everything is written.

        The next task of this process reuses the connections.
        """
        for lane in [*self._lanes.values()]:
            self._flush(lane)
        self._settle()
        for node, lane in self._lanes.items():
            _keep(self._brokers[node], lane.link)
        self._lanes.clear()
        self._close_protocol()
        sequenced = self._to.producer.id >= 0
        return [
            WrittenPartition(
                target.topic,
                target.partition,
                records,
                self._to.before.get(target, 0) + records - 1 if sequenced else -1,
                batches,
            )
            for target, (records, batches) in self._totals.items()
        ]

    def close(self) -> None:
        """Drop the connections, with or without unread responses."""
        for lane in self._lanes.values():
            lane.link.close()
        self._lanes.clear()
        self._close_protocol()

    # ---- sending ----

    def _queue(self, batch: Batch) -> None:
        lane = self._lane(batch)
        if lane is None:
            self._settle()
            return
        size = len(batch.data.body)
        queued = any(other.partition == batch.partition for other in lane.waiting)
        if queued or lane.waiting_bytes + size > REQUEST_BYTES:
            self._flush(lane)
            lane = self._lane(batch)
            if lane is None:
                self._settle()
                return
        lane.waiting.append(batch)
        lane.waiting_bytes += size

    def _lane(self, batch: Batch) -> _Lane | None:
        """Return the lane to the leader of a batch.

        If the leader is unreachable, record the failure and return None.
        """
        node = self._leaders.get(batch.partition, -1)
        lane = self._lanes.get(node)
        if lane is not None:
            return lane
        try:
            if node not in self._brokers:
                raise ConnectionError(f"{batch.partition} has no leader")
            lane = self._lanes[node] = _Lane(_open(self._brokers[node]))
            return lane
        except OSError as error:
            self._fail([batch], _reason(error))
            return None

    def _flush(self, lane: _Lane) -> None:
        while len(lane.sent) >= IN_FLIGHT and not self._failed:
            self._receive(lane)
        if self._failed:
            self._settle()
        if lane.waiting:
            self._send_waiting(lane)

    def _send_waiting(self, lane: _Lane) -> None:
        batches, lane.waiting, lane.waiting_bytes = lane.waiting, [], 0
        lane.sent.append(batches)
        try:
            lane.link.send(
                [batch.data for batch in batches],
                transactional_id=self._to.transactional_id,
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            )
        except OSError as error:
            self._lose(lane, error)

    # ---- responses ----

    def _receive(self, lane: _Lane) -> None:
        try:
            response = lane.link.receive()
        except (OSError, DecodeError) as error:
            self._lose(lane, error)
            return
        results = {
            (topic.name, result.index): result
            for topic in response.responses
            for result in topic.partition_responses
        }
        for batch in lane.sent.popleft():
            self._handle_result(
                batch, results.get((batch.partition.topic, batch.partition.partition))
            )

    def _handle_result(self, batch: Batch, result: Any) -> None:
        code = ErrorCode.NETWORK_EXCEPTION if result is None else ErrorCode.of(result.error_code)
        if code in WRITTEN:
            batch.offset = result.base_offset
        elif code.retriable or (
            code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._follows_failed(batch)
        ):
            # CONCURRENT_TRANSACTIONS ends soon, at the same leader.
            moved = code != ErrorCode.CONCURRENT_TRANSACTIONS
            self._fail([batch], f"{batch.partition}: {code.name}, {code.message}", moved=moved)
        else:
            raise rejection(code, batch, getattr(result, "error_message", None))

    def _follows_failed(self, batch: Batch) -> bool:
        return any(
            failed.partition == batch.partition and failed.sequence < batch.sequence
            for failed in self._failed
        )

    def _lose(self, lane: _Lane, error: Exception) -> None:
        """Handle a lost connection: everything in flight may or may not have arrived."""
        lane.link.close()
        self._lanes = {node: other for node, other in self._lanes.items() if other is not lane}
        lost = [batch for batches in (*lane.sent, lane.waiting) for batch in batches]
        lane.sent.clear()
        lane.waiting, lane.waiting_bytes = [], 0
        self._fail(lost, f"{lane.link.address}: {_reason(error)}")

    def _fail(self, batches: list[Batch], reason: str, *, moved: bool = True) -> None:
        self._failed += batches
        self._reason = reason
        self._moved = self._moved or moved

    # ---- retries ----

    def _settle(self) -> None:
        """Wait for every response. Then resend failed batches in order, until all are written."""
        self._drain()
        deadline_s = time.monotonic() + self._to.timeout_s
        pause_s = FIRST_RETRY_S
        while self._failed:
            if time.monotonic() > deadline_s:
                raise WriteFailed(
                    f"{len(self._failed)} batches were not written within {self._to.timeout_s:.0f} s "
                    f"({self._reason})",
                    hint="check the brokers, or raise kafka.delivery.timeout.ms",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_RETRY_S)
            if self._moved:
                self._look_up_leaders()
            self._resend()
            self._drain()

    def _resend(self) -> None:
        """Resend failed batches, and those that wait behind them, because order matters."""
        for held in self._lanes.values():
            self._failed += held.waiting
            held.waiting, held.waiting_bytes = [], 0
        left = sorted(self._failed, key=lambda batch: (batch.partition, batch.sequence))
        self._failed = []
        for index, batch in enumerate(left):
            lane = self._lane(batch)
            if lane is None:
                self._failed += left[index + 1 :]
                return
            while len(lane.sent) >= IN_FLIGHT and not self._failed:
                self._receive(lane)
            if self._failed:
                self._failed += left[index:]
                return
            lane.waiting = [batch]
            self._send_waiting(lane)

    def _drain(self) -> None:
        for lane in [*self._lanes.values()]:
            while lane.sent:
                self._receive(lane)

    def _look_up_leaders(self) -> None:
        if self._protocol is None:
            self._protocol = Protocol(self._to.connection)
        try:
            leaders = self._protocol.leaders({batch.partition.topic for batch in self._failed})
            self._brokers |= {broker.node: broker for broker in self._protocol.brokers()}
        except ClientError as error:
            if not isinstance(error, BrokerUnreachable):
                raise
            self._reason = str(error)
            return
        self._leaders |= {
            partition: -1 if node is None else node for partition, node in leaders.items()
        }
        self._moved = False

    def _close_protocol(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def rejection(code: ErrorCode, batch: Batch, reason: str | None) -> SinkError:
    """Return the exception for an error that no retry will fix."""
    text = reason or code.message
    if code in FENCED:
        return SinkFenced(
            f"the broker rejects writes to {batch.partition} under an old epoch ({code.name})"
        )
    if code in TOO_LARGE:
        return RecordTooLarge(
            f"topic {batch.partition.topic!r} rejects a batch of "
            f"{len(batch.data.head) + len(batch.data.body)} bytes ({text})",
            hint=f"raise max.message.bytes with `millstream configs alter topic {batch.partition.topic}`",
        )
    return WriteFailed(f"cannot write to {batch.partition}: {code.name}, {text}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    return (getattr(error, "strerror", None) or str(error)).lower()


# ---- connections that outlive a task ----

_idle: dict[tuple[int, str, int], ProduceLink] = {}


def _open(address: Address) -> ProduceLink:
    """Return a connection that an earlier task of this process left, or a new one.

    A forked process opens its own.
    """
    link = _idle.pop((os.getpid(), address.host, address.port), None)
    if link is not None:
        if link.alive():
            return link
        link.close()
    return ProduceLink(address, REQUEST_TIMEOUT_S + 10)


def _keep(address: Address, link: ProduceLink) -> None:
    old = _idle.pop((os.getpid(), address.host, address.port), None)
    if old is not None:
        old.close()
    if link.idle:
        _idle[os.getpid(), address.host, address.port] = link
    else:
        link.close()
