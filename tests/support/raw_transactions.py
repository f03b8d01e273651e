"""A transactional producer that speaks in frames, in the first transaction protocol: one epoch for
many transactions.

The caller chooses every sequence, so that a test can do what only a client in trouble does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch, parse_header, read_records
from support.processes import wait_until
from support.raw import RawClient

TRANSACTION = 1
READ_COMMITTED = 1
# Errors that pass: the coordinator is loading, has moved, or still writes the markers of the last
# transaction.
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class RawTransactions:
    """The producer of one transactional id and one partition. ``bootstrap`` is any broker."""

    def __init__(
        self, bootstrap: str, transactional_id: str, topic: str, *, timeout_ms: int = 60_000
    ) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1

    # ---- coordinator ----

    def init(self, *, keep_producer: bool = False) -> RawTransactions:
        """Get a producer id and epoch; with ``keep_producer`` the next epoch of the producer id
        (KIP-360).
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if keep_producer else -1,
            producer_epoch=self.epoch if keep_producer else -1,
        )
        answer = self._ask(request, 4)
        assert answer.error_code == 0, answer
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return self

    def add(self) -> None:
        """Add the partition to the transaction, which begins it."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )
        answer = self._ask(request, 3)
        assert _code(answer) == 0, answer

    def end(self, *, commit: bool) -> None:
        answer = self._ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            3,
        )
        assert answer.error_code == 0, answer

    def _ask(self, request: Any, version: int) -> Any:
        answers: list[Any] = []

        def answered() -> bool:
            with RawClient(self._coordinator()) as client:
                answers[:] = [client.call(request, version)]
            return _code(answers[0]) not in PASSING

        wait_until(answered, f"the coordinator of {self.transactional_id}")
        return answers[0]

    def _coordinator(self) -> str:
        found: list[str] = []

        def known() -> bool:
            with RawClient(self.bootstrap) as client:
                request = FindCoordinatorRequest(
                    key_type=TRANSACTION, coordinator_keys=[self.transactional_id]
                )
                (row,) = client.call(request, 4).coordinators
            found[:] = [f"{row.host}:{row.port}"]
            return row.error_code == 0

        wait_until(known, f"a coordinator of {self.transactional_id}")
        return found[0]

    # ---- partition ----

    def send(self, values: Sequence[bytes], sequence: int, *, version: int = 11) -> Any:
        """Send one batch to the leader and return the answer for the partition."""
        with RawClient(self._leader()) as client:
            answer = client.call(self.request(values, sequence), version)
        return answer.responses[0].partition_responses[0]

    def request(self, values: Sequence[bytes], sequence: int) -> ProduceRequest:
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch(
            [Record(index, now_ms, None, value, ()) for index, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=batch)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )

    def read(self, first_offset: int = 0) -> list[bytes]:
        """Return the values that a read_committed consumer sees, once every
        transaction has ended.
        """
        answers: list[Any] = []

        def stable() -> bool:
            row = FetchPartition(
                partition=0, fetch_offset=first_offset, partition_max_bytes=50 << 20
            )
            request = FetchRequest(
                max_bytes=50 << 20,
                isolation_level=READ_COMMITTED,
                topics=[FetchTopic(topic=self.topic, partitions=[row])],
            )
            with RawClient(self._leader()) as client:
                answers[:] = [client.call(request, 11).responses[0].partitions[0]]
            assert answers[0].error_code == 0, answers[0]
            return bool(answers[0].last_stable_offset == answers[0].high_watermark)

        wait_until(stable, f"the end of all transactions in {self.topic}")
        aborted = [
            (row.producer_id, row.first_offset) for row in answers[0].aborted_transactions or ()
        ]
        return _committed(bytes(answers[0].records or b""), aborted)

    def _leader(self) -> str:
        found: list[str] = []

        def known() -> bool:
            asked = MetadataRequestTopic(name=self.topic)
            with RawClient(self.bootstrap) as client:
                request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
                answer = client.call(request, 12)
            leaders = [
                row.leader_id for row in answer.topics[0].partitions if row.partition_index == 0
            ]
            found[:] = [
                f"{row.host}:{row.port}" for row in answer.brokers if row.node_id in leaders
            ]
            return bool(found)

        wait_until(known, f"a leader of {self.topic}")
        return found[0]


def _committed(data: bytes, aborted: list[tuple[int, int]]) -> list[bytes]:
    """Filter as consumers do: a transaction is aborted from its first offset up to the producer's
    next marker.
    """
    values: list[bytes] = []
    hidden: set[int] = set()
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        hidden |= {producer_id for producer_id, first in aborted if first <= header.base_offset}
        aborted = [row for row in aborted if row[1] > header.base_offset]
        if header.control:
            hidden.discard(header.producer_id)
        elif header.producer_id not in hidden:
            values += [
                bytes(record.value or b"")
                for record in read_records(
                    data[position : position + header.size], max_bytes=1 << 28
                )
            ]
        position += header.size
    return values


def _code(answer: Any) -> int:
    rows = getattr(answer, "results_by_topic_v3_and_below", None)
    if rows is None:
        return int(answer.error_code)
    codes = [row.partition_error_code for topic in rows for row in topic.results_by_partition]
    return next((code for code in codes if code), 0)
