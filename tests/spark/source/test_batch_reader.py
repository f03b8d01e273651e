"""``spark.read.format("millstream")`` on a real broker: columns, ranges, isolation, codecs, sizes,
errors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.client.admin.client import Admin
from millstream.client.producer import Producer, produce
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker

Read = Callable[..., DataFrame]


def values(df: DataFrame) -> list[bytes | None]:
    rows = (
        df.select("topic", "partition", "offset", "value")
        .orderBy("topic", "partition", "offset")
        .collect()
    )
    return [None if row.value is None else bytes(row.value) for row in rows]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def fill(
    broker: LocalBroker, topic: str, payloads: list[bytes], partition: int = 0, **options: object
) -> None:
    with Producer(broker.bootstrap, options=options) as producer:
        for payload in payloads:
            producer.send(topic, payload, partition=partition)


@pytest.fixture
def single(admin: Admin, topic_name: str) -> str:
    """A topic of one partition."""
    admin.topics.create(topic_name, partitions=1)
    return topic_name


def test_format_is_found_without_registration_with_kafka_connector_columns(
    spark: SparkSession, shared_broker: LocalBroker, topic: str
):
    reader = spark.read.format("millstream").option(
        "kafka.bootstrap.servers", shared_broker.bootstrap
    )
    plain = reader.option("subscribe", topic).load()
    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    headers = reader.option("subscribe", topic).option("includeHeaders", "true").load()
    assert (
        headers.schema["headers"].dataType.simpleString()
        == "array<struct<key:string,value:binary>>"
    )


def test_every_field_of_a_record_arrives(read: Read, shared_broker: LocalBroker, topic: str):
    with Producer(shared_broker.bootstrap) as producer:
        headers = [("a", b"1"), ("b", None)]
        producer.send(
            topic, b"v", key=b"k", partition=1, timestamp_ms=1_700_000_000_123, headers=headers
        )
        producer.send(topic, None, key=None, partition=1, timestamp_ms=1_700_000_000_124)
    first, second = read(topic, includeHeaders="true").orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (
        b"k",
        b"v",
        topic,
        1,
    )
    assert (first.offset, first.timestampType, first.timestamp.timestamp()) == (
        0,
        0,
        1_700_000_000.123,
    )
    assert [(header.key, header.value) for header in first.headers] == [("a", b"1"), ("b", None)]
    assert (second.key, second.value, second.headers, second.offset) == (None, None, None, 1)


def test_schema_may_select_columns(spark: SparkSession, shared_broker: LocalBroker, topic: str):
    produce(shared_broker.bootstrap, topic, [(b"k", b"v")])
    reader = spark.read.format("millstream").option(
        "kafka.bootstrap.servers", shared_broker.bootstrap
    )
    some = reader.option("subscribe", topic).schema("offset bigint, value binary")
    assert [(row.offset, bytes(row.value)) for row in some.load().collect()] == [(0, b"v")]
    with pytest.raises(PySparkException, match="there is no column value string"):
        reader.option("subscribe", topic).schema("value string").load().collect()


def test_an_empty_topic_gives_no_rows(read: Read, topic: str):
    assert read(topic).collect() == []


def test_subscribe_pattern_and_assign_select_partitions(
    read: Read, admin: Admin, shared_broker: LocalBroker, topic_name: str
):
    for name in ("one", "two"):
        admin.topics.create(f"{topic_name}-{name}", partitions=2)
        for partition in (0, 1):
            fill(shared_broker, f"{topic_name}-{name}", [f"{name}{partition}".encode()], partition)
    both = [b"one0", b"one1", b"two0", b"two1"]
    assert values(read(f"{topic_name}-one, {topic_name}-two")) == both
    assert values(read(subscribePattern=f"{topic_name}-(one|two|three)")) == both
    assert values(read(assign=json.dumps({f"{topic_name}-two": [1]}))) == [b"two1"]


def test_offsets_bound_a_read(read: Read, shared_broker: LocalBroker, topic: str):
    fill(shared_broker, topic, numbered(10))
    fill(shared_broker, topic, numbered(5, 100), partition=1)
    starting, ending = (
        json.dumps({topic: {"0": 8, "1": -2}}),
        json.dumps({topic: {"0": -1, "1": 2}}),
    )
    assert values(read(topic, startingOffsets=starting, endingOffsets=ending)) == [
        b"8",
        b"9",
        b"100",
        b"101",
    ]


def test_times_bound_a_read(read: Read, shared_broker: LocalBroker, single: str):
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(10):
            producer.send(
                single, b"%d" % number, partition=0, timestamp_ms=1_700_000_000_000 + 1000 * number
            )
    at = 1_700_000_000_000
    assert values(read(single, startingTimestamp=at + 6500, endingTimestamp=at + 8500)) == [
        b"7",
        b"8",
    ]
    by_partition = json.dumps({single: {"0": at + 8000}})
    assert values(read(single, startingOffsetsByTimestamp=by_partition)) == [b"8", b"9"]
    ending = json.dumps({single: {"0": at + 1000}})
    assert values(read(single, endingOffsetsByTimestamp=ending)) == [b"0"]
    late = read(single, startingTimestamp=at + 99_000, startingOffsetsByTimestampStrategy="latest")
    assert values(late) == []
    with pytest.raises(PySparkException, match=r"no record of .* is as late as"):
        read(single, startingTimestamp=at + 99_000).collect()


def test_min_partitions_splits_ranges_and_reads_every_record_once(
    read: Read, shared_broker: LocalBroker, topic: str
):
    fill(shared_broker, topic, numbered(1000))
    split = read(topic, minPartitions=7)
    assert split.rdd.getNumPartitions() >= 7
    assert values(split) == numbered(1000)
    assert read(topic, maxRecordsPerPartition=100).rdd.getNumPartitions() == 10


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(read: Read, shared_broker: LocalBroker, single: str, codec: str):
    payloads = [b"%d " % number * 20 for number in range(2000)]
    fill(shared_broker, single, payloads, **{"compression.type": codec, "linger.ms": 50})
    assert values(read(single)) == payloads


def test_large_messages_are_read(
    read: Read, admin: Admin, shared_broker: LocalBroker, topic_name: str
):
    admin.topics.create(topic_name, partitions=1, configs={"max.message.bytes": str(12 << 20)})
    payloads = [bytes([number]) * (10 << 20) for number in range(3)] + [b"small"]
    fill(shared_broker, topic_name, payloads, **{"message.max.bytes": 12 << 20})
    rows = (
        read(topic_name)
        .selectExpr("offset", "length(value) n", "md5(value) sum")
        .orderBy("offset")
        .collect()
    )
    assert [row.n for row in rows] == [10 << 20] * 3 + [5]
    assert len({row.sum for row in rows}) == 4


def test_aborted_and_open_transactions_are_hidden_by_default(
    read: Read, shared_broker: LocalBroker, single: str
):
    fill(shared_broker, single, [b"plain"])
    with Producer(shared_broker.bootstrap, transactional_id=single) as producer:
        with producer.transaction() as transaction:
            transaction.send(single, b"committed", partition=0)
        with pytest.raises(KeyError), producer.transaction() as transaction:
            transaction.send(single, b"aborted", partition=0)
            producer.flush()
            raise KeyError
        fill(shared_broker, single, [b"last"])
        assert values(read(single)) == [b"plain", b"committed", b"last"]
        dirty = values(read(single, kafka__isolation__level="read_uncommitted"))
        assert dirty == [b"plain", b"committed", b"aborted", b"last"]


def test_a_read_of_markers_only_ends(read: Read, shared_broker: LocalBroker, single: str):
    with Producer(shared_broker.bootstrap, transactional_id=single) as producer:
        for _ in range(3):
            with producer.transaction() as transaction:
                transaction.send(single, b"v", partition=0)
    marker = json.dumps({single: {"0": 1}}), json.dumps({single: {"0": 2}})
    assert values(read(single, startingOffsets=marker[0], endingOffsets=marker[1])) == []
    assert values(read(single)) == [b"v"] * 3


def test_compacted_offsets_are_skipped(
    read: Read, broker: Callable[..., LocalBroker], spark: SparkSession
):
    quick = {"log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 100}
    own = broker(quick)
    with Admin(own.bootstrap) as admin:
        admin.topics.create(
            "compacted",
            partitions=1,
            configs={
                "cleanup.policy": "compact",
                "segment.ms": "100",
                "min.cleanable.dirty.ratio": "0.01",
            },
        )
        with Producer(own.bootstrap) as producer:
            for number in range(500):
                producer.send("compacted", b"%d" % number, key=b"k%d" % (number % 5), partition=0)
        produce(own.bootstrap, "compacted", [("end", b"end")])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            # A new record rolls the segment, so that earlier ones can be cleaned.
            time.sleep(0.3)
            produce(own.bootstrap, "compacted", [("end", b"end")])
            kept = values(read("compacted", bootstrap=own.bootstrap))
            if len(kept) < 400:
                break
    assert kept[-1] == b"end"
    assert {b"495", b"496", b"497", b"498", b"499"} <= set(kept)
    inside = read("compacted", bootstrap=own.bootstrap, minPartitions=10)
    assert set(values(inside)) >= {b"495", b"496", b"497", b"498", b"499"}


def test_deleted_records_fail_a_read_that_names_them(
    read: Read, admin: Admin, shared_broker: LocalBroker, single: str
):
    fill(shared_broker, single, numbered(10))
    admin.offsets.delete_records({TopicPartition(single, 0): 4})
    starting = json.dumps({single: {"0": 1}})
    with pytest.raises(
        PySparkException,
        match=rf"{single}-0: offsets 1 to 3 \(3 offsets\) were deleted.*failOnDataLoss",
    ):
        read(single, startingOffsets=starting).collect()
    assert values(read(single, startingOffsets=starting, failOnDataLoss="false")) == numbered(6, 4)
    assert values(read(single)) == numbered(6, 4)


def test_read_that_begins_after_the_end_fails(read: Read, shared_broker: LocalBroker, single: str):
    fill(shared_broker, single, numbered(3))
    starting = json.dumps({single: {"0": 30}})
    with pytest.raises(
        PySparkException, match=rf"{single}-0: the read was to begin at 30, but the log ends at 3"
    ):
        read(single, startingOffsets=starting).collect()
    assert values(read(single, startingOffsets=starting, failOnDataLoss="false")) == []


def test_unknown_topic_is_reported_with_the_nearest_name(read: Read, topic: str):
    with pytest.raises(PySparkException) as error:
        read(topic[:-1]).collect()
    message = str(error.value)
    assert f"topic '{topic[:-1]}' does not exist; did you mean '{topic}'" in message
    assert "Traceback" not in message and 'File "' not in message


def test_unreachable_broker_is_reported_with_a_remedy(read: Read):
    with pytest.raises(
        PySparkException, match=r"cannot reach a broker .*connection refused.*millstream serve"
    ):
        read("t", bootstrap="127.0.0.1:1").collect()


def test_options_are_checked_when_data_is_read(read: Read, topic: str):
    with pytest.raises(
        (AnalysisException, PySparkException), match="did you mean 'startingOffsets'"
    ):
        read(topic, startingOffset="earliest").collect()
    with pytest.raises(
        (AnalysisException, PySparkException), match="'subscribe', 'subscribePattern' or 'assign'"
    ):
        read().collect()
    with pytest.raises(
        (AnalysisException, PySparkException), match="a batch read cannot begin there"
    ):
        read(topic, startingOffsets="latest").collect()
    with pytest.raises((AnalysisException, PySparkException), match="does not name"):
        read(topic, startingOffsets=json.dumps({topic: {"0": 1}})).collect()
