"""Run a live query while a user watches: show its rows batch by batch, then stop and clean up."""

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
"""Maximum rows of a batch that are collected for a screen."""

ATTEMPTS = 5
"""Attempts for a source that does not start in time on a busy machine."""

Print = Callable[[Iterable[Any]], None]


class Live:
    """Runs a query. Batches come in a thread of Spark, which calls ``show``."""

    def __init__(self, rows: LiveRows, bootstrap: str, checkpoint: str | None = None) -> None:
        self.rows = rows
        self.left = rows.limit
        """Number of rows still to show; None for no limit."""
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._error: BaseException | None = None

    def lines(self, show: Print, *, json: bool, stopped: Callable[[], bool]) -> None:
        """Show every row, as cells or as JSON objects, until stopped or up to the limit."""

        def each(batch: DataFrame) -> None:
            frame = as_objects(batch) if json else as_cells(batch)
            rows = [row[0] if json else tuple(row) for row in self._limited(frame)]
            show(rows)
            self._count(len(rows))

        self._run(each, self.rows.mode, stopped)

    def screen(
        self, show: Callable[[list[Cells], bool], None], *, stopped: Callable[[], bool]
    ) -> None:
        """Show the result after each batch.

        ``show`` gets whether these are all rows or only new ones. With a limit, rows are shown as
        they come, so that they are counted in the same way.
        """
        mode = self.rows.whole_mode if self.left is None else self.rows.mode
        whole = mode == "complete"

        def each(batch: DataFrame) -> None:
            frame = as_cells(batch)
            if self.left is not None:
                rows = self._limited(frame)
            else:
                rows = frame.limit(SCREEN_ROWS).collect() if whole else frame.tail(SCREEN_ROWS)
            show([tuple(row) for row in rows], whole)
            self._count(len(rows))

        self._run(each, mode, stopped)

    def _limited(self, frame: DataFrame) -> list[Row]:
        """Return all rows, or as many as are left to show."""
        return (frame if self.left is None else frame.limit(self.left)).collect()

    def _count(self, rows: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - rows)

    def _run(
        self, each: Callable[[DataFrame], None], mode: str, stopped: Callable[[], bool]
    ) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            if stopped() or self.left == 0:
                return
            # Showing a few rows would compute only a few partitions, but each has state to commit:
            # compute all first.
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
            writer = self.rows.frame.writeStream.outputMode(mode).option(
                "checkpointLocation", directory
            )
            try:
                for tries_left in reversed(range(ATTEMPTS)):
                    error = self._wait_for_end(writer.foreachBatch(write).start(), stopped)
                    if error is None:
                        return
                    if not tries_left or SLOW_START not in str(error):
                        raise _sql_error(error, self.rows.query)
            finally:
                self._delete_groups()

    def _wait_for_end(
        self, query: StreamingQuery, stopped: Callable[[], bool]
    ) -> BaseException | None:
        """Wait for the end of the query; return its error, if any."""
        try:
            while query.isActive and not stopped() and self.left != 0:
                time.sleep(LOOK_EVERY_S)
            return None if stopped() or self.left == 0 else self._error or query.exception()
        finally:
            query.stop()

    def _delete_groups(self) -> None:
        """Delete the consumer groups of the query: it is never resumed."""
        try:
            with Admin(self._bootstrap) as admin:
                admin.groups.delete(*self.rows.groups)
        except ClientError:
            # It never committed, or the broker is down: groups without members expire.
            return


def _sql_error(error: BaseException, query: str) -> SqlError:
    if isinstance(error, ClientError):
        return SqlError(error.message, hint=error.hint)
    return from_spark(error, query)
