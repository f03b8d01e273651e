"""Producing and consuming through the client."""

from __future__ import annotations

import gc

import pytest

from millstream.client import (
    Admin,
    BrokerUnreachable,
    ClientError,
    Consumer,
    DeliveryFailed,
    Producer,
    TooFewRecords,
    UndecodableRecord,
    UnknownPartition,
    UnknownTopic,
    consume,
    produce,
)
from millstream.client.admin.cluster import ClusterAdmin, LogDirectory
from millstream.client.producer import Delivery
from millstream.core.errors import ErrorCode
from millstream.testing import broker as start_broker
from millstream.testing import cluster as start_cluster


@pytest.fixture
def topic(shared_broker, topic_name: str) -> str:
    with Admin(shared_broker.bootstrap) as admin:
        admin.topics.create(topic_name, partitions=3)
    return topic_name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_read_as_they_were_sent(shared_broker, topic: str, codec):
    sent = [
        (b"k", b"v", (("a", b"1"), ("a", b"2"), ("n", None))),
        (None, b"\x00\xff", ()),
        (b"", b"", (("empty", b""),)),
        (b"tombstone", None, ()),
        ("schlüssel".encode(), b"x" * 100_000, ()),
    ]
    with Producer(shared_broker.bootstrap, compression=codec) as producer:
        for number, (key, value, headers) in enumerate(sent):
            producer.send(
                topic,
                value,
                key=key,
                headers=headers or None,
                partition=1,
                timestamp_ms=1000 + number,
            )
    records = consume(shared_broker.bootstrap, topic)
    assert [(record.key, record.value, record.headers) for record in records] == sent
    assert [(record.partition, record.offset, record.timestamp_ms) for record in records] == [
        (1, n, 1000 + n) for n in range(5)
    ]
    assert {record.timestamp_type for record in records} == {"create"}


def test_producer_dropped_without_flush_still_delivers(shared_broker, topic: str):
    """The application forgot to flush: its records are not lost before the collector runs."""

    def send() -> None:
        Producer(shared_broker.bootstrap).send(topic, b"queued")

    gc.disable()
    try:
        send()
        assert [record.value for record in consume(shared_broker.bootstrap, topic, n=1)] == [
            b"queued"
        ]
    finally:
        gc.enable()


def test_produce_accepts_values_and_pairs(shared_broker, topic: str):
    assert produce(shared_broker.bootstrap, topic, ["plain", ("key", "value"), None]) == 3
    pairs = {(record.key, record.value) for record in consume(shared_broker.bootstrap, topic)}
    assert pairs == {(None, b"plain"), (b"key", b"value"), (None, None)}


def test_key_decides_the_partition(shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, [(f"key-{n % 10}", str(n)) for n in range(100)])
    partitions: dict[bytes | None, set[int]] = {}
    for record in consume(shared_broker.bootstrap, topic):
        partitions.setdefault(record.key, set()).add(record.partition)
    assert len(partitions) == 10
    assert all(len(numbers) == 1 for numbers in partitions.values())


@pytest.mark.parametrize(
    ("key", "hash"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("abc", 479470107),
        ("a-little-bit-long-string", -985981536),
    ],
)
def test_keys_go_where_the_java_client_sends_them(shared_broker, topic: str, key: str, hash: int):
    """Murmur2 values as Kafka's own tests have them; the partition is the positive hash modulo
    their number.
    """
    produce(shared_broker.bootstrap, topic, [(key, "x")])
    assert consume(shared_broker.bootstrap, topic, n=1)[0].partition == (hash & 0x7FFFFFFF) % 3


def test_deliveries_are_reported_with_their_offsets(shared_broker, topic: str):
    seen: list[Delivery] = []
    with Producer(shared_broker.bootstrap, on_delivery=seen.append) as producer:
        for number in range(5):
            producer.send(topic, str(number), key="k", partition=2)
    assert [(record.partition, record.offset, record.value, record.error) for record in seen] == [
        (2, number, str(number).encode(), None) for number in range(5)
    ]


def test_rejected_record_fails_one_flush(shared_broker, topic: str):
    with Admin(shared_broker.bootstrap) as admin:
        admin.configs.alter("topic", topic, {"max.message.bytes": "1000"})
    producer = Producer(shared_broker.bootstrap)
    producer.send(topic, b"x" * 5000)
    with pytest.raises(DeliveryFailed) as caught:
        producer.flush()
    assert (caught.value.code, caught.value.failed) == (ErrorCode.MESSAGE_TOO_LARGE, 1)
    producer.send(topic, b"small")
    producer.flush()
    assert [record.value for record in consume(shared_broker.bootstrap, topic)] == [b"small"]


def test_unknown_partition_is_rejected(shared_broker, topic: str):
    with pytest.raises(UnknownPartition, match="has no partition 9"):  # noqa: SIM117
        with Producer(shared_broker.bootstrap) as producer:
            producer.send(topic, "x", partition=9)
    with pytest.raises(UnknownPartition, match="has no partition 9"):
        Consumer(shared_broker.bootstrap, topic, partitions=[0, 9])


def test_consuming_an_unknown_topic_names_the_nearest_and_creates_nothing(
    shared_broker, topic: str
):
    with pytest.raises(UnknownTopic) as caught:
        consume(shared_broker.bootstrap, topic + "x")
    assert topic in caught.value.hint
    with Admin(shared_broker.bootstrap) as admin:
        assert not admin.topics.exists(topic + "x")


def test_consume_waits_for_the_requested_number(shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, [str(n) for n in range(10)])
    assert len(consume(shared_broker.bootstrap, topic, n=7)) == 7
    with pytest.raises(TooFewRecords, match="for 11 records and got 10"):
        consume(shared_broker.bootstrap, topic, n=11, timeout_s=10)


def test_reading_to_the_end_ignores_later_records(shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, [str(n) for n in range(50)])
    with Consumer(shared_broker.bootstrap, topic, until_end=True) as consumer:
        produce(shared_broker.bootstrap, topic, ["late"] * 50)
        values = [record.value for record in consumer]
        assert consumer.finished
    assert len(values) == 50 and b"late" not in values


def test_following_reads_later_records(shared_broker, topic: str):
    with Consumer(shared_broker.bootstrap, topic, start="latest") as consumer:
        produce(shared_broker.bootstrap, topic, ["a", "b", "c"])
        batches = consumer.batches(max_records=2)
        values: list[bytes | None] = []
        while len(values) < 3:
            batch = next(batches)
            assert len(batch) <= 2
            values += [record.value for record in batch]
        assert not consumer.finished
    assert sorted(values) == [b"a", b"b", b"c"]


def test_consumer_needs_a_topic(shared_broker):
    with pytest.raises(ClientError, match="no topic to consume"):
        Consumer(shared_broker.bootstrap, [])


def test_closed_consumer_rejects_calls(shared_broker, topic: str):
    produce(shared_broker.bootstrap, topic, ["1"])
    consumer = Consumer(shared_broker.bootstrap, topic, group=topic, until_end=True)
    consumer.close()
    for use in (
        consumer.poll,
        consumer.commit,
        lambda: list(consumer),
        lambda: list(consumer.batches()),
        lambda: consumer.run(print),
    ):
        with pytest.raises(ClientError, match="the consumer is closed"):
            use()


def test_records_after_an_undecodable_one_are_handed_out(shared_broker, topic: str):
    with Producer(shared_broker.bootstrap) as producer:
        for value in ("{", *"123456789"):
            producer.send(topic, value, partition=0)
    with Consumer(shared_broker.bootstrap, topic, partitions=[0], value="json") as consumer:
        with pytest.raises(UndecodableRecord):
            while True:
                consumer.poll()
        sizes, values = [], []
        while len(values) < 9:
            records = consumer.poll(max_records=2)
            sizes.append(len(records))
            values += [record.value for record in records]
    assert (values, max(sizes)) == (list(range(1, 10)), 2)


def test_several_topics_are_read_together(shared_broker, topic: str):
    with Admin(shared_broker.bootstrap) as admin:
        admin.topics.create(topic + "-2", partitions=1)
    produce(shared_broker.bootstrap, topic, ["1"])
    produce(shared_broker.bootstrap, topic + "-2", ["2"])
    records = consume(shared_broker.bootstrap, [topic, topic + "-2"])
    assert {(record.topic, record.value) for record in records} == {
        (topic, b"1"),
        (topic + "-2", b"2"),
    }


def test_broker_may_create_the_topic_on_produce(broker):
    running = broker({"num.partitions": 2})
    assert produce(running.bootstrap, "new", ["a", "b"]) == 2
    with Admin(running.bootstrap) as admin:
        assert len(admin.topics.get("new").partitions) == 2


def test_unknown_topic_is_rejected_with_the_nearest_on_produce(broker):
    running = broker({"auto.create.topics.enable": "false"})
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders")
        with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
            produce(running.bootstrap, "order", ["a"])
        assert admin.topics.names() == ["orders"]


def test_reading_to_the_end_of_a_dead_broker_fails(broker):
    running = broker()
    # More than a consumer fetches in advance, so that it cannot finish without the broker.
    produce(running.bootstrap, "orders", [b"x" * 100_000] * 200)
    small = {"queued.max.messages.kbytes": 100, "fetch.message.max.bytes": 100_000}
    with Consumer(
        running.bootstrap, "orders", until_end=True, timeout_s=10, options=small
    ) as consumer:
        assert consumer.poll(max_records=1, timeout_s=30)
        running.kill()
        with pytest.raises(BrokerUnreachable, match="connection refused"):
            for _ in consumer:
                pass


def test_flush_timeout_reports_how_many_records_are_left(broker):
    running = broker()
    produce(running.bootstrap, "orders", ["a"])
    producer = Producer(running.bootstrap)
    producer.send("orders", "first")
    producer.flush()
    running.kill()
    producer.send("orders", "second")
    with pytest.raises(DeliveryFailed, match="1 record is not delivered"):
        producer.flush(timeout_s=0.5)
    producer.abandon()
    assert producer.queued == 0


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"value": {"a": 1}},
            r"value \{'a': 1\} .* of type dict, .*; create the producer with value=\"json\"",
        ),
        ({"value": ["x" * 200]}, r"value \['x{78}\.\.\. .* of type list"),
        ({"value": b"", "key": 7}, r'key 7 .* of type int, .*; create the producer with key="int"'),
        (
            {"value": bytearray(b"x")},
            r"of type bytearray, not bytes or str; convert it with bytes\(\)",
        ),
        ({"value": b"", "headers": {"n": 1}}, r"header 'n' with 1 .* of type int"),
        ({"value": b"", "headers": ["n"]}, r"'n' is not a header; give headers as"),
    ],
    ids=["dict", "long", "key", "bytearray", "header", "not a pair"],
)
def test_record_of_a_wrong_type_names_the_serde(
    shared_broker, topic: str, record: dict, message: str
):
    with Producer(shared_broker.bootstrap) as producer:
        with pytest.raises(ClientError, match=message):
            producer.send(topic, **record)
        producer.send(topic, b"plain")
        with pytest.raises(
            TypeError, match=message
        ):  # on the fast path, too, and as Python's own error
            producer.send(topic, **record)


def late(bootstrap: str, topic: str, **options) -> str:
    """Return the error of a record that is not written in time."""
    with (
        pytest.raises(DeliveryFailed) as failed,
        Producer(bootstrap, delivery_timeout_ms=1000, **options) as producer,
    ):
        producer.send(topic, b"late", partition=0)
    return str(failed.value)


def test_full_disk_is_named_as_the_cause_of_a_late_record(topic_name: str, monkeypatch):
    def full(admin: ClusterAdmin, broker: int) -> list[LogDirectory]:
        return [LogDirectory(broker, "/data", True, 1 << 30, 4096)]

    with start_broker() as kafka:
        kafka.topic(topic_name)
        kafka.faults.error("Produce", "KAFKA_STORAGE_ERROR", times=None)
        monkeypatch.setattr(ClusterAdmin, "log_directories", full)
        assert late(kafka.bootstrap, topic_name).endswith(
            ": the disk of broker 0 is full: /data has 4,096 bytes left; "
            "free space, or shorten retention; records are accepted again at once"
        )


def test_missing_replicas_are_named_as_the_cause_of_a_late_record(topic_name: str):
    with start_cluster(brokers=2) as kafka:
        kafka.topic(topic_name, replicas=2, min_insync_replicas=2)
        kafka.wait_in_sync(topic_name, 2)
        follower = 1 - (kafka.leader(topic_name) or 0)
        kafka.brokers[follower].stop()
        said = late(kafka.bootstrap, topic_name)
    assert (
        f"{topic_name}-0 has 1 of the 2 in-sync replicas that min.insync.replicas requires" in said
    )
    assert f"start broker {follower} again, or lower min.insync.replicas" in said


def test_late_record_without_a_known_cause_points_to_the_doctor(topic_name: str):
    with start_broker() as kafka:
        kafka.topic(topic_name)
        kafka.faults.error("Produce", "KAFKA_STORAGE_ERROR", times=None)
        assert "the disk full: `millstream doctor` shows which" in late(kafka.bootstrap, topic_name)


@pytest.mark.parametrize("timestamp_ms", [1 << 63, 1 << 64, -(1 << 63) - 1, 1.5, "now"])
def test_timestamp_out_of_range_is_rejected(shared_broker, topic: str, timestamp_ms):
    with (
        Producer(shared_broker.bootstrap) as producer,
        pytest.raises(ClientError, match=f"the timestamp {timestamp_ms!r} is "),
    ):
        producer.send(topic, b"x", timestamp_ms=timestamp_ms)


@pytest.mark.parametrize("partition", [3, -7, 1 << 31, 1 << 64])
def test_partition_that_does_not_exist_is_rejected(shared_broker, topic: str, partition: int):
    """Above 32 bits librdkafka raises an OverflowError."""
    with (
        Producer(shared_broker.bootstrap) as producer,
        pytest.raises(UnknownPartition, match=f"has no partition {partition};"),
    ):
        producer.send(topic, b"x", partition=partition)
