"""Parquet directories with every row once: crashes at any step, replays, other writers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, PipelineError, parquet
from millstream.pipelines.dead_letters.batches import BatchDeadLetters
from millstream.pipelines.dead_letters.refusals import RejectedRows
from millstream.pipelines.parquet_sink import ParquetSink
from millstream.pipelines.run.flow_writer import FlowWriter
from millstream.pipelines.run.session import pipeline_session
from millstream.spark.sink.checkpoint import BatchIdentity as Origin
from support.places import TESTS
from support.spark.parquet_plain import ORIGIN, PlainSink
from support.spark.pipeline_world import send

STEPS = ("_stage", "_plan", "_move", "_record", "_clean")


def table(directory: Path) -> list[dict[str, Any]]:
    """Return the rows that pyarrow reads."""
    return pyarrow.dataset.dataset(directory, partitioning="hive").to_table().to_pylist()


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from support.spark.parquet_plain import ORIGIN, PlainSink
from millstream.pipelines import parquet

class Dying(PlainSink):
    pass

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

step, when, directory = sys.argv[1:]
if step == "rename":
    renames, rename = [], Path.rename
    def counted(self, target):
        if self.suffix == ".parquet":
            renames.append(self)
            if len(renames) == int(when):
                die()
        return rename(self, target)
    Path.rename = counted
else:
    original = getattr(PlainSink, step)
    def dying(self, *arguments):
        if when == "before":
            die()
        result = original(self, *arguments)
        if self.armed:
            die()
        return result
    setattr(Dying, step, dying)
sink = Dying(parquet(directory), "writer")
sink.armed = False
sink.open()
sink.armed = True
sink.write(None, 0, ORIGIN)
"""

ROOT = str(TESTS)
MOMENTS = [(step, "after") for step in STEPS] + [("rename", "1"), ("rename", "2"), ("rename", "3")]


@pytest.mark.parametrize(("step", "when"), MOMENTS)
def test_rows_are_written_once_after_a_kill_at_any_step(
    step: str, when: str, tmp_path: Path
) -> None:
    directory = tmp_path / "lake"
    script = KILLED.format(root=ROOT)
    killed = subprocess.run([sys.executable, "-c", script, step, when, str(directory)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    seen = [row["n"] for row in table(directory)] if directory.exists() else []
    assert len(seen) == len(set(seen)) and set(seen) <= {0, 1, 2}

    sink = PlainSink(parquet(str(directory)), "writer")
    sink.open()
    sink.write(None, 0, ORIGIN)
    assert sorted(row["n"] for row in table(directory)) == [0, 1, 2]
    assert sink.write(None, 0, ORIGIN).replayed
    sink.write(None, 1, ORIGIN)
    assert sorted(row["n"] for row in table(directory)) == [0, 1, 2, 10, 11, 12]
    hidden = sorted(path.name for path in sink.hidden.iterdir())
    assert hidden == ["lock", "progress.json"]
    sink.close()


def test_progress_of_another_query_batch_or_offsets_is_rejected(tmp_path: Path) -> None:
    sink = PlainSink(parquet(str(tmp_path)), "writer")
    sink.open()
    with pytest.raises(PipelineError, match=r"is at batch 3, but .* has no batch of it"):
        sink.write(None, 3, ORIGIN)
    sink.write(None, 0, ORIGIN)
    sink.write(None, 1, ORIGIN)
    for batch, origin in (
        (0, ORIGIN),
        (0, Origin("query-2", "x")),
        (1, Origin("query-1", "x")),
        (3, ORIGIN),
    ):
        with pytest.raises(PipelineError, match="was deleted, restored or copied; restore both"):
            sink.write(None, batch, origin)
    sink.close()
    again = PlainSink(parquet(str(tmp_path)), "writer", reset_progress=True)
    again.open()
    assert not again.write(None, 5, Origin("query-2", "x")).replayed
    assert len(table(tmp_path)) == 9
    with pytest.raises(PipelineError):
        again.write(None, 9, Origin("query-2", "x"))
    again.close()


def test_other_readers_see_exact_times(spark: SparkSession, tmp_path: Path) -> None:
    """Other readers see Spark's default for times only up to 2262, but "9999-12-31" is common."""
    session = pipeline_session(spark, Pipeline("times"))
    sink = ParquetSink(parquet(str(tmp_path / "lake")), "flow")
    sink.open()
    sink.write(session.sql("SELECT timestamp'9999-12-31 23:59:59.999999' AS until"), 0, ORIGIN)
    sink.close()
    (row,) = table(tmp_path / "lake")
    assert row["until"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def test_command_settings_override_those_of_the_file(spark: SparkSession) -> None:
    partitions, provider = (
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.stateStore.providerClass",
    )
    pipeline = Pipeline("settings", conf={partitions: "3", "spark.sql.session.timeZone": "CET"})
    conf = pipeline_session(spark, pipeline, {partitions: "5", provider: "mine"}).conf
    assert [conf.get(name) for name in (partitions, provider, "spark.sql.session.timeZone")] == [
        "5",
        "mine",
        "CET",
    ]


def test_second_writer_with_the_same_name_is_rejected(tmp_path: Path) -> None:
    first, second, other = (PlainSink(parquet(str(tmp_path)), name) for name in ("a", "a", "b"))
    first.open()
    with pytest.raises(PipelineError, match=r"a is already writing to .* \(process \d+"):
        second.open()
    other.open()
    other.write(None, 0, ORIGIN)
    first.write(None, 0, ORIGIN)
    assert Counter(row["n"] for row in table(tmp_path)) == {0: 2, 1: 2, 2: 2}
    first.close()
    other.close()


class Crash(Exception):
    """An error that a test raises in a step."""


class Crashing(ParquetSink):
    """Fails once after each step, each time in another batch."""

    faults: list[str]

    def _fault(self, step: str) -> None:
        if self.faults and self.faults[0] == step:
            self.faults.pop(0)
            raise Crash(step)

    def _stage(self, batch: DataFrame, batch_id: int) -> Path:
        staging = super()._stage(batch, batch_id)
        self._fault("_stage")
        return staging

    def _plan(self, staging: Path, batch_id: int, origin: Origin) -> dict[str, Any]:
        plan = super()._plan(staging, batch_id, origin)
        self._fault("_plan")
        return plan

    def _move(self, plan: dict[str, Any]) -> None:
        super()._move(plan)
        self._fault("_move")

    def _record(self, plan: dict[str, Any]) -> None:
        super()._record(plan)
        self._fault("_record")

    def _clean(self) -> None:
        super()._clean()
        self._fault("_clean")


@pytest.mark.long
def test_stateful_stream_with_failing_steps_writes_rows_once(
    spark: SparkSession, stream, shared_broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    """Spark repeats the batches. The running count shows that the state is updated once, too."""
    send(shared_broker.bootstrap, topic, [str(number).encode() for number in range(600)])
    rows = (
        stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=100)
        .select(F.col("value").cast("string").cast("int").alias("n"), "timestamp")
        .withWatermark("timestamp", "1 hour")
        .dropDuplicatesWithinWatermark(["n"])
        .withColumn("tens", (F.col("n") % 3).cast("string"))
    )
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    faults = list(STEPS)
    for _ in range(len(STEPS) + 1):
        sink = Crashing(parquet(str(lake), by="tens"), "p.flow")
        # The recovery of open() must not crash.
        sink.faults = []
        rejected = RejectedRows("p", "flow", None, None)
        letters = BatchDeadLetters("p", "flow", [])
        writer = FlowWriter(
            "flow", checkpoint, [(sink.target, sink)], None, lambda batch: batch, rejected, letters
        )
        writer.open()
        sink.faults = faults
        query = (
            rows.writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(90)
        except Exception:
            assert isinstance(writer.error, Crash), writer.error
        writer.close()
    assert faults == []
    assert sorted(row["n"] for row in table(lake)) == list(range(600))
    assert sorted(row.n for row in spark.read.parquet(str(lake)).collect()) == list(range(600))
    assert {path.name for path in lake.iterdir()} == {"_millstream", "tens=0", "tens=1", "tens=2"}
