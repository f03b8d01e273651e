"""Transactions whose partitions, group and coordinator are on different brokers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.cluster.coordinators import markers as marker_sender
from millstream.cluster.coordinators.internal_topics import TRANSACTIONS
from millstream.cluster.replicas import follower_logs
from millstream.core.errors import ErrorCode as E
from millstream.core.hashing import partition_of
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from millstream.wire.records.batch import Record, build_batch, parse_header, read_marker
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import RawClient, fetch

PARTITIONS = 6
TOPIC = "orders"
AT = {0: (0, 1, 2), 1: (1, 2, 0), 2: (2, 0, 1)}
_names = (f"payments-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def cluster(shared_cluster: InProcessCluster) -> Iterator[InProcessCluster]:
    shared_cluster.create_topic(TOPIC, at=AT)
    shared_cluster.coordinator("any")
    yield shared_cluster


class Producer:
    """A transactional producer with its coordinator."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.name = next(_names)
        self.coordinator = cluster.coordinator(self.name, 1)
        self.init()

    def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        made = self.ask(request, 5)
        assert made.error_code == 0, made
        self.id, self.epoch = made.producer_id, made.producer_epoch
        self.sequences = dict.fromkeys(AT, 0)

    def ask(self, request: Any, version: int) -> Any:
        with self.cluster.client(self.cluster.coordinator(self.name, 1)) as client:
            return client.call(request, version)

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def write(self, partition: int, *, version: int) -> int:
        """The error code of a batch of one record."""
        batch = build_batch(
            [Record(0, time.time_ns() // 1_000_000, None, self.name.encode(), ())],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[partition],
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        with self.cluster.client(self.cluster.leader(TOPIC, partition)) as client:
            code = int(client.call(request, version).responses[0].partition_responses[0].error_code)
        self.sequences[partition] += not code
        return code

    def add(self, *partitions: int) -> None:
        """As classic clients do."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=list(partitions))],
        )
        (topic,) = self.ask(request, 3).results_by_topic_v3_and_below
        assert {row.partition_error_code for row in topic.results_by_partition} == {0}

    def end(self, *, commit: bool = True, version: int = 5) -> None:
        ended = self.ask(EndTxnRequest(**self.who, committed=commit), version)
        assert ended.error_code == 0, ended
        if version >= 5:
            self.epoch = ended.producer_epoch
        wait_until(lambda: self.state().startswith("Complete"), "all markers")

    def state(self) -> str:
        (row,) = self.ask(
            DescribeTransactionsRequest(transactional_ids=[self.name]), 0
        ).transaction_states
        return str(row.transaction_state)

    def joined(self) -> set[int]:
        (row,) = self.ask(
            DescribeTransactionsRequest(transactional_ids=[self.name]), 0
        ).transaction_states
        return {index for topic in row.topics if topic.topic == TOPIC for index in topic.partitions}

    def outcomes(self, partition: int) -> list[bool]:
        """Of its markers in a partition, in order."""
        with self.cluster.client(self.cluster.leader(TOPIC, partition)) as client:
            data = bytes(fetch(client, TOPIC, partition).records or b"")
        found, position = [], 0
        while position < len(data):
            header = parse_header(data, position)
            if header.control and header.producer_id == self.id:
                marker = read_marker(data[position : position + header.size])
                assert marker is not None
                found.append(marker.commit)
            position += header.size
        return found


@pytest.mark.parametrize("commit", [True, False])
def test_markers_reach_the_partitions_of_every_broker(
    cluster: InProcessCluster, commit: bool
) -> None:
    """Partitions join with their records (Produce v12), wherever the coordinator is."""
    producer = Producer(cluster)
    assert [producer.write(index, version=12) for index in AT] == [0, 0, 0]
    assert producer.joined() == set(AT)
    producer.end(commit=commit)
    assert [producer.outcomes(index) for index in AT] == [[commit]] * 3
    # And the next transaction of the same producer, with the epoch that ending gave it.
    producer.sequences = dict.fromkeys(AT, 0)
    assert [producer.write(index, version=12) for index in AT] == [0, 0, 0]
    producer.end()
    assert [producer.outcomes(index) for index in AT] == [[commit, True]] * 3


@pytest.mark.parametrize(
    ("version", "refusal"), [(10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)]
)
def test_records_of_a_partition_that_has_not_joined_are_refused(
    cluster: InProcessCluster, version: int, refusal: E
) -> None:
    """The leader asks the coordinator, which is another broker for at least two of
    the partitions.
    """
    producer = Producer(cluster)
    producer.add(0)
    assert producer.write(0, version=version) == 0
    assert [producer.write(index, version=version) for index in (1, 2)] == [refusal] * 2
    producer.add(1, 2)
    assert [producer.write(index, version=version) for index in (1, 2)] == [0, 0]
    producer.end(version=4)
    assert [producer.outcomes(index) for index in AT] == [[True]] * 3


def test_offsets_join_where_the_group_is(cluster: InProcessCluster) -> None:
    """Group and transactional id have different coordinators."""
    producer = Producer(cluster)
    group = next(
        name
        for name in (f"readers-{n}" for n in itertools.count())
        if cluster.coordinator(name) != producer.coordinator
    )
    row = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        **producer.who,
        group_id=group,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
    )
    with cluster.client(cluster.coordinator(group)) as client:
        assert client.call(request, 5).topics[0].partitions[0].error_code == 0
        assert committed(client, group) == -1
        producer.end()
        wait_until(lambda: committed(client, group) == 9, "the offset")


def committed(client: RawClient, group: str) -> int:
    topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    (found,) = client.call(request, 8).groups
    assert found.error_code == 0
    return int(found.topics[0].partitions[0].committed_offset)


def test_an_open_transaction_survives_its_coordinator(cluster: InProcessCluster) -> None:
    producer = Producer(cluster)
    assert [producer.write(index, version=12) for index in AT] == [0, 0, 0]
    new = next(node for node in range(3) if node != producer.coordinator)
    cluster.move_leader(TRANSACTIONS, partition_of(producer.name, PARTITIONS), new)
    wait_until(lambda: producer.state() == "Ongoing", "the new coordinator")
    producer.end()
    assert [producer.outcomes(index) for index in AT] == [[True]] * 3


def test_a_decided_outcome_is_carried_out_by_the_next_coordinator(
    cluster: InProcessCluster,
) -> None:
    """The first one has written the decision, and cannot reach any partition."""
    producer = Producer(cluster)
    old = cluster.brokers[producer.coordinator]
    assert [producer.write(index, version=12) for index in AT] == [0, 0, 0]
    markers = old.broker.parts.coordinators.markers
    markers.send = lambda *what: None  # type: ignore[method-assign]
    try:
        ended = producer.ask(EndTxnRequest(**producer.who, committed=True), 5)
        assert ended.error_code == 0
        assert producer.state() == "PrepareCommit"
        new = next(node for node in range(3) if node != producer.coordinator)
        cluster.move_leader(TRANSACTIONS, partition_of(producer.name, PARTITIONS), new)
        wait_until(lambda: producer.state() == "CompleteCommit", "the new coordinator")
    finally:
        del markers.send  # type: ignore[method-assign]
    assert [producer.outcomes(index) for index in AT] == [[True]] * 3


def test_a_coordinator_of_before_is_fenced(cluster: InProcessCluster) -> None:
    """Its epoch is that of the leader of its partition: what it sends after its successor has
    written is refused.
    """
    producer = Producer(cluster)
    new = next(node for node in range(3) if node != producer.coordinator)
    cluster.move_leader(TRANSACTIONS, partition_of(producer.name, PARTITIONS), new)
    wait_until(lambda: producer.state() == "Empty", "the new coordinator")
    assert producer.write(0, version=12) == 0
    producer.end()
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    with cluster.client(0) as client:
        (result,) = client.call(WriteTxnMarkersRequest(markers=[marker]), 1).markers
    assert result.topics[0].partitions[0].error_code == E.TRANSACTION_COORDINATOR_FENCED
    assert producer.outcomes(0) == [True]


def test_a_marker_is_answered_when_it_is_durable(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the followers have it."""
    take = follower_logs.FollowerLogs.apply
    held = True

    def take_unless_held(loop: Any, partition: Any, row: Any) -> None:
        if not (held and partition.tp.topic == TOPIC):
            take(loop, partition, row)

    monkeypatch.setattr(follower_logs.FollowerLogs, "apply", take_unless_held)
    monkeypatch.setattr(marker_sender, "_WAIT_S", 0.2)
    producer = Producer(cluster)
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 1, 99])],
        coordinator_epoch=0,
    )
    with cluster.client(0) as client:
        (result,) = client.call(WriteTxnMarkersRequest(markers=[marker]), 1).markers
        codes = {row.partition_index: row.error_code for row in result.topics[0].partitions}
        assert codes == {
            0: E.REQUEST_TIMED_OUT,
            1: E.NOT_LEADER_OR_FOLLOWER,
            99: E.UNKNOWN_TOPIC_OR_PARTITION,
        }
        held = False
        monkeypatch.setattr(marker_sender, "_WAIT_S", 30)
        (result,) = client.call(WriteTxnMarkersRequest(markers=[marker]), 1).markers
        assert result.topics[0].partitions[0].error_code == 0
