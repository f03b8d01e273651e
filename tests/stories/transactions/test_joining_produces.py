"""Produces that join a transaction while the one before is still being ended: asked again in the
broker, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.sim.world.disk import SimDisk
from millstream.transactions.effects import SendMarkers
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

NAME = "payments"
SETTINGS: dict[str, object] = {
    "log.dirs": "/data",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "add.partitions.to.txn.retry.backoff.ms": 1,
}
HOUR_MS = 3_600_000
Producer = tuple[int, int]


class Stuck:
    """Holds markers back, as a partition that is offline does, and counts how often coordinators
    were asked to let records join.
    """

    def __init__(self, broker: InProcessBroker) -> None:
        self.held = True
        self.asked_about: list[TopicPartition] = []
        markers = broker.broker.parts.coordinators.markers
        transactions = broker.broker.parts.coordinators.transactions
        append, verify = markers.append, transactions.verify

        def append_unless_held(tp: TopicPartition, outcome: SendMarkers) -> Any:
            if self.held:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
            return append(tp, outcome)

        async def count(*args: Any, **more: Any) -> Any:
            self.asked_about += args[3]
            if self.asked == 3:
                self.on_third()
            return await verify(*args, **more)

        self.on_third = lambda: None
        markers.append = append_unless_held  # type: ignore[method-assign]
        transactions.verify = count  # type: ignore[method-assign]

    @property
    def asked(self) -> int:
        return len(self.asked_about)

    def let_go(self) -> None:
        self.held = False


@contextmanager
def running(**settings: object) -> Iterator[tuple[InProcessBroker, RawClient]]:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    with (
        InProcessBroker(SETTINGS | texts, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "orders", 2)
        for kind, key in ((0, "readers"), (1, NAME)):
            client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
        yield broker, client


def begin(client: RawClient) -> Producer:
    asked = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=60_000)
    begun = client.call(asked, 5)
    assert begun.error_code == 0
    return begun.producer_id, begun.producer_epoch


def batch(producer: Producer) -> bytes:
    record = Record(0, time.time_ns() // 1_000_000, None, b"v", ())
    return build_batch(
        [record],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )


def write(client: RawClient, *batches: bytes, version: int = 12) -> list[int]:
    """The error of each partition, from 0 on."""
    rows = [
        PartitionProduceData(index=index, records=records) for index, records in enumerate(batches)
    ]
    data = [TopicProduceData(name="orders", partition_data=rows)]
    asked = ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=10_000, topic_data=data)
    (topic,) = client.call(asked, version).responses
    return [row.error_code for row in topic.partition_responses]


def commit(client: RawClient, producer: Producer) -> Producer:
    asked = EndTxnRequest(
        transactional_id=NAME, producer_id=producer[0], producer_epoch=producer[1], committed=True
    )
    ended = client.call(asked, 5)
    assert ended.error_code == 0
    return ended.producer_id, ended.producer_epoch


def half_ended(broker: InProcessBroker, client: RawClient) -> tuple[Stuck, Producer]:
    """Who writes next, while the markers of the transaction before do not get through."""
    producer = begin(client)
    assert write(client, batch(producer)) == [0]
    stuck = broker.run(lambda: Stuck(broker))
    return stuck, commit(client, producer)


def test_records_of_the_next_transaction_wait_for_the_markers_of_the_last() -> None:
    with running(add_partitions_to_txn_retry_backoff_max_ms=HOUR_MS) as (broker, client):
        stuck, producer = half_ended(broker, client)
        stuck.on_third = stuck.let_go
        assert write(client, batch(producer)) == [0]
        assert stuck.asked > 3


def test_after_the_time_the_client_is_told_to_come_again() -> None:
    with running(add_partitions_to_txn_retry_backoff_max_ms=20) as (broker, client):
        stuck, producer = half_ended(broker, client)
        assert write(client, batch(producer)) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert stuck.asked > 1


def test_the_time_is_that_of_the_request_not_of_each_partition() -> None:
    with running(add_partitions_to_txn_retry_backoff_max_ms=20) as (broker, client):
        stuck, producer = half_ended(broker, client)
        codes = write(client, batch(producer), batch(producer))
        assert codes == [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
        asked = [stuck.asked_about.count(TopicPartition("orders", index)) for index in range(2)]
        assert asked[0] == asked[1] == stuck.asked / 2  # about both at once


def test_no_time_means_asked_once() -> None:
    with running(add_partitions_to_txn_retry_backoff_max_ms=0) as (broker, client):
        stuck, producer = half_ended(broker, client)
        assert write(client, batch(producer)) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert stuck.asked == 1


@pytest.mark.parametrize("version", [9, 11])
def test_clients_that_do_not_join_with_their_records_are_told_at_once(version: int) -> None:
    """In a word that makes them send again: they do not know CONCURRENT_TRANSACTIONS as an answer
    to Produce.
    """
    with running(add_partitions_to_txn_retry_backoff_max_ms=HOUR_MS) as (broker, client):
        stuck, producer = half_ended(broker, client)
        assert write(client, batch(producer), version=version) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert stuck.asked == 1


@pytest.mark.parametrize("version", [9, 12])
def test_a_request_speaks_for_one_producer(version: int) -> None:
    with running() as (_broker, client):
        producer_id, epoch = begin(client)
        codes = write(
            client, batch((producer_id, epoch)), batch((producer_id + 1, epoch)), version=version
        )
        assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert write(client, batch((producer_id, epoch))) == [0]


# ---- transaction.partition.verification.enable ----


def test_without_verification_records_of_older_clients_are_taken_as_they_come() -> None:
    with running(transaction_partition_verification_enable="false") as (_broker, client):
        producer = begin(client)
        assert write(client, batch(producer), version=11) == [0]


def test_without_verification_offsets_of_older_clients_are_taken_as_they_come() -> None:
    with running(transaction_partition_verification_enable="false") as (_broker, client):
        assert commit_offsets(client, begin(client), version=4) == ErrorCode.NONE


def test_without_verification_newer_clients_still_join() -> None:
    with running(transaction_partition_verification_enable="false") as (_broker, client):
        producer = begin(client)
        stranger = producer[0] + 7, 0
        assert write(client, batch(stranger)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert commit_offsets(client, stranger, version=5) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert write(client, batch(producer)) == [0]


def test_verification_can_be_turned_off_and_on_while_the_broker_runs() -> None:
    with running() as (_broker, client):
        producer = begin(client)
        assert write(client, batch(producer), version=11) == [ErrorCode.TRANSACTION_ABORTABLE]
        turn(client, "false")
        assert write(client, batch(producer), version=11) == [0]
        turn(client, "true")
        assert write(client, b"", batch(producer), version=11)[1] == ErrorCode.TRANSACTION_ABORTABLE


def turn(client: RawClient, value: str) -> None:
    change = AlterableConfig(
        name="transaction.partition.verification.enable", config_operation=0, value=value
    )
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert answer.error_code == 0, answer


def commit_offsets(client: RawClient, producer: Producer, *, version: int) -> int:
    row = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    asked = TxnOffsetCommitRequest(
        transactional_id=NAME,
        group_id="readers",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[row])],
    )
    return int(client.call(asked, version).topics[0].partitions[0].error_code)


def test_a_wrong_timeout_is_told_before_anybody_coordinates() -> None:
    with (
        InProcessBroker(SETTINGS, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        asked = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=0)
        assert client.call(asked, 4).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
