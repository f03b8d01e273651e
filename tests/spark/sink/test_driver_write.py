"""Small batches are collected to the driver without a Python worker; large ones are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.local.broker import LocalBroker
from millstream.spark.sink.driver_write import (
    MAX_ROW_BYTES,
    MAX_ROWS,
    PAUSE,
    SMALL_BYTES,
    DriverCollect,
)
from millstream.spark.sink.failures import JobFailed
from support.spark.sink_world import World, messages

pytest.importorskip("pyspark")
from pyspark.sql import functions as F

COLUMNS = {"value": "value"}


def expecting() -> DriverCollect:
    predictor = DriverCollect()
    predictor.learn(SMALL_BYTES)
    return predictor


def rows(spark: Any, count: int, value: str = "cast(id as string)") -> Any:
    return spark.range(0, count, 1, 1).selectExpr(f"{value} AS value")


def test_rows_come_when_the_last_batch_was_small(spark: Any) -> None:
    predictor = DriverCollect()
    assert predictor.collect(rows(spark, 1), COLUMNS) is None
    predictor.learn(SMALL_BYTES)
    batches = predictor.collect(rows(spark, 3), COLUMNS)
    assert batches is not None
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [
        "0",
        "1",
        "2",
    ]
    predictor.learn(SMALL_BYTES + 1)
    assert predictor.collect(rows(spark, 1), COLUMNS) is None


def test_empty_batch_is_collected(spark: Any) -> None:
    assert expecting().collect(rows(spark, 0), COLUMNS) == []


@pytest.mark.parametrize(
    ("count", "value"),
    [
        (MAX_ROWS + 1, "cast(id as string)"),
        (1, f"repeat('x', {MAX_ROW_BYTES + 1})"),
    ],
)
def test_large_batch_is_not_collected(spark: Any, count: int, value: str) -> None:
    predictor = expecting()
    assert predictor.collect(rows(spark, count, value), COLUMNS) is None
    for _ in range(PAUSE - 1):
        predictor.learn(0)
        assert predictor.collect(rows(spark, 1), COLUMNS) is None, "after a large batch it pauses"
    predictor.learn(0)
    assert predictor.collect(rows(spark, 1), COLUMNS) is not None


def test_each_partition_has_its_own_share(spark: Any) -> None:
    batches = expecting().collect(
        spark.range(0, 2 * MAX_ROWS, 1, 2).selectExpr("'x' AS value"), COLUMNS
    )
    assert batches is not None and sum(batch.num_rows for batch in batches) == 2 * MAX_ROWS


def test_a_plan_that_fails_is_a_failed_job(spark: Any) -> None:
    with pytest.raises(JobFailed, match="out of stock"):
        expecting().collect(rows(spark, 1, "raise_error('out of stock')"), COLUMNS)


@pytest.fixture
def world(spark: Any, shared_broker: LocalBroker, topic_name: str, tmp_path: Path) -> World:
    made = World(spark, shared_broker, topic_name, tmp_path)
    made.topics()
    return made


def test_small_large_and_small_batches_are_written_once(world: World) -> None:
    sink = world.sink()
    world.put("first")
    world.put("second", "third")
    world.put(*(f"row {n}" for n in range(3 * MAX_ROWS)))
    world.put("last")
    world.run(world.rows(), sink)
    assert sink.progress is not None and (sink.progress.batch, sink.progress.commits) == (3, 4)
    expected = ["first", "second", "third", "last", *(f"row {n}" for n in range(3 * MAX_ROWS))]
    assert world.values() == sorted(expected)


def test_every_column_is_the_same_either_way(world: World) -> None:
    """The first batch is encoded by a task, the second one by the driver."""
    number = F.col("value").cast("string").cast("int")
    header = F.array(F.struct(F.lit("h").alias("key"), F.col("value").alias("value")))
    selected = world.rows().select(
        F.concat(F.lit("key-"), number % 10).alias("key"),
        F.concat(F.lit("value-"), number % 10).alias("Value"),
        F.when(number % 10 > 1, header).alias("headers"),
        F.when(number % 10 == 2, F.lit(2)).alias("partition"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number % 10).alias("timestamp"),
        F.lit("ignored").alias("a `column`"),
    )
    world.put("1", "2", "3")
    world.put("11", "12", "13")
    world.run(selected, world.sink())
    records = [
        (
            m.partition(),
            m.key(),
            m.value(),
            m.timestamp()[1],
            [name for name, _ in m.headers() or []],
        )
        for m in messages(world.bootstrap, world.target)
    ]
    assert len(records) == 6 and sorted(records)[::2] == sorted(records)[1::2]
