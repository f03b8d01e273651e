"""Fixtures of the Spark tests: one session for all of them, because a JVM takes seconds to start.

- ``spark`` is the session, on two threads; ``read`` and ``stream`` are DataFrame readers of the
  millstream format.
- ``admin`` is an Admin of the shared broker; ``topic`` is a new topic with two partitions.
- ``run_to_end`` runs a streaming DataFrame with Trigger.AvailableNow into a list of rows.

The longest tests are marked ``long`` and left to ``make spark``; of each kind, some are part of
``make test``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client.admin.client import Admin
from millstream.local.broker import LocalBroker
from support.spark import quick_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

QUERY_TIMEOUT_S = 90


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = quick_jvm.shared_session()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def no_query_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """A query that a failed test leaves behind must not disturb the next one."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def admin(shared_broker: LocalBroker) -> Iterator[Admin]:
    with Admin(shared_broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=2)
    return topic_name


ReaderFactory = Callable[..., "DataFrame"]


def _reader(made: Any, bootstrap: str) -> ReaderFactory:
    def load(
        subscribe: str | None = None, bootstrap: str = bootstrap, **options: object
    ) -> DataFrame:
        """Options as keywords; dots as two underscores (kafka__isolation__level)."""
        reader = (
            made.read_or_stream().format("millstream").option("kafka.bootstrap.servers", bootstrap)
        )
        if subscribe is not None:
            reader = reader.option("subscribe", subscribe)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    return load


class _Batch:
    def __init__(self, spark: SparkSession) -> None:
        self.read_or_stream = lambda: spark.read


class _Stream:
    def __init__(self, spark: SparkSession) -> None:
        self.read_or_stream = lambda: spark.readStream


@pytest.fixture
def read(spark: SparkSession, shared_broker: LocalBroker) -> ReaderFactory:
    """``read("orders", startingOffsets="earliest")``: a batch DataFrame."""
    return _reader(_Batch(spark), shared_broker.bootstrap)


@pytest.fixture
def stream(spark: SparkSession, shared_broker: LocalBroker) -> ReaderFactory:
    """The same as a streaming DataFrame."""
    return _reader(_Stream(spark), shared_broker.bootstrap)


class Collector:
    """A foreachBatch sink that keeps the rows, by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = batch.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def values(self) -> list[bytes | None]:
        return [None if row.value is None else bytes(row.value) for row in self.rows]


@pytest.fixture
def collector() -> Collector:
    return Collector()


StartQuery = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartQuery]:
    """``start(df, collector, checkpoint="a", availableNow=True)``: a query with a checkpoint of
    this test's own.
    """
    started = []

    def begin(
        df: DataFrame, sink: Any, *, checkpoint: str | None = None, **trigger: Any
    ) -> StreamingQuery:
        place = tmp_path / (checkpoint or f"checkpoint-{uuid.uuid4().hex[:8]}")
        writer = df.writeStream.option("checkpointLocation", str(place)).foreachBatch(sink)
        started.append((writer.trigger(**trigger) if trigger else writer).start())
        return started[-1]

    yield begin
    for query in started:
        query.stop()


@pytest.fixture
def run_to_end(start: StartQuery) -> Callable[..., Collector]:
    """``run_to_end(df, checkpoint="a")``: everything there is now, with Trigger.AvailableNow."""

    def run(df: DataFrame, *, checkpoint: str | None = None) -> Collector:
        sink = Collector()
        query = start(df, sink, checkpoint=checkpoint, availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
        return sink

    return run
