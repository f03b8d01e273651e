"""A live query while somebody looks: started, its rows handed on batch by batch, stopped, and nothing left behind."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError
from millstream.pipelines.run.failures import SLOW_START
from millstream.sql.errors import SqlError, from_spark
from millstream.sql.results import Cells, LiveRows, as_cells, as_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S = 0.1
SCREEN_ROWS = 200
"""At most so many rows of a batch are brought to a screen."""

TRIES = 5
"""For a source that does not start in time, on a machine that does a lot besides."""

Print = Callable[[Iterable[Any]], None]


class Live:
    """Runs a query. Batches come in a thread of Spark's; ``show`` is called from there."""

    def __init__(self, rows: LiveRows, bootstrap: str, checkpoint: str | None = None) -> None:
        self.rows = rows
        self.left = rows.limit
        """How many rows are still to be shown; None for all that ever come."""
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._error: BaseException | None = None

    def lines(self, show: Print, *, json: bool, stopped: Callable[[], bool]) -> None:
        """Every row, as cells or as JSON objects, until told to stop or as many were shown as were asked for."""

        def each(batch: DataFrame) -> None:
            frame = as_objects(batch) if json else as_cells(batch)
            rows = [one[0] if json else tuple(one) for one in self._some(frame)]
            show(rows)
            self._count(len(rows))

        self._run(each, self.rows.mode, stopped)

    def screen(self, show: Callable[[list[Cells], bool], None], *, stopped: Callable[[], bool]) -> None:
        """The result as it is after each batch; ``show`` is told whether these are all rows or only new ones.

        With a limit rows are shown as they come, so that they are counted as they are elsewhere.
        """
        mode = self.rows.whole_mode if self.left is None else self.rows.mode
        whole = mode == "complete"

        def each(batch: DataFrame) -> None:
            frame = as_cells(batch)
            if self.left is not None:
                rows = self._some(frame)
            else:
                rows = frame.limit(SCREEN_ROWS).collect() if whole else frame.tail(SCREEN_ROWS)
            show([tuple(one) for one in rows], whole)
            self._count(len(rows))

        self._run(each, mode, stopped)

    def _some(self, frame: DataFrame) -> list[Row]:
        """All rows, or as many as are left to show."""
        return (frame if self.left is None else frame.limit(self.left)).collect()

    def _count(self, rows: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - rows)

    def _run(self, each: Callable[[DataFrame], None], mode: str, stopped: Callable[[], bool]) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            if stopped() or self.left == 0:
                return
            # A few rows are had from a few partitions, but each of them has a part of the state to commit: all are computed first.
            batch.persist()
            try:
                batch.count()
                each(batch)
            except BaseException as error:
                self._error = error
                raise
            finally:
                batch.unpersist()

        with tempfile.TemporaryDirectory(
            prefix="millstream-sql-", dir=self._checkpoint, ignore_cleanup_errors=True
        ) as directory:
            writer = self.rows.frame.writeStream.outputMode(mode).option("checkpointLocation", directory)
            try:
                for tries_left in reversed(range(TRIES)):
                    error = self._ended(writer.foreachBatch(write).start(), stopped)
                    if error is None:
                        return
                    if not tries_left or SLOW_START not in str(error):
                        raise _told(error, self.rows.query)
            finally:
                self._forget_groups()

    def _ended(self, query: StreamingQuery, stopped: Callable[[], bool]) -> BaseException | None:
        """Wait for the end; what went wrong, if something did."""
        try:
            while query.isActive and not stopped() and self.left != 0:
                time.sleep(LOOK_EVERY_S)
            return None if stopped() or self.left == 0 else self._error or query.exception()
        finally:
            query.stop()

    def _forget_groups(self) -> None:
        """Nobody will go on where this query was."""
        try:
            with Admin(self._bootstrap) as admin:
                admin.groups.delete(*self.rows.groups)
        except ClientError:
            return  # it never committed, or the broker is away: groups without members expire


def _told(error: BaseException, query: str) -> SqlError:
    if isinstance(error, ClientError):
        return SqlError(error.message, hint=error.hint)
    return from_spark(error, query)
