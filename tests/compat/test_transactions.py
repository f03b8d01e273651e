"""Transactions as clients see them: commit, abort, fencing, isolation, offsets, timeouts, and the
last stable offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer

from compat.raw_client import ask
from compat.raw_requests import LATEST, list_offsets, message, values
from millstream.client.library import close_member
from millstream.local.broker import LocalBroker
from support.processes import wait_until

NewTopic = Callable[..., str]
PATIENCE_S = 120.0
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def producer(bootstrap: str, transactional_id: str, **more: Any) -> Producer:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "retry.backoff.ms": 10,
            "retry.backoff.max.ms": 50,
            "log_level": 0,
        }
        | settings
    )
    made.init_transactions(PATIENCE_S)
    return made


def run(made: Producer, topic: str, *sent: bytes, commit: bool = True) -> None:
    """One transaction."""
    made.begin_transaction()
    for value in sent:
        made.produce(topic, value, partition=0)
    assert made.flush(PATIENCE_S) == 0
    made.commit_transaction(PATIENCE_S) if commit else made.abort_transaction(PATIENCE_S)


def stable_end(bootstrap: str, topic: str) -> int:
    """The last stable offset."""
    answer = ask(bootstrap, "ListOffsets", 7, list_offsets(topic, LATEST, isolation_level=1))
    return int(values(answer, "offset")[0])


def end(bootstrap: str, topic: str) -> int:
    return int(values(ask(bootstrap, "ListOffsets", 7, list_offsets(topic, LATEST)), "offset")[0])


def read(bootstrap: str, topic: str, isolation: str = COMMITTED) -> list[bytes]:
    """All that a reader of this isolation sees up to the end it is told of."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    ended = False

    def poll() -> bool:
        nonlocal ended
        for got in consumer.consume(500, 0.1):
            if got.error() is None:
                found.append(got.value())
            else:
                assert got.error().name() == "_PARTITION_EOF", got.error()
                ended = True
        return ended

    try:
        wait_until(poll, "the end of the partition")
    finally:
        consumer.close()
    return found


# ---- confluent-kafka ----


def test_committed_records_are_seen_and_aborted_ones_are_not(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic = new_quick_topic()
    made = producer(quick_broker.bootstrap, topic)
    run(made, topic, b"1", b"2")
    run(made, topic, b"3", commit=False)
    run(made, topic, b"4")
    run(made, topic, commit=False)
    assert read(quick_broker.bootstrap, topic) == [b"1", b"2", b"4"]
    assert read(quick_broker.bootstrap, topic, UNCOMMITTED) == [b"1", b"2", b"3", b"4"]


def test_an_open_transaction_holds_the_last_stable_offset(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    """Those who read committed records see nothing behind its first record until it ends."""
    topic, bootstrap = new_quick_topic(), quick_broker.bootstrap
    slow, quick = producer(bootstrap, f"{topic}-slow"), producer(bootstrap, f"{topic}-quick")
    run(quick, topic, b"before")
    slow.begin_transaction()
    slow.produce(topic, b"slow", partition=0)
    assert slow.flush(PATIENCE_S) == 0
    run(quick, topic, b"behind")
    assert (stable_end(bootstrap, topic), end(bootstrap, topic)) == (2, 5)
    assert read(bootstrap, topic) == [b"before"]
    assert read(bootstrap, topic, UNCOMMITTED) == [b"before", b"slow", b"behind"]
    slow.commit_transaction(PATIENCE_S)
    wait_until(lambda: stable_end(bootstrap, topic) == 6, "the last stable offset to move")
    assert read(bootstrap, topic) == [b"before", b"slow", b"behind"]


def test_a_second_instance_fences_the_first_and_aborts_its_transaction(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic = new_quick_topic()
    first = producer(quick_broker.bootstrap, topic)
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    assert first.flush(PATIENCE_S) == 0
    second = producer(quick_broker.bootstrap, topic)
    run(second, topic, b"of the second")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].name() in ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert read(quick_broker.bootstrap, topic) == [b"of the second"]


def test_a_transaction_that_takes_too_long_is_aborted(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topic, bootstrap = new_quick_topic(), quick_broker.bootstrap
    late = producer(bootstrap, topic, transaction_timeout_ms=1_000, message_timeout_ms=1_000)
    late.begin_transaction()
    late.produce(topic, b"late", partition=0)
    assert late.flush(PATIENCE_S) == 0
    assert stable_end(bootstrap, topic) == 0
    wait_until(lambda: stable_end(bootstrap, topic) == 2, "the abort")
    with pytest.raises(KafkaException):
        late.commit_transaction(PATIENCE_S)
    assert read(bootstrap, topic) == []
    again = producer(bootstrap, topic)
    run(again, topic, b"in time")
    assert read(bootstrap, topic) == [b"in time"]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_offsets_go_with_their_transaction(
    quick_broker: LocalBroker, new_quick_topic: NewTopic, commit: bool
) -> None:
    topic, bootstrap = new_quick_topic(), quick_broker.bootstrap
    made = producer(bootstrap, topic)
    run(made, topic, b"1", b"2")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []

    def polled() -> int:
        found.extend(m for m in consumer.consume(10, 0.1) if m.error() is None)
        return len(found)

    wait_until(lambda: polled() == 2, "the records")
    made.begin_transaction()
    made.produce(topic, b"3", partition=0)
    made.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 2)], consumer.consumer_group_metadata(), PATIENCE_S
    )
    assert stored_offset(bootstrap, topic) == -1, "told before the transaction ended"
    made.commit_transaction(PATIENCE_S) if commit else made.abort_transaction(PATIENCE_S)
    wait_until(
        lambda: stored_offset(bootstrap, topic, stable=True) is not None, "the offsets to be stable"
    )
    assert stored_offset(bootstrap, topic) == (2 if commit else -1)
    close_member(consumer)
    assert read(bootstrap, topic) == [b"1", b"2", *([b"3"] if commit else [])]


def stored_offset(bootstrap: str, name: str, *, stable: bool = False) -> int | None:
    """Of the group and topic of this name; None while it must wait for a transaction (KIP-447)."""
    topics = [{"name": name, "partition_indexes": [0]}]
    asked = message(
        "OffsetFetch", groups=[{"group_id": name, "topics": topics}], require_stable=stable
    )
    answer = ask(bootstrap, "OffsetFetch", 8, asked)
    return None if any(values(answer, "error_code")) else int(values(answer, "committed_offset")[0])


def test_a_transaction_over_many_partitions_and_topics(
    quick_broker: LocalBroker, new_quick_topic: NewTopic
) -> None:
    topics = [new_quick_topic(4), new_quick_topic(4)]
    made = producer(quick_broker.bootstrap, topics[0])
    for commit in (False, True):
        made.begin_transaction()
        for topic in topics:
            for index in range(4):
                made.produce(topic, b"%d" % commit, partition=index)
        made.commit_transaction(PATIENCE_S) if commit else made.abort_transaction(PATIENCE_S)
    for topic in topics:
        assert read(quick_broker.bootstrap, topic) == [b"1"]


# ---- other clients ----


async def _with_aiokafka(bootstrap: str, topic: str) -> list[bytes]:
    made = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-aio")
    await made.start()
    async with made.transaction():
        await made.send_and_wait(topic, b"1", partition=0)
        await made.send_offsets_to_transaction({AioPartition(topic, 0): 1}, f"{topic}-aio")
    with pytest.raises(ZeroDivisionError):
        async with made.transaction():
            await made.send_and_wait(topic, b"aborted", partition=0)
            raise ZeroDivisionError
    async with made.transaction():
        await made.send_and_wait(topic, b"2", partition=0)
    second = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-aio")
    await second.start()
    with pytest.raises(ProducerFenced):
        async with made.transaction():
            await made.send_and_wait(topic, b"fenced", partition=0)
    async with second.transaction():
        await second.send_and_wait(topic, b"3", partition=0)
    await made.stop()
    await second.stop()
    return await _read_with_aiokafka(bootstrap, topic, 3)


async def _read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-aio",
        isolation_level=COMMITTED,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign([AioPartition(topic, 0)])
        assert await consumer.committed(AioPartition(topic, 0)) == 1
        await consumer.seek_to_beginning()
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                polled = await consumer.getmany(timeout_ms=100)
                found += [record.value for some in polled.values() for record in some]
        return found
    finally:
        await consumer.stop()


def test_transactions_of_aiokafka(quick_broker: LocalBroker, new_quick_topic: NewTopic) -> None:
    topic = new_quick_topic()
    assert asyncio.run(_with_aiokafka(quick_broker.bootstrap, topic)) == [b"1", b"2", b"3"]
    assert read(quick_broker.bootstrap, topic) == [b"1", b"2", b"3"]


def test_transactions_of_kafka_python(quick_broker: LocalBroker, new_quick_topic: NewTopic) -> None:
    topic = new_quick_topic()
    made = KafkaProducer(
        bootstrap_servers=quick_broker.bootstrap, transactional_id=f"{topic}-python"
    )
    try:
        made.init_transactions()
        for value, commit in ((b"1", True), (b"aborted", False), (b"2", True)):
            made.begin_transaction()
            made.send(topic, value, partition=0).get(PATIENCE_S)
            made.commit_transaction() if commit else made.abort_transaction()
    finally:
        made.close()
    assert read(quick_broker.bootstrap, topic) == [b"1", b"2"]
