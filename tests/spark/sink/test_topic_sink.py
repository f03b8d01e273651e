"""The sink on a real broker and local Spark: written records, output modes, rejected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.local.broker import LocalBroker
from millstream.spark.sink.topic_sink import TopicSink
from support.spark import quick_jvm
from support.spark.sink_world import PATIENCE_S, World, create_topic, messages

pyspark = pytest.importorskip("pyspark")
from pyspark.errors import StreamingQueryException  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

# An interrupt in the middle of a call into the JVM would break the tests that follow.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def world(spark: Any, shared_broker: LocalBroker, topic_name: str, tmp_path: Path) -> World:
    return World(spark, shared_broker, topic_name, tmp_path)


def test_rows_arrive_once_and_the_next_run_continues(world: World) -> None:
    world.spark = quick_jvm.usual_session(world.spark)
    world.topics()
    world.put("a", "b", "c")
    values = world.rows().select(F.upper(F.col("value").cast("string")).alias("value"))
    first = world.run(values, world.sink())
    assert first.progress is not None and first.progress.batch == 0
    assert first.progress.counts == {world.target: 3}
    world.put("d")
    second = world.run(values, world.sink())
    assert second.progress is not None and (second.progress.batch, second.progress.commits) == (
        1,
        2,
    )
    assert world.values() == ["A", "B", "C", "D"]


def test_every_column_reaches_the_topic(world: World) -> None:
    world.topics()
    other = f"{world.name}-other"
    create_topic(world.bootstrap, other, 5)
    world.put("1", "2", "3", "4")
    number = F.col("value").cast("string").cast("int")
    header = F.array(F.struct(F.lit("h").alias("key"), F.col("value").alias("value")))
    rows = world.rows().select(
        F.when(number != 3, F.concat(F.lit("key-"), number.cast("string"))).alias("key"),
        F.when(number != 4, F.col("value")).alias("value"),
        F.when(number > 1, header).alias("headers"),
        F.when(number == 1, F.lit(other)).otherwise(F.lit(world.target)).alias("topic"),
        F.when(number == 2, F.lit(2)).alias("partition"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number).alias("timestamp"),
        F.lit("ignored").alias("colour"),
    )
    world.run(rows, world.sink(topic=None))
    (record,) = messages(world.bootstrap, other)
    assert (record.key(), record.value(), record.headers(), record.timestamp()[1]) == (
        b"key-1",
        b"1",
        None,
        1_700_000_000_001,
    )
    rest = {
        m.timestamp()[1] - 1_700_000_000_000: m for m in messages(world.bootstrap, world.target)
    }
    assert rest[2].partition() == 2 and rest[2].headers() == [("h", b"2")]
    assert rest[3].key() is None and rest[4].value() is None and rest[4].key() == b"key-4"


def test_update_and_complete_modes_keep_their_results(world: World) -> None:
    world.topics(1)
    world.per_batch = 3
    counted = world.rows().groupBy("value").count()
    rows = counted.select(F.col("value").alias("key"), F.to_json(F.struct("count")).alias("value"))
    world.put("x", "x", "y", "x", "y", "z")
    world.run(rows, world.sink(), "update")
    last = {m.key(): m.value() for m in messages(world.bootstrap, world.target)}
    assert last == {b"x": b'{"count":3}', b"y": b'{"count":2}', b"z": b'{"count":1}'}
    complete = f"{world.name}-complete"
    create_topic(world.bootstrap, complete, 1)
    sink = TopicSink(world.bootstrap, complete, topic=complete)
    world.run(rows, sink, "complete", checkpoint="complete")
    assert sink.progress is not None
    final = messages(world.bootstrap, complete)[-sink.progress.counts[complete] :]
    assert {m.key(): m.value() for m in final} == last


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_others(world: World, codec: str) -> None:
    world.topics(2)
    world.put(*("the same again and again " * 20 for _ in range(50)))
    world.run(world.rows().select("value"), world.sink(options={"kafka.compression.type": codec}))
    assert Counter(world.values()) == {"the same again and again " * 20: 50}


def test_a_batch_without_rows_is_committed_too(world: World) -> None:
    world.topics()
    world.put("a", "b")
    sink = world.run(world.rows().select("value").where("value = 'nobody'"), world.sink())
    assert sink.progress is not None and (sink.progress.batch, sink.progress.counts) == (0, {})
    assert world.values() == []


def test_at_least_once_needs_no_transaction(world: World) -> None:
    world.topics()
    world.put("a", "b", "c")
    sink = world.run(world.rows().select("value"), world.sink(delivery="at-least-once"))
    assert world.values() == ["a", "b", "c"] and sink.progress is None


def failure(world: World, df: Any, sink: TopicSink, **more: Any) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        world.run(df, sink, **more)
    return str(caught.value)


def test_too_large_record_fails_before_anything_is_written(world: World) -> None:
    world.topics()
    create_topic(world.bootstrap, f"{world.name}-small", 1, **{"max.message.bytes": "500"})
    world.put("small", "L" * 1000)
    sink = world.sink(topic=f"{world.name}-small")
    message = failure(world, world.rows().select("value"), sink)
    assert "RecordTooLarge" in message and "accepts 500" in message and "configs alter" in message
    assert messages(world.bootstrap, f"{world.name}-small", isolation="read_uncommitted") == []


def test_missing_topics_are_named(
    broker: Callable[..., LocalBroker], spark: Any, tmp_path: Path
) -> None:
    made = broker({"auto.create.topics.enable": "false"})
    sink = TopicSink(made.bootstrap, "sink", topic="nowhere")
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rows = rate.select(F.col("value").cast("string").alias("value"), F.lit("gone").alias("topic"))
    for number, missing in enumerate((sink, TopicSink(made.bootstrap, "sink"))):
        query = missing.start(
            rows.writeStream.trigger(availableNow=True).option(
                "checkpointLocation", str(tmp_path / str(number))
            )
        )
        with pytest.raises(
            StreamingQueryException, match=r"'(nowhere|gone)' does not exist.*topics create"
        ):
            query.awaitTermination(PATIENCE_S)


def test_only_expected_topics_are_requested_until_rows_name_others(
    world: World,
) -> None:
    world.put("a", "b")
    names = [f"{world.name}-{letter}" for letter in "abc"]
    for name in names[:2]:
        create_topic(world.bootstrap, name)
    rows = world.rows().select(
        "value", F.concat(F.lit(f"{world.name}-"), F.col("value").cast("string")).alias("topic")
    )
    # The last topic does not exist, and no row needs it.
    sink = world.sink(topic=None, topics=[names[0], names[2]])
    sink.open()
    assert sink._rows is not None and set(sink._rows.targets().counts) == {names[0]}
    world.run(rows, sink)
    assert [world.values(name) for name in names[:2]] == [["a"], ["b"]]
    assert set(sink._rows.targets().counts) == set(names[:2])


def test_missing_topics_are_created_if_the_broker_does_that(world: World) -> None:
    world.put("a", "b")
    rows = world.rows().select(
        "value", F.concat(F.lit(f"{world.name}-"), F.col("value").cast("string")).alias("topic")
    )
    world.run(rows, world.sink(topic=None))
    assert (world.values(f"{world.name}-a"), world.values(f"{world.name}-b")) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["key"], "the column 'value' is missing"),
        (["cast(null as int) as value"], "the column 'value' has type int"),
        (["value", "7 as partition"], "partition 7 of topic"),
        (["value", "'x' as headers"], "the column 'headers' has type string"),
    ],
)
def test_invalid_rows_fail_the_query(world: World, columns: list[str], message: str) -> None:
    world.topics()
    world.put("a")
    assert message in failure(world, world.rows().selectExpr(*columns), world.sink())
    assert world.values() == []


def test_a_topic_is_written_from_many_tasks_at_once(world: World) -> None:
    create_topic(world.bootstrap, world.target, 7)
    rows = (
        world.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 20_000)
        .option("numPartitions", 4)
        .load()
        .selectExpr("cast(value as string) as value", "cast(value % 100 as string) as key")
    )
    sink = world.sink(options={"batchBytes": "5000"})
    query = sink.start(rows.writeStream.option("checkpointLocation", str(world.directory / "c")))
    while sink.progress is None or sink.progress.batch < 1:
        assert query.exception() is None, query.exception()
        query.awaitTermination(0.1)
    query.stop()
    got = messages(world.bootstrap, world.target)
    assert sink.progress is not None
    assert sorted(int(m.value()) for m in got) == list(range(20_000 * (sink.progress.batch + 1)))
    partitions = {m.key(): set() for m in got}
    for m in got:
        partitions[m.key()].add(m.partition())
    assert all(len(numbers) == 1 for numbers in partitions.values())
