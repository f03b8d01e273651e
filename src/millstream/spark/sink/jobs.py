"""Run the stages of a batch in Spark or in the driver, and collect their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.spark.python_worker import settle
from millstream.spark.sink.failures import NotFirstAttempt, from_job
from millstream.spark.sink.spill import SpillReader
from millstream.spark.sink.stages import (
    ENCODED_SCHEMA,
    WRITTEN_SCHEMA,
    DirectJob,
    EncodeJob,
    WriteJob,
    send_all,
)
from millstream.spark.sink.writer import Destination, Writer, WrittenPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENCODED, WRITTEN = "encoded", "written"
_SCHEMAS = {ENCODED: ENCODED_SCHEMA, WRITTEN: WRITTEN_SCHEMA}
# A row of the shuffle is a whole record batch: limit bytes, not rows.
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# The partitions of the shuffle are fixed, so there is nothing to adapt, and a job per stage takes
# longer.
ADAPTIVE = "spark.sql.adaptive.enabled"

AnyJob = EncodeJob | WriteJob | DirectJob


def map_batches(rows: DataFrame, job: AnyJob, result: str) -> DataFrame:
    """Return the results of running a job on each partition of the rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        yield from job.run(batches)

    return rows.mapInArrow(run, _spark_schema(result))


@cache
def _spark_schema(result: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_SCHEMAS[result])


@contextmanager
def settings(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a query's session for one job, and restore them."""
    before = {name: session.conf.get(name) for name in values}
    for name, value in values.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            session.conf.set(name, str(old))


def collect_encoded(job: DataFrame) -> pa.Table:
    """Run the first stage. Return small record batches, and the locations of large ones."""
    try:
        rows = job.collect()
    except Exception as error:
        raise from_job(error) from error
    columns = zip(*rows, strict=True) if rows else [[] for _ in ENCODED_SCHEMA]
    arrays = [
        pa.array(column, kind) for column, kind in zip(columns, ENCODED_SCHEMA.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=ENCODED_SCHEMA)


def encode_on_driver(rows: Iterable[pa.RecordBatch], job: EncodeJob) -> pa.Table:
    """Encode rows that the driver already has."""
    return pa.Table.from_batches(job.run(rows), schema=ENCODED_SCHEMA)


def write_on_driver(encoded: pa.Table, destination: Destination) -> list[WrittenPartition]:
    """Write record batches from the driver. It is the only writer, so nothing runs twice."""
    writer, reader = Writer(destination), SpillReader()
    try:
        for batch in encoded.to_batches():
            send_all(writer, batch, reader)
        return writer.finish()
    except BaseException:
        writer.close()
        raise


def write_in_tasks(
    session: SparkSession, encoded: pa.Table, job: WriteJob, writers: int
) -> list[WrittenPartition]:
    """Write record batches with one task per writer, and without a shuffle.

    No stage is ever repeated this way. Repeated tasks notice that themselves.
    """
    import pyarrow.compute as pc

    shares = [
        encoded.filter(pc.equal(encoded.column("writer"), number)).combine_chunks().to_batches()
        for number in range(writers)
    ]

    def run(batches: Iterable[list[pa.RecordBatch]]) -> Iterator[list[dict[str, Any]]]:
        for written in job.run(batch for share in batches for batch in share):
            yield written.to_pylist()

    try:
        reports = session.sparkContext.parallelize(shares, writers).mapPartitions(run).collect()
    except Exception as error:
        raise from_job(error) from error
    return [_written(row) for rows in reports for row in rows]


def collect_written(job: DataFrame) -> list[WrittenPartition]:
    """Run the writing stage. Return the reports of its tasks, or raise one of our errors."""
    try:
        rows = [row.asDict() for row in job.collect()]
    except Exception as error:
        raise from_job(error) from error
    for stage in {row["stage"] for row in rows if not row["sure"]}:
        _check_stage(job.sparkSession, stage)
    return [_written(row) for row in rows]


def _written(row: Mapping[str, Any]) -> WrittenPartition:
    return WrittenPartition(*(row[name] for name in WrittenPartition._fields))


def _check_stage(session: SparkSession, stage: int) -> None:
    """Check with the scheduler that a stage ran once, if its tasks could not tell.

    An unknown stage counts as repeated.
    """
    context = session.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    info = context.statusTracker().getStageInfo(stage)
    if info is None or info.currentAttemptId > 0:
        raise NotFirstAttempt(
            f"stage {stage} may have run more than once, so the batch starts over"
        )
