"""Idempotent producers by raw batches: sequences, duplicates, epochs, wrap-around, as Apache Kafka
answers them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.crafted import batch, idempotent
from compat.raw_client import RawConnection
from compat.raw_requests import delete_records, errors, init_producer_id, produce, values
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E

LAST_SEQUENCE = 2**31 - 1


class Producer:
    """One producer id writing to one partition."""

    def __init__(self, connection: RawConnection, topic: str) -> None:
        self.connection = connection
        self.topic = topic
        self.producer_id: int = connection.call("InitProducerId", 4, init_producer_id()).producer_id

    def send(self, sequence: int, count: int = 1, *, epoch: int = 0) -> int | E:
        """The base offset, or the error."""
        return self.put(idempotent(self.producer_id, sequence, count, epoch=epoch))

    def put(self, records: bytes) -> int | E:
        answer = self.connection.call("Produce", 9, produce(self.topic, records))
        [code], [offset] = errors(answer), values(answer, "base_offset")
        return E.of(code) if code else offset


@pytest.fixture
def producer(connection: RawConnection, new_topic: Callable[..., str]) -> Producer:
    return Producer(connection, new_topic())


def test_producer_ids_are_never_handed_out_twice(connection: RawConnection):
    found = [
        connection.call("InitProducerId", 4, init_producer_id()).producer_id for _ in range(50)
    ]
    assert len(set(found)) == 50


def test_a_duplicate_batch_returns_its_original_offset(producer: Producer):
    assert producer.send(0) == 0
    assert producer.send(0) == 0
    assert producer.send(1, 3) == 1
    assert producer.send(1, 3) == 1
    assert producer.send(4) == 4


def test_gaps_and_overlaps_are_out_of_order(producer: Producer):
    assert producer.send(0) == 0
    assert producer.send(1, 3) == 1
    assert producer.send(1, 2) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(10) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(4) == 4


def test_the_last_five_batches_are_remembered(producer: Producer):
    assert [producer.send(sequence) for sequence in range(10)] == list(range(10))
    assert [producer.send(sequence) for sequence in range(5, 10)] == list(range(5, 10))
    assert producer.send(4) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0) is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one(producer: Producer):
    assert [producer.send(sequence) for sequence in range(3)] == [0, 1, 2]
    assert producer.send(3, epoch=1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=1) == 3
    assert producer.send(3, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.send(2, epoch=0) is E.INVALID_PRODUCER_EPOCH
    assert producer.send(1, epoch=1) == 4


def test_a_producer_unknown_to_the_partition_may_start_anywhere(producer: Producer):
    assert producer.put(idempotent(987654, 0)) == 0
    assert producer.put(idempotent(987655, 7)) == 1
    assert producer.put(idempotent(987656, 7, epoch=5)) == 2
    assert producer.put(idempotent(987656, 8, epoch=5)) == 3


def test_sequences_wrap_around(producer: Producer):
    assert producer.send(LAST_SEQUENCE - 1, 2) == 0
    assert producer.send(0) == 2


def test_sequences_wrap_around_inside_a_batch(producer: Producer):
    assert producer.send(LAST_SEQUENCE - 1, 4) == 0
    assert producer.send(2) == 4
    assert producer.send(LAST_SEQUENCE - 1, 4) == 0


def test_odd_producer_fields(producer: Producer):
    assert producer.send(-1) is E.INVALID_RECORD
    assert producer.put(batch(producer=(-1, -1, 5))) == 0
    assert producer.put(batch(producer=(-2, 0, 0))) == 1


def test_two_batches_of_which_one_is_idempotent(producer: Producer):
    assert producer.put(idempotent(producer.producer_id, 0) + batch()) is E.INVALID_RECORD
    assert producer.send(0) == 0


def test_sequences_survive_the_deletion_of_all_records(producer: Producer):
    assert [producer.send(0), producer.send(1)] == [0, 1]
    deleted = producer.connection.call("DeleteRecords", 2, delete_records(producer.topic, -1))
    assert values(deleted, "low_watermark") == [2]
    assert producer.send(2) == 2
    assert producer.send(9) is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_describe_producers_tells_what_is_remembered(producer: Producer):
    producer.send(0, 3)
    producer.send(3, epoch=0)
    asked = request(
        "DescribeProducers", topics=[{"name": producer.topic, "partition_indexes": [0]}]
    )
    [state] = values(producer.connection.call("DescribeProducers", 0, asked), "active_producers")[0]
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (
        producer.producer_id,
        0,
        3,
    )
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)
    assert state.last_timestamp > 0
