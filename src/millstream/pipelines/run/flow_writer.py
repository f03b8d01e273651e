"""Writes each batch of a flow to its targets once: stores first, then dead letters and topics.

Dead letters of a flow's inputs are part of the transaction of its topics. A flow that writes only
to stores has a separate transaction for them, after the stores. It records its last batch, too.

Stores know their last batch, and topics are one transaction together with their progress. So after
a crash between two targets the batch is run again, and targets that have it skip it.

A batch that reads a table is computed from the rows of that moment, and may see newer rows when it
is run again. The files of a batch and its records in a topic can then differ in the joined columns,
but no row is missing or duplicated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipelines.dead_letters.batches import BatchDeadLetters
from millstream.pipelines.dead_letters.refusals import RejectedRows
from millstream.pipelines.stores import RejectedRow, Store, StoreSink
from millstream.spark.sink import checkpoint
from millstream.spark.sink.checkpoint import BatchIdentity

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.spark.sink.topic_sink import TopicSink


class Stopped(Exception):
    """The run is ending. A batch that is not being written yet is left to the next run."""


class FlowWriter:
    """The foreachBatch function of one flow."""

    def __init__(
        self,
        name: str,
        directory: Path,
        stores: Sequence[tuple[Store, StoreSink]],
        topics: TopicSink | None,
        encode: Callable[[DataFrame], DataFrame],
        rejected_rows: RejectedRows,
        letters: BatchDeadLetters,
    ) -> None:
        self.name = name
        self.directory = directory
        """Spark's checkpoint of the flow."""
        self.error: BaseException | None = None
        self.last_batch: int | None = None
        self.rows = 0
        self._stores = stores
        self._rejected_rows = rejected_rows
        self._letters = letters
        self.dead_letters = 0
        self._topics = topics
        self._encode = encode
        self._closing = False
        self._busy = threading.Lock()
        self._checkpoint: checkpoint.Checkpoint | None = None
        if topics is not None:
            topics.side_output = self._dead_letters_of_batch

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return self._busy.locked()

    def open(self) -> None:
        """Fence and recover every target, before Spark reads its checkpoint."""
        for _, sink in self._stores:
            sink.open()
        self._rejected_rows.open()
        if self._topics is not None:
            self._topics.open()

    def close(self) -> None:
        for _, sink in self._stores:
            sink.close()
        self._rejected_rows.close()
        if self._topics is not None:
            self._topics.close()

    def stop_accepting(self) -> None:
        """Let the current batch finish, and reject others."""
        self._closing = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch. Keep the exception, because Spark would only pass on its text."""
        with self._busy:
            if self._closing:
                raise Stopped(self.name)
            try:
                self._write(batch, batch_id)
            except BaseException as error:
                self.error = error
                raise
            self.last_batch = batch_id

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        shared = len(self._stores) + (self._topics is not None) > 1
        if shared:
            batch = batch.persist()
        try:
            computed = False
            rows = 0
            if self._stores:
                identity = self._identity(batch, batch_id)
                rejected: list[tuple[Store, RejectedRow]] = []
                for store, sink in self._stores:
                    written = sink.write(batch, batch_id, identity)
                    rejected += [(store, row) for row in written.rejected]
                    rows = max(rows, written.rows)
                    computed = computed or not written.replayed
                if self._topics is None and not computed:
                    # The stores have the batch. Run it for the state, and to count bad rows.
                    batch.write.format("noop").mode("overwrite").save()
                self._write_rejected(batch.sparkSession, batch_id, rejected)
            if self._topics is not None:
                rows = max(rows, self._write_topics(batch, batch_id))
            self.rows += rows
        finally:
            if shared:
                batch.unpersist()

    def _write_rejected(
        self, spark: SparkSession, batch_id: int, rejected: Sequence[tuple[Store, RejectedRow]]
    ) -> None:
        letters = list(self._dead_letters_of_batch(spark)) if self._topics is None else []
        before = self._rejected_rows.written
        self._rejected_rows.write(spark, batch_id, rejected, letters)
        self.dead_letters += self._rejected_rows.written - before

    def _dead_letters_of_batch(self, spark: SparkSession) -> Iterator[DataFrame | pa.Table]:
        """Yield the dead letters of the batch that has just been computed."""
        if self._letters.streams:
            yield from self._letters.of_batch(spark, self._query(spark).plan())

    def _identity(self, batch: DataFrame, batch_id: int) -> BatchIdentity:
        return self._query(batch.sparkSession).identify(batch_id)

    def _query(self, spark: SparkSession) -> checkpoint.Checkpoint:
        self._checkpoint = checkpoint.current(spark, self._checkpoint)
        return self._checkpoint

    def _write_topics(self, batch: DataFrame, batch_id: int) -> int:
        """Return the number of rows that this call wrote; 0 if the batch was committed before."""
        assert self._topics is not None
        self._topics(self._encode(batch), batch_id)
        self.dead_letters += self._topics.side_rows
        return self._topics.rows_written
