"""Write the rows of a micro-batch to topics, with as few Spark jobs as its size allows.

Exactly once, rows are first encoded into record batches, and each partition is then written by one
writer. On one machine, encoded batches go through files (``spill``); small ones are written by the
driver (``driver_write``). On a cluster a shuffle brings them to their writers. At least once, one
stage encodes and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.core.types import TopicPartition
from millstream.spark.options import Options
from millstream.spark.sink import jobs, spill
from millstream.spark.sink.driver_write import DriverCollect
from millstream.spark.sink.rows import ColumnSelection
from millstream.spark.sink.stages import CHUNK_BYTES, RAN_BY, DirectJob, EncodeJob, WriteJob
from millstream.spark.sink.targets import Targets, take_snapshot
from millstream.spark.sink.transaction import TransactionOwner, retry
from millstream.spark.sink.writer import Destination, WrittenPartition
from millstream.wire.records.compression import Codec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NONE_BEFORE: Mapping[TopicPartition, int] = MappingProxyType({})


class RowWriter:
    """Writes rows for one open sink. Without an ``owner`` there are no transactions."""

    def __init__(
        self,
        options: Options,
        connection: Connection,
        protocol: Protocol,
        owner: TransactionOwner | None,
        topics: Sequence[str],
        write_job: Callable[[Destination], WriteJob] = WriteJob,
    ) -> None:
        """``topics`` are those that the column ``topic`` may name; empty if they are not known."""
        self._options = options
        self._topic: str | None = options["topic"]
        self._connection = connection
        self._protocol = protocol
        self._owner = owner
        self._patience_s = options["deliveryTimeoutMs"] / 1000
        self._possible_topics = tuple(topics) or None
        self._requested_topics: set[str] = set()
        self._write_job = write_job
        self._columns = ColumnSelection(self._topic)
        self._driver_collect = DriverCollect()
        self._swept = False

    def select_columns(self, batch: DataFrame) -> DataFrame:
        """Return the columns of a batch that are written. Raise RowRefused if one is missing."""
        return self._columns.select(batch)

    def request_creation(self, names: Iterable[str]) -> bool:
        """Have missing topics created by the next metadata request, if the broker creates topics.

        Return whether one of them is new. Each topic is requested once.
        """
        new = set(names) - self._requested_topics
        self._requested_topics |= new
        return bool(new)

    # ---- writing ----

    def write(
        self,
        rows: DataFrame,
        batch_id: int,
        columns: Mapping[str, str] | None = None,
        before: Mapping[TopicPartition, int] = NONE_BEFORE,
    ) -> list[WrittenPartition]:
        """Encode rows and write each partition with one writer.

        ``columns`` are those of a side output. ``before`` counts the records that the transaction
        already has in each partition.
        """
        context = rows.sparkSession.sparkContext
        targets = self.targets()
        writers = max(1, min(targets.total, context.defaultParallelism))
        if not spill.is_local(rows.sparkSession):
            return self._write_over_shuffle(rows, targets, batch_id, writers, columns, before)
        if not self._swept:
            spill.sweep(rows.sparkSession)
            self._swept = True
        collected = (
            self._driver_collect.collect(rows, self._columns.names) if columns is None else None
        )
        if collected is not None:
            encoded = jobs.encode_on_driver(
                collected, self._encode_job(targets, batch_id, writers, None)
            )
            return self._write_encoded(rows.sparkSession, encoded, targets, writers, before)
        directory = spill.make_directory(rows.sparkSession)
        try:
            job = self._encode_job(targets, batch_id, writers, directory, columns)
            encoded = jobs.collect_encoded(jobs.map_batches(rows, job, jobs.ENCODED))
            return self._write_encoded(rows.sparkSession, encoded, targets, writers, before)
        finally:
            spill.remove(directory)

    def write_side_output(
        self, rows: DataFrame | pa.Table, batch_id: int, before: Mapping[TopicPartition, int]
    ) -> list[WrittenPartition]:
        """Write rows of a side output. Partitions continue the sequences that they have."""
        import pyarrow as pa

        if isinstance(rows, pa.Table):
            targets = self.targets()
            columns = {
                name: name for name in rows.column_names if name != "topic" or self._topic is None
            }
            job = self._encode_job(targets, batch_id, 1, None, columns)
            encoded = jobs.encode_on_driver(rows.to_batches(), job)
            return jobs.write_on_driver(encoded, self._destination(targets, before))
        selection = ColumnSelection(self._topic)
        return self.write(selection.select(rows), batch_id, selection.names, before)

    def write_directly(self, rows: DataFrame, batch_id: int) -> list[WrittenPartition]:
        """Encode and write in one stage. Repeated tasks write their records again."""
        targets = self.targets()
        job = DirectJob(self._encode_job(targets, batch_id, 1, None), self._destination(targets))
        return jobs.collect_written(jobs.map_batches(rows, job, jobs.WRITTEN))

    def _write_over_shuffle(
        self,
        rows: DataFrame,
        targets: Targets,
        batch_id: int,
        writers: int,
        columns: Mapping[str, str] | None,
        before: Mapping[TopicPartition, int],
    ) -> list[WrittenPartition]:
        """Run one job of two stages. The result stage writes, so no shuffle comes after it."""
        from pyspark.sql import functions as F

        # The session belongs to this query, so its settings affect no other query.
        session = rows.sparkSession
        encode_job = self._encode_job(targets, batch_id, writers, None, columns)
        encoded = jobs.map_batches(rows, encode_job, jobs.ENCODED)
        placed = encoded.repartitionById(writers, F.col("writer")).selectExpr(
            "*", f"{RAN_BY} AS ran_by"
        )
        with jobs.settings(session, {jobs.ARROW_BYTES: str(CHUNK_BYTES), jobs.ADAPTIVE: "false"}):
            job = self._write_job(self._destination(targets, before))
            return jobs.collect_written(jobs.map_batches(placed, job, jobs.WRITTEN))

    def _write_encoded(
        self,
        session: SparkSession,
        encoded: pa.Table,
        targets: Targets,
        writers: int,
        before: Mapping[TopicPartition, int],
    ) -> list[WrittenPartition]:
        """Write encoded batches on one machine: small ones in the driver, others in tasks."""
        size = encoded.column("size").to_numpy().sum()
        if self._options["driverBytes"]:
            self._driver_collect.learn(size)
        destination = self._destination(targets, before)
        if size > self._options["driverBytes"]:
            return jobs.write_in_tasks(session, encoded, self._write_job(destination), writers)
        return jobs.write_on_driver(encoded, destination)

    # ---- inputs of the jobs ----

    def targets(self) -> Targets:
        """Return the topics and partitions that a batch may write to, as they are now."""
        required, optional = self._requested_topics, self._possible_topics
        if self._topic is not None:
            required, optional = {self._topic}, ()
        return retry(
            lambda: take_snapshot(
                self._protocol, required, others=optional, patience_s=self._patience_s
            ),
            self._patience_s,
        )

    def _encode_job(
        self,
        targets: Targets,
        batch_id: int,
        writers: int,
        directory: Path | None,
        columns: Mapping[str, str] | None = None,
    ) -> EncodeJob:
        return EncodeJob(
            targets,
            self._columns.names if columns is None else columns,
            self._topic,
            int(Codec[self._options["compression"].upper()]),
            self._options["batchBytes"],
            writers,
            batch_id,
            None if directory is None else str(directory),
        )

    def _destination(
        self, targets: Targets, before: Mapping[TopicPartition, int] = NONE_BEFORE
    ) -> Destination:
        if self._owner is None:
            return Destination(
                self._connection, targets.leaders, targets.brokers, timeout_s=self._patience_s
            )
        return Destination(
            self._connection,
            targets.leaders,
            targets.brokers,
            self._owner.transactional_id,
            self._owner.producer,
            self._patience_s,
            dict(before),
        )
