"""Sequences of an ended transaction are not taken for duplicates: what a commit acknowledges is in
the log.

librdkafka reuses the sequences of a batch that was in flight when the application aborted. Apache
Kafka acknowledges the next transaction's batch as a duplicate of the aborted one, and the commit
has no data (``tests/interop`` shows both).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from compat.quick_settings import QUICK
from compat.topics import create_topic
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker
from millstream.local.zookeeper import free_ports
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from support.processes import wait_until
from support.raw import RawClient
from support.raw_transactions import RawTransactions
from support.tcp_proxy import LossyProxy

NewTopic = Callable[..., str]
PATIENCE_S = 120.0
PRODUCE = 0
OLD = [b"old-%d" % number for number in range(5)]
NEW = [b"new-%d" % number for number in range(5)]


def log_end(bootstrap: str, topic: str) -> int:
    row = ListOffsetsPartition(partition_index=0, timestamp=-1)
    with RawClient(bootstrap) as client:
        answer = client.call(
            ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[row])]), 7
        )
    return int(answer.topics[0].partitions[0].offset)


@pytest.fixture
def producer(quick_broker: LocalBroker, new_quick_topic: NewTopic) -> RawTransactions:
    topic = new_quick_topic()
    return RawTransactions(quick_broker.bootstrap, topic, topic).init()


def abort_with_batch_in_log(producer: RawTransactions) -> None:
    """The first part of the story: the batch is in the log, the client does not know it, and
    aborts.
    """
    producer.add()
    assert producer.send(OLD, 0).error_code == E.NONE
    producer.end(commit=False)


# ---- raw frames ----


@pytest.mark.parametrize("version", [3, 7, 11])
def test_batch_with_sequences_of_aborted_transaction_is_refused(
    producer: RawTransactions, version: int
) -> None:
    abort_with_batch_in_log(producer)
    producer.add()
    end = log_end(producer.bootstrap, producer.topic)
    answer = producer.send(NEW, 0, version=version)
    assert answer.error_code == E.UNKNOWN_PRODUCER_ID
    assert answer.base_offset == -1
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert log_end(producer.bootstrap, producer.topic) == end, "a refused batch was appended"
    producer.end(commit=False)
    # What librdkafka does next: a new epoch, and the records once more.
    producer.init(keep_producer=True)
    producer.add()
    assert producer.send(NEW, 0).error_code == E.NONE
    producer.end(commit=True)
    assert producer.read() == NEW


@pytest.mark.parametrize(
    ("sequence", "count"), [(0, 3), (0, 8), (2, 2), (4, 1), (3, 7)], ids=lambda number: str(number)
)
def test_other_batch_boundaries_are_refused_as_well(
    producer: RawTransactions, sequence: int, count: int
) -> None:
    abort_with_batch_in_log(producer)
    producer.add()
    answer = producer.send([b"new"] * count, sequence)
    assert (answer.error_code, answer.log_start_offset) == (E.UNKNOWN_PRODUCER_ID, 0)


def test_refusal_tells_the_log_start_offset_after_delete_records(producer: RawTransactions) -> None:
    """The Java client compares it with the last offset that was acknowledged."""
    abort_with_batch_in_log(producer)
    row = DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsTopic(name=producer.topic, partitions=[row])
    with RawClient(producer.bootstrap) as client:
        answer = client.call(DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)
    assert answer.topics[0].partitions[0].low_watermark == 3
    producer.add()
    answer = producer.send(NEW, 0)
    assert (answer.error_code, answer.log_start_offset) == (E.UNKNOWN_PRODUCER_ID, 3)


def test_late_copy_of_aborted_batch_does_not_enter_the_next_transaction(
    producer: RawTransactions,
) -> None:
    abort_with_batch_in_log(producer)
    producer.add()
    assert producer.send(OLD, 0).error_code == E.UNKNOWN_PRODUCER_ID
    assert producer.send(NEW, 5).error_code == E.UNKNOWN_PRODUCER_ID, "behind a refused batch"
    producer.end(commit=False)
    producer.add()
    assert producer.send(NEW, 5).error_code == E.NONE
    assert producer.send(OLD, 0).error_code == E.UNKNOWN_PRODUCER_ID
    producer.end(commit=True)
    assert producer.read() == NEW


def test_retry_within_the_open_transaction_is_answered_with_its_offset(
    producer: RawTransactions,
) -> None:
    abort_with_batch_in_log(producer)
    producer.add()
    first = producer.send(NEW[:2], 5)
    second = producer.send(NEW[2:], 7)
    assert (first.error_code, second.error_code) == (E.NONE, E.NONE)
    for values, sequence, answer in ((NEW[:2], 5, first), (NEW[2:], 7, second)):
        again = producer.send(values, sequence)
        assert (again.error_code, again.base_offset) == (E.NONE, answer.base_offset)
    producer.end(commit=True)
    assert producer.read() == NEW


def test_batches_sent_at_once_behind_a_refused_one_are_refused(producer: RawTransactions) -> None:
    abort_with_batch_in_log(producer)
    producer.add()
    with RawClient(producer.bootstrap) as client:
        for sequence in (0, 5, 10):
            client.send(producer.request(NEW, sequence), 11)
        answers = [client.receive()[1].responses[0].partition_responses[0] for _ in range(3)]
    assert [answer.error_code for answer in answers] == [E.UNKNOWN_PRODUCER_ID] * 3
    producer.end(commit=True)
    assert producer.read() == []


# ---- forced aborts ----


@pytest.mark.parametrize("how", ["timeout", "fencing"])
def test_forced_abort_refuses_the_old_epoch_and_serves_the_next(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, how: str
) -> None:
    topic, bootstrap = new_quick_topic(), quick_broker.bootstrap
    timeout_ms = 1_000 if how == "timeout" else 60_000
    producer = RawTransactions(bootstrap, topic, topic, timeout_ms=timeout_ms).init()
    producer.add()
    assert producer.send(OLD, 0).error_code == E.NONE
    if how == "timeout":
        wait_until(lambda: log_end(bootstrap, topic) == len(OLD) + 1, "the abort marker")
        next_producer = producer
        assert producer.send(NEW, 0).error_code == E.INVALID_PRODUCER_EPOCH
        producer.init(keep_producer=True)
    else:
        next_producer = RawTransactions(bootstrap, topic, topic).init()
        assert producer.send(NEW, 0).error_code == E.INVALID_PRODUCER_EPOCH
    next_producer.add()
    assert next_producer.send(NEW, 0).error_code == E.NONE
    next_producer.end(commit=False)
    # Now in the epoch that followed the forced abort.
    next_producer.add()
    assert next_producer.send(NEW, 0).error_code == E.UNKNOWN_PRODUCER_ID
    next_producer.end(commit=False)
    next_producer.init(keep_producer=True)
    next_producer.add()
    assert next_producer.send(NEW, 0).error_code == E.NONE
    next_producer.end(commit=True)
    assert next_producer.read() == NEW


# ---- restarts ----


@pytest.mark.parametrize("kill", [False, True], ids=["clean-stop", "kill-9"])
def test_ended_sequences_are_refused_after_a_restart(tmp_path: Path, kill: bool) -> None:
    """A clean stop leaves a producer snapshot, which keeps the last batch only; after kill -9 the
    log is read.
    """
    broker = LocalBroker(tmp_path, QUICK).start()
    try:
        topic = create_topic(broker.bootstrap, "orders")
        producer = RawTransactions(broker.bootstrap, "payments", topic).init()
        producer.add()
        assert producer.send(OLD[:2], 0).error_code == E.NONE
        assert producer.send(OLD[2:], 2).error_code == E.NONE
        producer.end(commit=False)
        assert producer.read() == []
        broker.restart(kill=kill)
        snapshots = list((tmp_path / "data" / "orders-0").glob("*.snapshot"))
        assert kill or snapshots, "a clean stop left no snapshot"
        producer.add()
        for values, sequence in ((NEW[2:], 2), (NEW[:2], 0), (NEW, 0), (NEW[:1], 3)):
            answer = producer.send(values, sequence)
            assert (answer.error_code, answer.log_start_offset) == (E.UNKNOWN_PRODUCER_ID, 0)
        producer.end(commit=False)
        producer.init(keep_producer=True)
        producer.add()
        sent = producer.send(NEW, 0)
        assert sent.error_code == E.NONE
        broker.restart(kill=kill)
        again = producer.send(NEW, 0)
        assert (again.error_code, again.base_offset) == (E.NONE, sent.base_offset), "a true retry"
        producer.end(commit=True)
        assert producer.read() == NEW
    finally:
        broker.kill()


# ---- librdkafka ----


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[str, LossyProxy]]:
    """A broker whose clients come through a proxy that can lose answers, and its own address."""
    (port,) = free_ports(1)
    with LossyProxy(("127.0.0.1", port)) as proxy:
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}",
        }
        broker = LocalBroker(tmp_path, QUICK | settings).start()
        yield f"127.0.0.1:{port}", proxy
        broker.kill()


class Librdkafka:
    """A transactional producer, with what its statistics say about one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.queued = 0
        self.failed: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": "payments",
                "linger.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "statistics.interval.ms": 50,
                "stats_cb": self._statistics,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(PATIENCE_S)

    def _statistics(self, text: str) -> None:
        partitions = json.loads(text)["topics"].get(self.topic, {}).get("partitions", {})
        row = partitions.get("0", {})
        self.queued = row.get("msgq_cnt", 0) + row.get("xmit_msgq_cnt", 0)

    def begin(self, values: list[bytes]) -> None:
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.topic, value, partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failed.append(error.name())

    def wait_requeued(self, count: int) -> None:
        def requeued() -> bool:
            self.producer.poll(0)
            return self.queued == count

        wait_until(requeued, f"{count} records to wait for a retry")

    def commit_or_repeat(self, values: list[bytes]) -> list[str]:
        """Commit a transaction as applications do; return the errors on which it was aborted and
        repeated.
        """
        errors: list[str] = []
        while True:
            self.begin(values)
            try:
                self.producer.commit_transaction(PATIENCE_S)
                return errors
            except KafkaException as failure:
                error = failure.args[0]
                assert error.txn_requires_abort(), error
                errors.append(error.name())
                self.producer.abort_transaction(PATIENCE_S)


@pytest.mark.parametrize("count", [1, 5, 8], ids=["smaller", "equal", "larger"])
def test_librdkafka_loses_nothing_after_an_abort_with_a_batch_in_flight(
    proxied: tuple[str, LossyProxy], count: int
) -> None:
    bootstrap, proxy = proxied
    topic = create_topic(bootstrap, "orders")
    client = Librdkafka(proxy.bootstrap, topic)
    assert client.commit_or_repeat([b"first"]) == []
    before = log_end(bootstrap, topic)

    proxy.lost_api = PRODUCE
    client.begin(OLD)
    wait_until(lambda: log_end(bootstrap, topic) > before, "the batch in the log")
    proxy.leave()
    client.wait_requeued(len(OLD))
    aborting = threading.Thread(target=client.producer.abort_transaction, args=(PATIENCE_S,))
    aborting.start()
    wait_until(
        lambda: client.failed == ["_PURGE_QUEUE"] * len(OLD), "the abort to drop the records"
    )
    proxy.lost_api = None
    proxy.back()
    aborting.join()

    values = [b"new-%d" % number for number in range(count)]
    assert client.commit_or_repeat(values) == ["UNKNOWN_PRODUCER_ID"]
    assert client.commit_or_repeat([b"last"]) == []
    assert RawTransactions(bootstrap, "reader", topic).read() == [b"first", *values, b"last"]
