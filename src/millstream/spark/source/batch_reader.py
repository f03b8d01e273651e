"""``spark.read.format("millstream")``: all records between two positions, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.spark.options import BATCH, check_batch_positions, parse
from millstream.spark.python_worker import settle
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.data_loss import one_line_errors, warn_without_effect
from millstream.spark.source.fetcher import Fetcher
from millstream.spark.source.offsets import Loss, Range
from millstream.spark.source.planning import (
    TaskPartition,
    check_columns,
    check_subscription,
    ending_positions,
    handle_losses,
    make_tasks,
    starting_positions,
)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, texts: Mapping[str, str], schema: StructType) -> None:
        with one_line_errors():
            self._options = parse(texts, BATCH)
            check_subscription(self._options)
            check_batch_positions(self._options)
            warn_without_effect(texts, BATCH)
            self._columns = check_columns(schema)

    def partitions(self) -> list[InputPartition]:
        with one_line_errors():
            view = ClusterView(self._options)
            try:
                return list(make_tasks(view, self._options, self._ranges(view), self._columns)) or [
                    TaskPartition(None)
                ]
            finally:
                view.close()

    def _ranges(self, view: ClusterView) -> list[Range]:
        view.refresh()
        starts = starting_positions(view, self._options, default="earliest")
        ends = ending_positions(view, self._options)
        logs = view.logs()
        losses, ranges = [], []
        for partition, start in sorted(starts.items()):
            log, end = logs[partition], ends[partition]
            if start < log.earliest:
                losses.append(Loss(partition, "deleted", start, log.earliest))
            if start > log.latest:
                losses.append(Loss(partition, "ahead", start, log.latest))
            if end > log.latest:
                losses.append(Loss(partition, "beyond", end, log.latest))
            begin, stop = max(start, log.earliest), min(end, log.latest)
            if begin < stop:
                ranges.append(Range(partition, begin, stop))
        handle_losses(losses, self._options)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the records of one task, of a batch or a stream."""
    assert isinstance(partition, TaskPartition)
    settle()
    if partition.task is not None:
        with one_line_errors():
            yield from Fetcher(partition.task).batches()
