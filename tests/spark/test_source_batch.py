"""``spark.read.format("millstream")`` on a real broker: columns, ranges, isolation, codecs, sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from millstream.cli.local_broker import LocalBroker
from millstream.client.producer import Producer

Read = Callable[..., DataFrame]


def values(df: DataFrame) -> list[bytes | None]:
    rows = df.select("partition", "offset", "value").orderBy("partition", "offset").collect()
    return [None if row.value is None else bytes(row.value) for row in rows]


def test_format_is_found_without_registration_and_has_the_columns_of_the_kafka_connector(
    spark: SparkSession, shared_broker: LocalBroker, topic: str
):
    reader = spark.read.format("millstream").option("kafka.bootstrap.servers", shared_broker.bootstrap)
    plain = reader.option("subscribe", topic).load()
    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    headers = reader.option("subscribe", topic).option("includeHeaders", "true").load()
    assert headers.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_every_field_of_a_record_arrives(read: Read, shared_broker: LocalBroker, topic: str):
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(
            topic,
            b"v",
            key=b"k",
            partition=1,
            timestamp_ms=1_700_000_000_123,
            headers=[("a", b"1"), ("b", None)],
        )
        producer.send(topic, None, key=None, partition=1, timestamp_ms=1_700_000_000_124)
    first, second = read(topic, includeHeaders="true").orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (b"k", b"v", topic, 1)
    assert (first.offset, first.timestampType, first.timestamp.timestamp()) == (0, 0, 1_700_000_000.123)
    assert [(one.key, one.value) for one in first.headers] == [("a", b"1"), ("b", None)]
    assert (second.key, second.value, second.headers, second.offset) == (None, None, None, 1)
