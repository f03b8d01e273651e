"""``df.write.format("millstream")``: all of it or nothing, however often Spark runs a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.client.admin.client import Admin
from millstream.local.broker import LocalBroker
from millstream.spark.sink import staging
from support.spark.sink_world import committed, create_topic, messages

pyspark = pytest.importorskip("pyspark")
from pyspark.sql import functions as F  # noqa: E402


def write(df: Any, broker: LocalBroker, mode: str = "append", **options: str) -> None:
    writer = (
        df.write.format("millstream").mode(mode).option("kafka.bootstrap.servers", broker.bootstrap)
    )
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def staging_topics(broker: LocalBroker) -> list[str]:
    with Admin(broker.bootstrap) as admin:
        return [name for name in admin.topics.names() if name.startswith(staging.PREFIX)]


def test_all_rows_appear_in_one_transaction(
    spark: Any, shared_broker: LocalBroker, topic_name: str
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 3)
    rows = spark.range(0, 5000, 1, 4).selectExpr(
        "cast(id as string) as value",
        "cast(id % 10 as string) as key",
        "timestamp_millis(1000 + id) as timestamp",
        "array(struct('h' as key, cast('v' as binary) as value)) as headers",
    )
    write(rows, shared_broker, topic=topic_name, compression="lz4")
    got = messages(shared_broker.bootstrap, topic_name)
    assert sorted(int(m.value()) for m in got) == list(range(5000))
    assert {m.timestamp()[1] - int(m.value()) for m in got} == {1000}
    assert {tuple(m.headers()) for m in got} == {(("h", b"v"),)}
    assert all(
        len({m.partition() for m in got if m.key() == b"%d" % key}) == 1 for key in range(10)
    )
    assert staging_topics(shared_broker) == []


def test_several_topics_by_column(spark: Any, shared_broker: LocalBroker, topic_name: str) -> None:
    for name in ("a", "b"):
        create_topic(shared_broker.bootstrap, f"{topic_name}-{name}", 2)
    rows = spark.createDataFrame(
        [("a", "1"), ("b", "2"), ("a", None)], "topic string, value string"
    )
    write(rows.withColumn("topic", F.concat(F.lit(f"{topic_name}-"), "topic")), shared_broker)
    assert set(committed(shared_broker.bootstrap, f"{topic_name}-a")) == {b"1", None}
    assert committed(shared_broker.bootstrap, f"{topic_name}-b") == [b"2"]


def test_a_task_that_fails_after_writing_leaves_nothing(
    spark: Any, shared_broker: LocalBroker, topic_name: str
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 2)

    def broken(batches: Any) -> Any:
        yield pa.RecordBatch.from_pydict(
            {"value": [b"x" * 1000] * 40_000}
            # Enough to be sent before the end.
        )
        for _ in batches:
            pass
        raise RuntimeError("after writing")

    rows = spark.range(0, 2, 1, 2).mapInArrow(broken, "value binary")
    with pytest.raises(Exception, match="after writing"):
        write(rows, shared_broker, topic=topic_name)
    assert messages(shared_broker.bootstrap, topic_name, isolation="read_uncommitted") == []
    assert staging_topics(shared_broker) == []


def test_batches_of_an_earlier_task_attempt_are_not_copied(
    spark: Any, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    """Call the writer as Spark does: two attempts of a task, of which the second is committed."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from millstream.spark.sink.batch_writer import BatchWriter

    create_topic(shared_broker.bootstrap, topic_name, 2)
    schema = StructType([StructField("value", BinaryType())])
    options = {"kafka.bootstrap.servers": shared_broker.bootstrap, "topic": topic_name}
    writer = BatchWriter(options, schema, overwrite=False)
    rows = [pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(100)]})]
    # Its response never reaches Spark.
    writer.write(iter(rows))
    done = writer.write(iter(rows))
    other = writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"other"]})]))
    assert messages(shared_broker.bootstrap, topic_name, isolation="read_uncommitted") == []
    writer.commit([done, None, other])
    expected = sorted([b"%d" % number for number in range(100)] + [b"other"])
    assert sorted(committed(shared_broker.bootstrap, topic_name)) == expected
    assert staging_topics(shared_broker) == []


def test_at_least_once_writes_directly(
    spark: Any, shared_broker: LocalBroker, topic_name: str
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 2)
    write(
        spark.range(100).selectExpr("cast(id as string) value"),
        shared_broker,
        topic=topic_name,
        delivery="at-least-once",
    )
    assert sorted(int(v) for v in committed(shared_broker.bootstrap, topic_name)) == list(
        range(100)
    )


def test_no_rows_need_no_transaction(
    spark: Any, shared_broker: LocalBroker, topic_name: str
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 1)
    write(spark.range(0).selectExpr("cast(id as string) value"), shared_broker, topic=topic_name)
    assert messages(shared_broker.bootstrap, topic_name, isolation="read_uncommitted") == []


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("overwrite", {"topic": "x"}, "a topic cannot be overwritten"),
        ("append", {}, "the rows have no topic"),
        ("append", {"topic": "x", "acks": "1"}, "there is no option 'acks'"),
        ("append", {"topic": "x", "kafka.acks": "1"}, "always written with acks=all"),
    ],
)
def test_invalid_writes_are_rejected_in_one_line(
    spark: Any, shared_broker: LocalBroker, mode: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message) as raised:
        write(spark.range(1).selectExpr("cast(id as string) value"), shared_broker, mode, **options)
    assert "Traceback" not in str(raised.value)


def test_stream_write_refers_to_topic_sink(
    spark: Any, shared_broker: LocalBroker, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rate.selectExpr("cast(value as string) value").writeStream
    # As in a session that does not reject it early.
    writer._jwrite = writer._jwrite.format("millstream")
    writer = writer.option("topic", "x").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="TopicSink"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
