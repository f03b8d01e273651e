"""Transactions of a producer, and how ``Admin`` lists, describes and ends them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from millstream.client import (
    Admin,
    ClientError,
    Consumer,
    DeliveryFailed,
    Producer,
    ProducerFenced,
    consume,
    produce,
)
from millstream.client.producing.transaction import ProducerTransaction
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.records.batch import Record, build_batch
from support.raw import RawClient, produce_request

UNKNOWN_PRODUCER = 7_000_000


@pytest.fixture
def admin(quick_broker) -> Iterator[Admin]:
    with Admin(quick_broker.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=1)
    return topic_name


@pytest.fixture
def producer(quick_broker, topic: str) -> Iterator[Producer]:
    """A producer whose transactional id is the name of the topic."""
    producer = Producer(quick_broker.bootstrap, transactional_id=topic)
    yield producer
    producer.abandon()


def begin(producer: Producer, topic: str) -> ProducerTransaction:
    """Return an open transaction whose first record has arrived."""
    begun = producer.transaction().__enter__()
    begun.send(topic, "open")
    producer.flush()
    return begun


def leave_hanging(bootstrap: str, topic: str) -> TopicPartition:
    """Write a transactional record of a producer that no coordinator knows."""
    now_ms = int(time.time() * 1000)
    batch = build_batch(
        [Record(0, now_ms, None, b"lost", ())],
        producer_id=UNKNOWN_PRODUCER,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    with RawClient(bootstrap) as client:
        request = produce_request(topic, 0, batch, acks=-1)
        request.transactional_id = "forgotten"
        answer = client.call(request, 9).responses[0].partition_responses[0]
    assert answer.error_code == 0, answer
    return TopicPartition(topic, 0)


def test_transaction_is_visible_whole_or_not_at_all(producer: Producer, topic: str):
    with producer.transaction() as transaction:
        transaction.send(topic, "1", key="a")
        transaction.send(topic, "2")
    with pytest.raises(KeyError), producer.transaction() as transaction:
        transaction.send(topic, "never")
        producer.flush()
        raise KeyError
    with producer.transaction() as transaction:
        transaction.send(topic, "3")
    bootstrap = producer.connection.bootstrap
    assert [record.value for record in consume(bootstrap, topic)] == [b"1", b"2", b"3"]
    everything = consume(bootstrap, topic, isolation="read_uncommitted")
    assert [record.value for record in everything] == [b"1", b"2", b"never", b"3"]


def test_rejected_record_aborts_the_transaction(admin: Admin, producer: Producer, topic: str):
    admin.configs.alter("topic", topic, {"max.message.bytes": "1000"})
    with pytest.raises(DeliveryFailed) as caught, producer.transaction() as transaction:
        transaction.send(topic, "small")
        producer.flush()
        transaction.send(topic, "x" * 5000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert consume(producer.connection.bootstrap, topic) == []


def test_second_producer_fences_the_first(producer: Producer, topic: str):
    begin(producer, topic)
    with Producer(producer.connection.bootstrap, transactional_id=topic) as second:
        with second.transaction() as transaction:
            transaction.send(topic, "second")
        with pytest.raises(
            ProducerFenced,
            match="another producer has started with the same transactional id; stop this one",
        ):
            producer.coordination.commit()
        with second.transaction() as transaction:
            transaction.send(topic, "still")
    assert [record.value for record in consume(producer.connection.bootstrap, topic)] == [
        b"second",
        b"still",
    ]


def test_offsets_are_committed_with_the_results(admin: Admin, producer: Producer, topic: str):
    bootstrap = producer.connection.bootstrap
    admin.topics.create(topic + "-in", partitions=1)
    produce(bootstrap, topic + "-in", [str(n) for n in range(10)])
    source = TopicPartition(topic + "-in", 0)
    with Consumer(bootstrap, source.topic, group=topic, until_end=True) as consumer:
        for number, batch in enumerate(consumer.batches(max_records=5)):
            with producer.transaction() as transaction:
                for record in batch:
                    transaction.send(topic, record.value)
                transaction.commit_offsets(consumer)
                assert admin.groups.committed(topic).get(source, 0) == 5 * number
    assert admin.groups.committed(topic) == {source: 10}
    assert [record.value for record in consume(bootstrap, topic)] == [b"%d" % n for n in range(10)]
    with (
        Consumer(bootstrap, source.topic, until_end=True) as loner,
        pytest.raises(ClientError, match="without a group"),
        producer.transaction() as transaction,
    ):
        transaction.commit_offsets(loner)


def test_producer_without_an_id_has_no_transactions(quick_broker):
    with (
        Producer(quick_broker.bootstrap) as producer,
        pytest.raises(ClientError, match="transactional_id"),
    ):
        producer.transaction()


def test_open_transaction_is_listed_and_described(admin: Admin, producer: Producer, topic: str):
    begin(producer, topic)
    (listed,) = [
        transaction for transaction in admin.transactions.list() if transaction.id == topic
    ]
    described = admin.transactions.get(topic)
    assert (described.state, described.open, described.timeout_ms) == ("Ongoing", True, 60_000)
    assert (listed.state, listed.producer_id) == ("Ongoing", described.producer_id)
    assert described.partitions == (TopicPartition(topic, 0),)
    assert described.started_ms is not None
    producer.coordination.abort()
    ended = admin.transactions.get(topic)
    assert (ended.open, ended.partitions) == (False, ())


def test_transactions_are_filtered(admin: Admin, producer: Producer, topic: str):
    begin(producer, topic)
    owner = admin.transactions.get(topic)
    for filters, shown in (
        ({"states": ["ongoing"]}, True),
        ({"states": ["CompleteAbort"]}, False),
        ({"producer_ids": [owner.producer_id]}, True),
        ({"producer_ids": [UNKNOWN_PRODUCER]}, False),
        ({"longer_than_ms": 3_600_000}, False),
        ({"pattern": topic[:-3] + "..."}, True),
        ({"pattern": topic[:-3]}, False),
    ):
        assert (
            topic in [transaction.id for transaction in admin.transactions.list(**filters)]
        ) is shown, filters
    with pytest.raises(ClientError, match="'open' is not one of Empty, Ongoing"):
        admin.transactions.list(states=["open"])
    with pytest.raises(ClientError, match="is not a regular expression"):
        admin.transactions.list(pattern="(")


def test_unknown_transactional_id_names_the_nearest(admin: Admin, producer: Producer, topic: str):
    begin(producer, topic)
    with pytest.raises(ClientError) as caught:
        admin.transactions.get(topic + "x")
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert topic in caught.value.hint


def test_abort_ends_the_transaction_and_fences_its_producer(
    admin: Admin, producer: Producer, topic: str
):
    begin(producer, topic)
    assert admin.transactions.abort(topic).partitions == (TopicPartition(topic, 0),)
    assert not admin.transactions.get(topic).open
    assert admin.transactions.producers([TopicPartition(topic, 0)])[0].start_offset is None
    with pytest.raises(ProducerFenced):
        producer.coordination.commit()
    with pytest.raises(ClientError, match="has no open transaction"):
        admin.transactions.abort(topic)
    assert consume(producer.connection.bootstrap, topic) == []


def test_hanging_transaction_is_found_and_ended(admin: Admin, producer: Producer, topic: str):
    """Only a transaction that no coordinator knows hangs; the open one beside it does not."""
    where = leave_hanging(producer.connection.bootstrap, topic)
    begin(producer, topic)
    produce(producer.connection.bootstrap, topic, ["after"])
    now_ms = int(time.time() * 1000)
    assert admin.transactions.hanging([where], idle_ms=3_600_000, now_ms=now_ms) == []
    (hanging,) = admin.transactions.hanging([where], idle_ms=-60_000, now_ms=now_ms)
    assert (hanging.producer_id, hanging.producer_epoch, hanging.start_offset) == (
        UNKNOWN_PRODUCER,
        3,
        0,
    )
    with pytest.raises(ClientError, match="2 transactions are open") as caught:
        admin.transactions.find(where)
    assert str(UNKNOWN_PRODUCER) in caught.value.hint
    assert admin.transactions.find(where, UNKNOWN_PRODUCER) == hanging
    assert admin.transactions.owner(hanging) is None
    admin.transactions.write_abort_marker(hanging)
    with pytest.raises(
        ClientError, match=f"no transaction is open in {where} by producer {UNKNOWN_PRODUCER}"
    ):
        admin.transactions.find(where, UNKNOWN_PRODUCER)
    producer.coordination.commit()
    assert [record.value for record in consume(producer.connection.bootstrap, topic)] == [
        b"open",
        b"after",
    ]


def test_fenced_transaction_raises_only_producer_fenced(shared_broker, topic: str):
    """The failed abort is not reported: the block was to commit."""
    with (
        Producer(shared_broker.bootstrap, transactional_id=topic) as first,
        Producer(shared_broker.bootstrap, transactional_id=topic) as second,
    ):
        first.prepare_transactions()
        second.prepare_transactions()
        with pytest.raises(ProducerFenced) as fenced, first.transaction() as transaction:
            transaction.send(topic, "late")
    assert fenced.value.message.startswith(
        f"the producer of {topic!r} is fenced: another producer has started"
    )
    assert "abort" not in str(fenced.value)


def test_nested_transaction_is_rejected(shared_broker, topic: str):
    with (
        Producer(shared_broker.bootstrap, transactional_id=topic) as producer,
        pytest.raises(ClientError) as refused,
        producer.transaction(),
        producer.transaction(),
    ):
        pass
    assert refused.value.message == f"cannot begin a transaction of {topic!r}: one is already open"
    assert "transactional_id for each" in refused.value.hint


def test_poll_of_a_fenced_producer_raises_producer_fenced(shared_broker, topic: str):
    """librdkafka raises the fatal error in the first call that notices it, even ``poll``."""
    with (
        Producer(shared_broker.bootstrap, transactional_id=topic) as first,
        Producer(shared_broker.bootstrap, transactional_id=topic) as second,
    ):
        first.prepare_transactions()
        second.prepare_transactions()
        with pytest.raises(ProducerFenced), first.transaction() as transaction:
            transaction.send(topic, "late")
            while first.queued:
                first.poll(0.1)


@pytest.mark.parametrize("before", [False, True], ids=["first", "after a transaction"])
def test_send_outside_a_transaction_is_rejected_with_a_hint(
    shared_broker, topic: str, before: bool
):
    with Producer(shared_broker.bootstrap, transactional_id=topic) as producer:
        if before:
            with producer.transaction() as transaction:
                transaction.send(topic, "inside")
        with pytest.raises(
            ClientError, match=r"no transaction is open; send inside `with producer\.transaction"
        ):
            producer.send(topic, "outside")
