"""What a flow does with each batch: stores first (files, tables), then dead letters and topics, each target once.

Stores know their last batch, topics are one transaction together with their progress, so a crash between two targets is mended
by running the batch again: targets that have it are left alone. A batch that reads a table is computed from the table as it
is at that moment; run again it may see newer rows, so the files of a batch and its records in a topic can then differ in
what they joined, but none is missing or doubled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipelines.refusals import Refusals
from millstream.pipelines.stores import Refused, Store, StoreSink
from millstream.spark import checkpoint
from millstream.spark.checkpoint import BatchIdentity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.sink import TopicSink


class Stopped(Exception):
    """The run is ending: a batch that has not begun to write is left for the next run."""


class FlowWriter:
    """The foreachBatch function of one flow."""

    def __init__(
        self,
        name: str,
        directory: Path,
        stores: Sequence[tuple[Store, StoreSink]],
        topics: TopicSink | None,
        encode: Callable[[DataFrame], DataFrame],
        refusals: Refusals,
    ) -> None:
        self.name = name
        self.directory = directory
        """Spark's checkpoint of the flow."""
        self.error: BaseException | None = None
        self.last_batch: int | None = None
        self.rows = 0
        self._stores = stores
        self._refusals = refusals
        self._topics = topics
        self._encode = encode
        self._closing = False
        self._busy = threading.Lock()
        self._checkpoint: checkpoint.Checkpoint | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return self._busy.locked()

    def open(self) -> None:
        """Fence and recover every target, before Spark reads its checkpoint."""
        for _, sink in self._stores:
            sink.open()
        self._refusals.open()
        if self._topics is not None:
            self._topics.open()

    def close(self) -> None:
        for _, sink in self._stores:
            sink.close()
        self._refusals.close()
        if self._topics is not None:
            self._topics.close()

    def stop_accepting(self) -> None:
        """Let the batch that is being written finish, and begin no other."""
        self._closing = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch. The error is kept as it is: Spark would only pass its text on."""
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
                refused: list[tuple[Store, Refused]] = []
                for store, sink in self._stores:
                    written = sink.write(batch, batch_id, identity)
                    refused += [(store, one) for one in written.refused]
                    rows = max(rows, written.rows)
                    computed = computed or not written.replayed
                self._refusals.write(batch.sparkSession, batch_id, refused)
            if self._topics is not None:
                rows = max(rows, self._write_topics(batch, batch_id))
            elif not computed:
                batch.write.format("noop").mode("overwrite").save()  # state has to move on with the batch
            self.rows += rows
        finally:
            if shared:
                batch.unpersist()

    def _identity(self, batch: DataFrame, batch_id: int) -> BatchIdentity:
        query_id = checkpoint.query_id_of(batch)
        if self._checkpoint is None or self._checkpoint.query != query_id:
            self._checkpoint = checkpoint.Checkpoint(batch.sparkSession, query_id)
        return self._checkpoint.identify(batch_id)

    def _write_topics(self, batch: DataFrame, batch_id: int) -> int:
        """The rows that this call wrote; none when the batch was committed before."""
        assert self._topics is not None
        self._topics(self._encode(batch), batch_id)
        return self._topics.rows_written
