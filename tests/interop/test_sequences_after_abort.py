"""An abort with a batch in flight: Apache Kafka loses the next transaction, Millstream refuses it,
and clients recover.

librdkafka gives the first batch of a transaction the sequences of a batch that was in flight when
the transaction before was aborted. Apache Kafka takes it for a duplicate of that batch: it
acknowledges it, and the commit has no data.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from interop.apache_kafka import ApacheKafka
from interop.conftest import BrokerStarter
from interop.programs import Line, Program
from millstream.control.features import SAFE_DOWNGRADE
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from support.processes import wait_until
from support.raw import RawClient, create_topic
from support.raw_transactions import RawTransactions

TOPIC = "orders"
OLD = [b"old-%d" % number for number in range(5)]
NEW = [b"new-%d" % number for number in range(5)]


def new_producer(bootstrap: str, transactional_id: str = "payments") -> RawTransactions:
    """A topic that is led, and a producer for it."""
    with RawClient(bootstrap) as client:
        create_topic(client, TOPIC)

        def led() -> bool:
            row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_bytes=1 << 20, topics=[FetchTopic(topic=TOPIC, partitions=[row])]
            )
            return bool(client.call(request, 11).responses[0].partitions[0].error_code == 0)

        wait_until(led, f"{TOPIC} to be led")
    return RawTransactions(bootstrap, transactional_id, TOPIC)


def repeat_sequences(producer: RawTransactions) -> Any:
    """The frames of the story; returns the answer to the second batch."""
    producer.init()
    producer.add()
    assert producer.send(OLD, 0).error_code == E.NONE
    producer.end(commit=False)
    producer.add()
    return producer.send(NEW, 0)


def test_apache_kafka_acknowledges_and_loses_the_repeated_sequences(
    start_apache: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    """When this fails, Apache Kafka has changed, and the documents have to say so."""
    kafka = start_apache(tmp_path)
    producer = new_producer(kafka.bootstrap)
    answer = repeat_sequences(producer)
    assert (answer.error_code, answer.base_offset) == (E.NONE, 0), (
        "acknowledged with the aborted batch's offset"
    )
    producer.end(commit=True)
    assert producer.read() == []
    kafka.stop()


def test_millstream_refuses_the_repeated_sequences_and_loses_nothing(
    start_millstream: BrokerStarter, tmp_path: Path
) -> None:
    producer = new_producer(start_millstream(tmp_path).bootstrap)
    answer = repeat_sequences(producer)
    assert (answer.error_code, answer.base_offset) == (E.UNKNOWN_PRODUCER_ID, -1)
    assert answer.log_start_offset == 0
    producer.end(commit=False)
    producer.init(keep_producer=True)
    producer.add()
    assert producer.send(NEW, 0).error_code == E.NONE
    producer.end(commit=True)
    assert producer.read() == NEW


def set_transaction_version(bootstrap: str, level: int) -> None:
    if level < 2:
        update = FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, upgrade_type=SAFE_DOWNGRADE
        )
        with RawClient(bootstrap) as client:
            answer = client.call(UpdateFeaturesRequest(feature_updates=[update]), 1)
        assert answer.error_code == 0, answer


# ---- clients ----


class Twin:
    """Writes under the producer id and epoch of a client, so that the client's next sequences are
    those of an abort.

    The Java client and franz-go wait for a batch in flight or get a new epoch before they go on: by
    themselves they do not repeat sequences. librdkafka does;
    ``tests/compat/test_ended_transactions.py`` has it behind a lossy proxy.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.bootstrap = bootstrap
        self.raw = new_producer(bootstrap, transactional_id)

    def abort_one_batch(self) -> None:
        raw = self.raw
        with RawClient(self.bootstrap) as client:
            request = DescribeTransactionsRequest(transactional_ids=[raw.transactional_id])
            (state,) = client.call(request, 0).transaction_states
            raw.producer_id, raw.epoch = state.producer_id, state.producer_epoch
            asked = DescribeProducersRequest(
                topics=[TopicRequest(name=TOPIC, partition_indexes=[0])]
            )
            (row,) = client.call(asked, 0).topics[0].partitions[0].active_producers
        raw.add()
        assert raw.send(OLD, row.last_sequence + 1).error_code == E.NONE
        raw.end(commit=False)
        assert raw.read() == [b"first-0"]

    def delete_records(self) -> int:
        """Delete all records; return the log start offset."""
        row = DeleteRecordsPartition(partition_index=0, offset=-1)
        topic = DeleteRecordsTopic(name=TOPIC, partitions=[row])
        with RawClient(self.bootstrap) as client:
            answer = client.call(DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)
        assert answer.topics[0].partitions[0].error_code == 0, answer
        return int(answer.topics[0].partitions[0].low_watermark)


@pytest.mark.parametrize(
    ("name", "transaction_version", "deleted", "failures"),
    [
        ("java", 1, False, [("aborted", "UNKNOWN_PRODUCER_ID")]),
        # The log start offset is above the last acknowledged one (or none is known, in a new
        # epoch): the Java client takes the producer for forgotten and repeats its batch from
        # sequence 0 in the same epoch, until it times out.
        ("java", 1, True, [("aborted", "REQUEST_TIMED_OUT")]),
        ("java", 2, False, [("aborted", "REQUEST_TIMED_OUT")]),
        # franz-go gets its new epoch while the transaction is open, which version 1 answers with
        # PRODUCER_FENCED, as Apache Kafka does: the application needs a new client.
        ("go", 1, False, [("aborted", "UNKNOWN_PRODUCER_ID"), ("replaced", "PRODUCER_FENCED")]),
        ("go", 1, True, [("aborted", "PRODUCER_FENCED"), ("replaced", "PRODUCER_FENCED")]),
        ("go", 2, False, [("aborted", "UNKNOWN_PRODUCER_ID")]),
    ],
    ids=["java", "java-deleted", "java-version-2", "go", "go-deleted", "go-version-2"],
)
def test_client_that_meets_ended_sequences_loses_nothing(
    start_millstream: BrokerStarter,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    name: str,
    transaction_version: int,
    deleted: bool,
    failures: list[tuple[str, str]],
) -> None:
    """Both compare the log start offset of the refusal with the last offset that was acknowledged
    to them.
    """
    program: Program = request.getfixturevalue(name)
    broker: LocalBroker = start_millstream(tmp_path / "broker")
    set_transaction_version(broker.bootstrap, transaction_version)
    twin = Twin(broker.bootstrap, "payments")
    signal = tmp_path / "go-on"
    config = {"transactional.id": "payments"}
    if ("aborted", "REQUEST_TIMED_OUT") in failures:
        config |= {"delivery.timeout.ms": "8000", "request.timeout.ms": "6000"}
    options = {"topic": TOPIC, "file": str(signal), "count": len(NEW), "config": config}
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(program.run, broker.bootstrap, "recover", **options)
        try:
            wait_until(
                lambda: running.done() or twin.raw.read() == [b"first-0"], "the first transaction"
            )
            twin.abort_one_batch()
            log_start = twin.delete_records() if deleted else 0
        finally:
            signal.touch()
            lines: list[Line] = running.result()
    first, *failed, last = lines
    assert first == {"op": "committed", "count": 1}
    assert [(line["op"], line["error"]) for line in failed] == failures
    assert last == {"op": "committed", "count": len(NEW)}
    assert twin.raw.read(log_start) == ([] if deleted else [b"first-0"]) + NEW
