"""Writes finished batches to the leaders of their partitions: in order, several requests on their way, each exactly once.

Sequences start at 0 for every (producer id, epoch), so a broker recognises what it has already taken when a request is repeated after
a lost answer or a moved leader. At most ``IN_FLIGHT`` batches of a partition are unanswered, which is less than the five that a broker
remembers. When something fails, everything on its way is waited for first, and then what failed is sent again, in order.
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
from millstream.spark.sink.produce_link import Part, ProduceLink
from millstream.wire.schema import DecodeError

IN_FLIGHT = 4
REQUEST_BYTES = 1 << 20
REQUEST_TIMEOUT_S = 30.0
FIRST_RETRY_S, LAST_RETRY_S = 0.005, 0.5

TAKEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
FENCED = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Producer(NamedTuple):
    """Under whose name a transaction writes."""

    id: int
    epoch: int


NOBODY = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True)
class Destination:
    """What a writer needs to know, wherever it runs."""

    connection: Connection
    leaders: Mapping[TopicPartition, int]
    brokers: Mapping[int, Address]
    transactional_id: str | None = None
    producer: Producer = NOBODY
    timeout_s: float = 120.0
    before: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that the transaction has in a partition already: sequences go on behind them."""


class Written(NamedTuple):
    """What one writer wrote to one partition; without a producer there are no sequences (-1)."""

    topic: str
    partition: int
    records: int
    last_sequence: int
    batches: int


@dataclass(slots=True)
class Batch:
    """One batch on its way; ``offset`` is where the broker put it."""

    place: TopicPartition
    sequence: int
    part: Part
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
    """One task's way to the brokers. ``send`` any number of batches, then ``finish``; or ``close`` when it goes wrong."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._leaders = dict(destination.leaders)
        self._brokers = dict(destination.brokers)
        self._lanes: dict[int, _Lane] = {}
        self._failed: list[Batch] = []
        self._reason = ""
        self._moved = False  # leaders may be others by now
        self._protocol: Protocol | None = None
        self._totals: dict[TopicPartition, list[int]] = {}  # records, batches

    def send(self, topic: str, partition: int, head: bytes, body: bytes | memoryview) -> Batch:
        """Queue a batch for its leader; waits only when too much is on its way. Its offset is known after ``finish``."""
        place = TopicPartition(topic, partition)
        count = count_of(head)
        totals = self._totals.setdefault(place, [0, 0])
        sequence = -1
        if self._to.producer.id >= 0:
            sequence = (self._to.before.get(place, 0) + totals[0]) & 0x7FFFFFFF
        totals[0] += count
        totals[1] += 1
        id_, epoch = self._to.producer
        stamped = stamp(head, body, producer_id=id_, producer_epoch=epoch, sequence=sequence)
        batch = Batch(place, sequence, Part(topic, partition, stamped, body), count)
        self._queue(batch)
        return batch

    def finish(self) -> list[Written]:
        """Everything has been taken when this returns; the connections stay for the next task of this process."""
        for lane in [*self._lanes.values()]:
            self._flush(lane)
        self._settle()
        for node, lane in self._lanes.items():
            _keep(self._brokers[node], lane.link)
        self._lanes.clear()
        self._close_protocol()
        sequenced = self._to.producer.id >= 0
        return [
            Written(
                place.topic,
                place.partition,
                records,
                self._to.before.get(place, 0) + records - 1 if sequenced else -1,
                batches,
            )
            for place, (records, batches) in self._totals.items()
        ]

    def close(self) -> None:
        """Drop the connections, answered or not."""
        for lane in self._lanes.values():
            lane.link.close()
        self._lanes.clear()
        self._close_protocol()

    # ---- sending --------------------------------------------------------------------------------------------

    def _queue(self, batch: Batch) -> None:
        lane = self._lane(batch)
        if lane is None:
            self._settle()
            return
        size = len(batch.part.body)
        if any(one.place == batch.place for one in lane.waiting) or lane.waiting_bytes + size > REQUEST_BYTES:
            self._flush(lane)
            lane = self._lane(batch)
            if lane is None:
                self._settle()
                return
        lane.waiting.append(batch)
        lane.waiting_bytes += size

    def _lane(self, batch: Batch) -> _Lane | None:
        """The way to a batch's leader; None, and the batch failed, if it cannot be reached now."""
        node = self._leaders.get(batch.place, -1)
        lane = self._lanes.get(node)
        if lane is not None:
            return lane
        try:
            if node not in self._brokers:
                raise ConnectionError(f"{batch.place} has no leader")
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
                [batch.part for batch in batches],
                transactional_id=self._to.transactional_id,
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            )
        except OSError as error:
            self._lose(lane, error)

    # ---- answers --------------------------------------------------------------------------------------------

    def _receive(self, lane: _Lane) -> None:
        try:
            answer = lane.link.receive()
        except (OSError, DecodeError) as error:
            self._lose(lane, error)
            return
        by_place = {
            (topic.name, one.index): one for topic in answer.responses for one in topic.partition_responses
        }
        for batch in lane.sent.popleft():
            self._judge(batch, by_place.get((batch.place.topic, batch.place.partition)))

    def _judge(self, batch: Batch, answer: Any) -> None:
        code = ErrorCode.NETWORK_EXCEPTION if answer is None else ErrorCode.of(answer.error_code)
        if code in TAKEN:
            batch.offset = answer.base_offset
        elif code.retriable or (
            code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._follows_failed(batch)
        ):
            moved = (
                code != ErrorCode.CONCURRENT_TRANSACTIONS
            )  # that one is over in a moment, at the same leader
            self._fail([batch], f"{batch.place}: {code.name}, {code.message}", moved=moved)
        else:
            raise refused(code, batch, getattr(answer, "error_message", None))

    def _follows_failed(self, batch: Batch) -> bool:
        return any(one.place == batch.place and one.sequence < batch.sequence for one in self._failed)

    def _lose(self, lane: _Lane, error: Exception) -> None:
        """The connection is gone: whatever was on its way may or may not have arrived."""
        lane.link.close()
        self._lanes = {node: one for node, one in self._lanes.items() if one is not lane}
        lost = [batch for batches in (*lane.sent, lane.waiting) for batch in batches]
        lane.sent.clear()
        lane.waiting, lane.waiting_bytes = [], 0
        self._fail(lost, f"{lane.link.address}: {_reason(error)}")

    def _fail(self, batches: list[Batch], reason: str, *, moved: bool = True) -> None:
        self._failed += batches
        self._reason = reason
        self._moved = self._moved or moved

    # ---- trying again ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait for every answer; then send again, in order, what was not taken, until it is."""
        self._drain()
        deadline_s = time.monotonic() + self._to.timeout_s
        pause_s = FIRST_RETRY_S
        while self._failed:
            if time.monotonic() > deadline_s:
                raise WriteFailed(
                    f"{len(self._failed)} batches were not taken within {self._to.timeout_s:.0f} s ({self._reason})",
                    hint="look at the brokers, or raise kafka.delivery.timeout.ms",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_RETRY_S)
            if self._moved:
                self._look_up_leaders()
            self._send_again()
            self._drain()

    def _send_again(self) -> None:
        """What failed and, since order counts, what waits behind it."""
        for lane in self._lanes.values():
            self._failed += lane.waiting
            lane.waiting, lane.waiting_bytes = [], 0
        left = sorted(self._failed, key=lambda batch: (batch.place, batch.sequence))
        self._failed = []
        for index, batch in enumerate(left):
            found = self._lane(batch)
            if found is None:
                self._failed += left[index + 1 :]
                return
            while len(found.sent) >= IN_FLIGHT and not self._failed:
                self._receive(found)
            if self._failed:
                self._failed += left[index:]
                return
            found.waiting = [batch]
            self._send_waiting(found)

    def _drain(self) -> None:
        for lane in [*self._lanes.values()]:
            while lane.sent:
                self._receive(lane)

    def _look_up_leaders(self) -> None:
        if self._protocol is None:
            self._protocol = Protocol(self._to.connection)
        try:
            found = self._protocol.leaders({batch.place.topic for batch in self._failed})
            self._brokers |= {one.node: one for one in self._protocol.brokers()}
        except ClientError as error:
            if not isinstance(error, BrokerUnreachable):
                raise
            self._reason = str(error)
            return
        self._leaders |= {place: -1 if node is None else node for place, node in found.items()}
        self._moved = False

    def _close_protocol(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def refused(code: ErrorCode, batch: Batch, reason: str | None) -> SinkError:
    """What an answer means that no repetition will change."""
    said = reason or code.message
    if code in FENCED:
        return SinkFenced(f"the broker refuses to write to {batch.place} under an old epoch ({code.name})")
    if code in TOO_LARGE:
        return RecordTooLarge(
            f"topic {batch.place.topic!r} does not take a batch of {len(batch.part.head) + len(batch.part.body)} bytes ({said})",
            hint=f"raise max.message.bytes with `millstream configs alter topic {batch.place.topic}`",
        )
    return WriteFailed(f"cannot write to {batch.place}: {code.name}, {said}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).lower()


# ---- connections that outlive a task -----------------------------------------------------------------------------

_idle: dict[tuple[int, str, int], ProduceLink] = {}


def _open(address: Address) -> ProduceLink:
    """A connection that an earlier task of this process left, or a new one; a forked process opens its own."""
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
