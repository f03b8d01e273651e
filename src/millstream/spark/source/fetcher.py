"""Read one range of offsets in a task: fetch, recover from broker failures, yield Arrow batches.

A range ends exactly at its end, even if its last offsets have no record. A fetch that returns
nothing new is repeated until ``retryTimeoutMs``. The next fetch is in flight while the records of
the last one are decoded and returned. Connections stay open for the next task of the same Python
worker.
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
from millstream.spark.source.arrow_decode import COLUMNS
from millstream.spark.source.arrow_json import Plan
from millstream.spark.source.cluster_view import AWAY, READ_COMMITTED, REQUEST_TIMEOUT_S, RETRY_S
from millstream.spark.source.data_loss import DataLoss, report_skipped
from millstream.spark.source.offsets import EARLIEST, LATEST, Loss, Range
from millstream.spark.source.range_decoder import AbortedTransaction, RangeDecoder
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.schema import NULL_UUID

FETCH_WAIT_MS = 500
# Memory for responses that a process keeps for its next task.
KEPT_BYTES = 32 << 20
# A missing topic or a log that is too short counts as data loss only after this time.
CONFIRM_S = 3.0
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
    columns: tuple[tuple[str, bool], ...] = tuple((name, True) for name in COLUMNS)
    """The columns to return, each with whether it may be null."""
    json: Plan | None = None
    fail_on_data_loss: bool = True
    fetch_bytes: int = 4 << 20
    retry_timeout_ms: int = 60_000


class Fetched(NamedTuple):
    """The result of one fetch; the next one overwrites the records."""

    records: memoryview | bytes
    aborted: list[AbortedTransaction]


_protocols: dict[tuple[int, str], Protocol] = {}
# The buffers of this process, for the next task.
_scratches: list[Scratch] = []


def _protocol(connection: Connection) -> Protocol:
    """Return the connections of this process to a cluster; a forked worker opens its own."""
    key = (os.getpid(), connection.bootstrap)
    if key not in _protocols:
        _protocols[key] = Protocol(connection)
    return _protocols[key]


@dataclass
class Fetcher:
    """Reads one range, once."""

    task: Task
    protocol: Protocol | None = None
    """Separate connections, if several threads of a process read; else those of the process."""
    position: int = field(init=False)
    leader: Address = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.task.span.start
        self.leader = self.task.leader
        self._protocol = self.protocol or _protocol(self.task.connection)
        self._protocol.place(self.leader)
        self._decoder = RangeDecoder(self.task.span, self.task.columns, self.task.json)
        self._pending: Pending | None = None
        self._scratch = Scratch()
        self._last_progress_s = 0.0

    @property
    def partition(self) -> TopicPartition:
        return self.task.span.partition

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range as Arrow batches."""
        end = self.task.span.end
        committed_only = self.task.isolation == READ_COMMITTED
        self._scratch = _scratches.pop() if _scratches else Scratch()
        try:
            self._note_progress()
            while self.position < end:
                fetched = self._fetch()
                first = self.position
                aborted = fetched.aborted if committed_only else None
                bodies, self.position = self._decoder.select(fetched.records, first, aborted)
                if self.position > first:
                    self._note_progress()
                if self.position < end:
                    self._send_ahead()
                yield from self._decoder.decode(bodies, first)
        finally:
            if self._pending is not None:
                # The reader stopped early, and an unread response is in flight.
                self._protocol.forget(self.leader.node)
            if len(self._scratch) <= KEPT_BYTES:
                _scratches.append(self._scratch)

    # ---------------------------------------------------------------- fetching

    def _fetch(self) -> Fetched:
        while True:
            try:
                if self._pending is None:
                    self._send()
                assert self._pending is not None
                pending, self._pending = self._pending, None
                fetched = self._check_response(pending.answer(self._scratch))
                if len(fetched.records):
                    return fetched
                self._check_not_at_the_end()
            except DataLoss:
                raise
            except ClientError as error:
                self._pending = None
                self._recover(error)
            if self.position >= self.task.span.end:
                return Fetched(b"", [])

    def _send(self) -> None:
        partition = FetchPartition(
            partition=self.partition.partition,
            fetch_offset=self.position,
            partition_max_bytes=self.task.fetch_bytes,
        )
        topic = FetchTopic(
            topic=self.partition.topic, topic_id=self.task.topic_id, partitions=[partition]
        )
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
            # The next fetch meets the same error and recovers from it.
            pass

    def _check_response(self, response: Any) -> Fetched:
        """Return the records of a fetch response, or raise its error."""
        if response.error_code:
            raise refusal(response.error_code, doing=f"read {self.partition}")
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    raise refusal(
                        partition.error_code,
                        doing=f"read {self.partition}",
                        subject=self.partition.topic,
                    )
                aborted = [
                    (transaction.producer_id, transaction.first_offset)
                    for transaction in partition.aborted_transactions or ()
                ]
                return Fetched(partition.records if partition.records is not None else b"", aborted)
        return Fetched(b"", [])

    # ---------------------------------------------------------------- patience

    def _note_progress(self) -> None:
        self._last_progress_s = time.monotonic()

    def _stalled_s(self) -> float:
        return time.monotonic() - self._last_progress_s

    def _waited_too_long(self) -> bool:
        return self._stalled_s() > self.task.retry_timeout_ms / 1000

    def _is_confirmed(self) -> bool:
        """Return whether an apparent loss has lasted long enough to be believed.

        Brokers that are starting, and leaders that have just taken over, may not know everything
        yet.
        """
        return self._stalled_s() > min(CONFIRM_S, self.task.retry_timeout_ms / 1000)

    # ---------------------------------------------------------------- recovery

    def _recover(self, error: ClientError) -> None:
        """Return if the fetch is worth another attempt, or if nothing is left to fetch."""
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                self._handle_out_of_range()
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
        """Look up the leader.

        A topic with another id is lost. So is a missing topic, unless brokers may still be
        starting.
        """
        try:
            metadata = self._protocol.metadata([self.partition.topic])
        except BrokerUnreachable:
            # The next attempt reports it.
            return
        for topic in metadata.topics:
            recreated = (
                topic.topic_id not in (NULL_UUID, self.task.topic_id)
                and self.task.topic_id != NULL_UUID
            )
            if recreated:
                self._handle_loss(Loss(self.partition, "recreated", self.position, 0))
                return
            if gone and topic.error_code in TOPIC_GONE and self._is_confirmed():
                self._handle_loss(Loss(self.partition, "gone", self.position, None))
                return
            for partition in topic.partitions:
                if (
                    partition.partition_index == self.partition.partition
                    and partition.leader_id >= 0
                ):
                    self.leader = self._protocol.address(partition.leader_id)

    def _handle_out_of_range(self) -> None:
        earliest, latest = self._list_offset(EARLIEST), self._list_offset(LATEST)
        if self.position < earliest:
            resume = min(earliest, self.task.span.end)
            self._handle_loss(Loss(self.partition, "deleted", self.position, resume))
        elif self.position > latest:
            if not self._is_confirmed():
                time.sleep(RETRY_S)
                return
            self._handle_loss(Loss(self.partition, "shrunk", self.position, latest))

    def _check_not_at_the_end(self) -> None:
        """Handle an empty fetch: the offsets existed when the batch was planned."""
        if self._waited_too_long():
            latest = self._list_offset(LATEST)
            if latest < self.task.span.end:
                self._handle_loss(Loss(self.partition, "shrunk", self.task.span.end, latest))
            else:
                raise ClientError(
                    f"{self.partition} returned no records from offset {self.position} within "
                    f"{self.task.retry_timeout_ms / 1000:.0f} s, although it ends at {latest}",
                    hint="check the log of the broker",
                )

    def _list_offset(self, timestamp: int) -> int:
        partition = ListOffsetsPartition(
            partition_index=self.partition.partition, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self.task.isolation,
            topics=[ListOffsetsTopic(name=self.partition.topic, partitions=[partition])],
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        )
        response = self._protocol.ask(request, node=self.leader.node).topics[0].partitions[0]
        if response.error_code:
            raise refusal(response.error_code, doing=f"find the offsets of {self.partition}")
        return int(response.offset)

    def _handle_loss(self, loss: Loss) -> None:
        """Raise, or report the lost offsets and continue after them."""
        if self.task.fail_on_data_loss:
            raise DataLoss([loss])
        report_skipped([loss])
        if loss.kind == "deleted" and loss.resume is not None:
            self.position = loss.resume
        else:
            self.position = self.task.span.end
