"""Topics as targets: other formats, headers, at-least-once, and a second run of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.client.consumer import Consumer
from millstream.client.dead_letters.letters import dead_letter
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, PipelineError, topic
from millstream.pipelines.checks import check_flows
from millstream.pipelines.formats.protobuf_messages import message_class
from millstream.pipelines.run.failures import FENCED
from millstream.pipelines.run.status import find_statuses
from millstream.spark.sink.topic_sink import TopicSink
from support.spark.pipeline_world import Background, create, received, run_once, send, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def descriptor(tmp_path: Path) -> str:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Sale")
    for number, (name, kind) in enumerate(
        (("id", kinds.TYPE_STRING), ("cents", kinds.TYPE_INT64)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    path = tmp_path / "sale.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return str(path)


def with_headers(bootstrap: str, name: str) -> dict[bytes, list[tuple[str, bytes | None]]]:
    """Return the headers of every committed record by key."""
    with Consumer(bootstrap, name, until_end=True) as consumer:
        return {record.key or b"": list(record.headers) for record in consumer}


def test_every_format_has_headers_and_is_read_by_other_flows(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    descriptor: str,
) -> None:
    bootstrap, names = (
        shared_broker.bootstrap,
        {n: f"{topic_name}-{n}" for n in ("in", "j", "a", "p", "o")},
    )
    create(bootstrap, names["in"], partitions=1)
    send(bootstrap, names["in"], [{"id": "x", "cents": 7, "shop": "east"}, {"id": "y", "cents": 8}])
    pipeline = Pipeline(topic_name, bootstrap=bootstrap, dead_letters=False)
    pipeline.stream(
        "sales", topic=names["in"], schema="id string NOT NULL, cents bigint, shop string"
    )
    protobuf: dict[str, Any] = {
        "value": "protobuf",
        "message": "shop.Sale",
        "descriptor": descriptor,
    }

    @pipeline.flow(
        to=[
            topic(names["j"], key="id", headers={"shop": "shop", "order": "id"}),
            topic(names["a"], key="id", value="avro", headers={"shop": "shop"}),
            topic(names["p"], key="id", headers={"shop": "shop"}, **protobuf),
        ]
    )
    def written(sales: DataFrame) -> DataFrame:
        return sales

    pipeline.stream("messages", topic=names["p"], **protobuf)
    pipeline.stream("records", topic=names["a"], value="avro")

    @pipeline.flow(to=topic(names["o"], key="id", headers="all"))
    def read_again(written: DataFrame, messages: DataFrame, records: DataFrame) -> DataFrame:
        headers = F.create_map(F.lit("from"), F.lit("map")).alias("all")
        parts = [
            rows.select("id", F.lit(name).alias("way"), headers)
            for name, rows in (("json", written), ("protobuf", messages), ("avro", records))
        ]
        assert messages.columns == ["id", "cents"] and written.columns == ["id", "cents"]
        return parts[0].unionByName(parts[1]).unionByName(parts[2])

    run_once(pipeline, spark, tmp_path / "checkpoints")
    assert received(bootstrap, names["j"]) == [{"id": "x", "cents": 7}, {"id": "y", "cents": 8}]
    assert with_headers(bootstrap, names["j"]) == {
        b"x": [("shop", b"east"), ("order", b"x")],
        b"y": [("order", b"y")],
    }
    for name in ("a", "p"):
        assert with_headers(bootstrap, names[name]) == {b"x": [("shop", b"east")], b"y": []}
    sale = message_class(Path(descriptor).read_bytes(), "shop.Sale")
    with Consumer(bootstrap, names["p"], until_end=True) as consumer:
        assert {
            (m.id, m.cents) for m in (sale.FromString(record.value) for record in consumer)
        } == {
            ("x", 7),
            ("y", 8),
        }
    ways = sorted((row["id"], row["way"]) for row in received(bootstrap, names["o"]))
    assert ways == [(name, way) for name in "xy" for way in ("avro", "json", "protobuf")]
    assert set(map(tuple, with_headers(bootstrap, names["o"]).values())) == {(("from", b"map"),)}


def test_unreadable_output_of_a_flow_becomes_a_dead_letter(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    """Other programs may write to any topic. NaN is text in JSON, and is read as a number again."""
    bootstrap, middle, end = shared_broker.bootstrap, f"{topic_name}-middle", f"{topic_name}-end"
    create(bootstrap, topic_name, middle, partitions=1)
    # The pipeline does not declare the topic.
    create(bootstrap, end, partitions=1, cleanup_policy="compact")
    rows = [(1, 1.0, 2.0), (2, 0.0, 0.0), (None, 1.0, 4.0)]
    send(
        bootstrap,
        topic_name,
        [{"id": id, "part": part, "whole": whole} for id, part, whole in rows],
    )
    send(bootstrap, middle, [b"of a stranger"])
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream(
        "sales", topic=topic_name, schema="id int, part double, whole double", dead_letters=False
    )

    @pipeline.flow(to=topic(middle, key="id"))
    def ratios(sales: DataFrame) -> DataFrame:
        whole = F.when(F.col("whole") != 0, F.col("whole")).otherwise(F.lit(float("nan")))
        return sales.select("id", (F.col("part") / whole).alias("ratio"))

    pipeline.sql("again", "SELECT * FROM ratios", to=topic(end, key="id"))
    run_once(pipeline, spark, tmp_path)
    assert received(bootstrap, end) == [{"id": 1, "ratio": 0.5}, {"id": 2, "ratio": "NaN"}]
    with Consumer(bootstrap, f"{middle}.dlq", until_end=True) as consumer:
        rejected = [dead_letter(record) for record in consumer]
    assert [(letter.topic, letter.offset, letter.record.value) for letter in rejected] == [
        (middle, 0, b"of a stranger")
    ]
    with Consumer(bootstrap, f"{topic_name}.again.dlq", until_end=True) as consumer:
        (keyless,) = [dead_letter(record) for record in consumer]
    assert (keyless.record.value, keyless.source) == (b'{"ratio":0.25}', f"topic {end}")


def test_invalid_headers_and_options_name_their_line(
    spark: SparkSession, shared_broker: LocalBroker, topic: str
) -> None:
    from millstream.pipelines import topic as to_topic
    from millstream.pipelines.errors import SourceLine
    from millstream.pipelines.formats.codec import encoded

    pipeline = Pipeline(
        topic, bootstrap=shared_broker.bootstrap, options={"batchBytes": 1000, "pollTimeoutMs": 9}
    )
    pipeline.stream("sales", topic=topic, schema="id string, n int")
    pipeline.stream("others", topic=topic, schema="id string", source={"maxOffsets": "9"})
    pipeline.sql("wrong", "SELECT * FROM others", to=to_topic("out2"))
    pipeline.sql("missing", "SELECT * FROM sales", to=to_topic("out", headers={"shop": "shp"}))
    option, column = check_flows(pipeline, spark).problems
    assert (
        option.text == "there is no option 'maxOffsets'" and "maxOffsetsPerTrigger" in option.hint
    )
    assert (
        column.text
        == "topic out of flow missing needs the column 'shp', which the flow does not have"
    )

    rows = spark.range(1).selectExpr("id", "cast(id as int) AS n")
    with pytest.raises(PipelineError, match=r"f.py:3.*'n' cannot hold the headers: it is int"):
        encoded(rows, [to_topic("out", headers="n")], rows.schema, SourceLine("f.py", 3))


def test_rows_are_counted_with_at_least_once_delivery(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, f"{topic_name}-in", partitions=1)
    send(bootstrap, f"{topic_name}-in", [{"n": n} for n in range(12)])
    pipeline = Pipeline(
        topic_name, bootstrap=bootstrap, delivery="at-least-once", dead_letters=False
    )
    pipeline.stream("numbers", topic=f"{topic_name}-in", schema="n int")
    pipeline.sql(
        "odd", "SELECT * FROM numbers WHERE n % 2 = 1", to=topic(f"{topic_name}-out", key="n")
    )
    run_once(pipeline, spark, tmp_path)
    (status,) = find_statuses(None, str(tmp_path))
    (flow,) = status["flows"]
    assert (flow["input_rows"], flow["output_rows"]) == (12, 6)
    assert sorted(row["n"] for row in received(bootstrap, f"{topic_name}-out")) == [
        1,
        3,
        5,
        7,
        9,
        11,
    ]


def test_fenced_run_fails_with_the_reason(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, f"{topic_name}-in", partitions=1)
    pipeline = Pipeline(topic_name, bootstrap=bootstrap, dead_letters=False)
    pipeline.stream("numbers", topic=f"{topic_name}-in", schema="n int")
    pipeline.sql("copy", "SELECT * FROM numbers", to=topic(out, key="n"))
    send(bootstrap, f"{topic_name}-in", [{"n": 1}])
    with Background(pipeline, spark, tmp_path) as running:
        wait_until(lambda: received_if_there(bootstrap, out) == [{"n": 1}])
        other = TopicSink(bootstrap, f"{topic_name}.copy", topic=out)
        other.open()
        send(bootstrap, f"{topic_name}-in", [{"n": 2}])
        assert running.wait() is False
    other.close()
    assert running.states("copy") == ["running", "failed"]
    (reason,) = [event["reason"] for event in running.events if "reason" in event]
    assert reason.startswith(FENCED)
    assert received(bootstrap, out) == [{"n": 1}]


def received_if_there(bootstrap: str, name: str) -> list[Any]:
    from millstream.client.errors import ClientError

    try:
        return received(bootstrap, name)
    except ClientError:
        # The run creates the topic.
        return []
