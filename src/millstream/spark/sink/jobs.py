"""How the stages of a batch are run by Spark, and what comes back from them."""

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
from millstream.spark.sink.writer import Destination, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENCODED, WRITTEN = "encoded", "written"
_SCHEMAS = {ENCODED: ENCODED_SCHEMA, WRITTEN: WRITTEN_SCHEMA}
# A row that is shuffled is a whole record batch: count bytes, not rows.
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# There is nothing to adapt in a shuffle whose partitions are given, and a job for each stage takes longer.
ADAPTIVE = "spark.sql.adaptive.enabled"

AnyJob = EncodeJob | WriteJob | DirectJob


def map_batches(rows: DataFrame, job: AnyJob, result: str) -> DataFrame:
    """A stage: what a job makes of the rows of each partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        yield from job.run(batches)

    return rows.mapInArrow(run, _spark_schema(result))


@cache
def _spark_schema(result: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_SCHEMAS[result])


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a query's own session for one job; what the user chose is back afterwards."""
    before = {name: session.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            session.conf.set(name, str(old))


def encoded_batches(job: DataFrame) -> pa.Table:
    """What the first stage made: small batches, and where the large ones are."""
    try:
        rows = job.collect()
    except Exception as error:
        raise from_job(error) from error
    columns = zip(*rows, strict=True) if rows else [[] for _ in ENCODED_SCHEMA]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, ENCODED_SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ENCODED_SCHEMA)


def encode_here(rows: Iterable[pa.RecordBatch], job: EncodeJob) -> pa.Table:
    """The same for rows that are here already."""
    return pa.Table.from_batches(job.run(rows), schema=ENCODED_SCHEMA)


def write_here(encoded: pa.Table, destination: Destination) -> list[Written]:
    """The driver is the only writer: nothing can run twice."""
    writer, reader = Writer(destination), SpillReader()
    try:
        for batch in encoded.to_batches():
            send_all(writer, batch, reader)
        return writer.finish()
    except BaseException:
        writer.close()
        raise


def write_in_tasks(session: SparkSession, encoded: pa.Table, job: WriteJob, writers: int) -> list[Written]:
    """One task for each writer, and no shuffle: so no stage is ever repeated, only tasks, and those notice."""
    import pyarrow.compute as pc

    shares = [
        encoded.filter(pc.equal(encoded.column("writer"), number)).combine_chunks().to_batches()
        for number in range(writers)
    ]

    def run(batches: Iterable[list[pa.RecordBatch]]) -> Iterator[list[dict[str, Any]]]:
        for written in job.run(batch for share in batches for batch in share):
            yield written.to_pylist()

    try:
        found = session.sparkContext.parallelize(shares, writers).mapPartitions(run).collect()
    except Exception as error:
        raise from_job(error) from error
    return [_written(row) for rows in found for row in rows]


def manifests(job: DataFrame) -> list[Written]:
    """What the tasks of the last stage wrote; a failure as one of our own errors."""
    try:
        rows = [row.asDict() for row in job.collect()]
    except Exception as error:
        raise from_job(error) from error
    for stage in {row["stage"] for row in rows if not row["sure"]}:
        _check_stage(job.sparkSession, stage)
    return [_written(row) for row in rows]


def _written(row: Mapping[str, Any]) -> Written:
    return Written(*(row[name] for name in Written._fields))


def _check_stage(session: SparkSession, stage: int) -> None:
    """Where tasks cannot tell the attempt of their stage, the scheduler is asked; what it does not know is not trusted."""
    context = session.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    found = context.statusTracker().getStageInfo(stage)
    if found is None or found.currentAttemptId > 0:
        raise NotFirstAttempt(f"whether stage {stage} ran once is not sure, so the batch begins again")
