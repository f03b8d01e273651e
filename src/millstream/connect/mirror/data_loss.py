"""Reports records that were deleted before they were mirrored, if the mirror skips them.

The source reads in processes beside Spark's JVM, whose output may end in a log that is never read.
So the driver checks: it compares where each partition is read from with where its log starts,
before and after each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.connect.mirror.direction import Direction
from millstream.spark.options import BATCH, only_for, parse
from millstream.spark.sink.checkpoint import Checkpoint, query_id_of
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.offsets import Loss, Offset, find_losses
from millstream.spark.source.planning import refresh_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DataLossReport:
    """The data loss of one direction while its query runs."""

    def __init__(self, direction: Direction, say: Callable[[str], None]) -> None:
        options = {
            **only_for(direction.source.options, BATCH),
            "kafka.bootstrap.servers": direction.source.bootstrap,
            "subscribePattern": direction.selection.pattern,
        }
        self._view = ClusterView(parse(options, BATCH))
        self._say = say
        self._checkpoint: Checkpoint | None = None
        self._reported: set[Loss] = set()

    @contextmanager
    def watching(self, batch: DataFrame, batch_id: int) -> Iterator[None]:
        """Report data loss before and after a batch is written."""
        begin = self._begin(batch, batch_id)
        self._report(begin, "skipped: {}")
        yield
        self._report(begin, "while they were being mirrored, so that some may be missing: {}")

    def close(self) -> None:
        self._view.close()

    def _begin(self, batch: DataFrame, batch_id: int) -> Offset:
        """Return the end of the previous batch; the first batch starts where logs start."""
        if batch_id == 0:
            return Offset({})
        query = query_id_of(batch.sparkSession)
        if self._checkpoint is None or self._checkpoint.query != query:
            self._checkpoint = Checkpoint(batch.sparkSession, query)
        return Offset.parse(self._checkpoint.offsets(batch_id - 1)[0])

    def _report(self, begin: Offset, template: str) -> None:
        if not begin.positions:
            return
        logs = refresh_logs(self._view, begin)
        for loss in find_losses(begin, logs, self._view.ids):
            if loss not in self._reported:
                self._reported.add(loss)
                self._say(template.format(loss))
