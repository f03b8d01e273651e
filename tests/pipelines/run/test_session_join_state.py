"""The state of stream-stream joins: its format, and checkpoints with another format."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline
from millstream.pipelines import topic as to_topic
from millstream.pipelines.run.session import JOIN_FORMAT, STATE_PROVIDER
from support.spark.pipeline_world import create, received, run_once, send

IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
AT = "2026-01-01T00:00:00Z"


def joined(name: str, bootstrap: str) -> Pipeline:
    """Return a pipeline that joins orders with their payments."""
    pipeline = Pipeline(name, bootstrap=bootstrap)
    for stream in ("orders", "payments"):
        create(bootstrap, f"{name}-{stream}")
        pipeline.stream(
            stream,
            topic=f"{name}-{stream}",
            schema=f"{stream}_id string not null, {stream}_at timestamp not null",
            watermark=f"{stream}_at 1 minute",
        )

    @pipeline.flow(to=to_topic(f"{name}-out"))
    def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
        same = F.expr(
            "orders_id = payments_id AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 1 MINUTE"
        )
        return orders.join(payments, same).select(F.col("orders_id").alias("id"))

    return pipeline


def write(pipeline: Pipeline, stream: str, *names: str) -> None:
    rows = [{f"{stream}_id": name, f"{stream}_at": AT} for name in names]
    send(pipeline.bootstrap, f"{pipeline.name}-{stream}", rows)


def stores(checkpoint: Path) -> set[str]:
    """Return the names of a join's stores, such as left-keyWithIndexToValue."""
    state = next(checkpoint.rglob("state"))
    return {path.name for path in state.glob("0/[0-9]*/*-*") if path.is_dir()}


@pytest.mark.parametrize("provider", [None, IN_MEMORY])
def test_join_keeps_the_state_format_of_its_checkpoint(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    provider: str | None,
) -> None:
    pipeline = joined(topic_name, shared_broker.bootstrap)
    conf = {} if provider is None else {STATE_PROVIDER: provider}
    write(pipeline, "orders", "a", "b")
    run_once(pipeline, spark, tmp_path, conf={**conf, JOIN_FORMAT: "2"})
    write(pipeline, "payments", "a")
    run_once(pipeline, spark, tmp_path, conf=conf)
    assert received(pipeline.bootstrap, f"{topic_name}-out") == [{"id": "a"}]
    assert len(stores(tmp_path)) == 4


def test_new_join_has_one_store(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    pipeline = joined(topic_name, shared_broker.bootstrap)
    write(pipeline, "orders", "a", "b")
    run_once(pipeline, spark, tmp_path)
    write(pipeline, "payments", "b", "a")
    run_once(pipeline, spark, tmp_path)
    assert sorted(row["id"] for row in received(pipeline.bootstrap, f"{topic_name}-out")) == [
        "a",
        "b",
    ]
    assert stores(tmp_path) == set()
