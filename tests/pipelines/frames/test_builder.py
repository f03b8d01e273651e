"""Sources that are loaded in parallel."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from millstream.pipelines import Pipeline, topic
from millstream.pipelines.frames.builder import Frames


class TopicReader:
    """Waits in each load until three loads run at the same time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.loaded: list[str] = []
        self._together = threading.Barrier(3, timeout=60)

    def stream(self, stream: Any, *_: object) -> None:
        self._load(stream.name)

    def table(self, table: Any) -> None:
        self._load(table.name)

    def _load(self, name: str) -> None:
        self._together.wait()
        self.loaded.append(name)


def test_sources_are_loaded_in_parallel() -> None:
    pipeline = Pipeline("shop")
    for name in ("orders", "payments"):
        pipeline.stream(name, schema="id string")
    pipeline.table("customers", schema="id string")
    query = "SELECT * FROM orders JOIN payments USING (id) JOIN customers USING (id)"
    pipeline.sql("joined", query, to=topic("joined"))
    reader: Any = TopicReader(pipeline)
    spark: Any = None
    Frames(spark, pipeline, topics=reader).load_sources(pipeline.flows.values())
    assert sorted(reader.loaded) == ["customers", "orders", "payments"]
