"""``spark.readStream.format("millstream")``: micro-batches from where the last one ended.

The reader lives in a Python process beside the driver for as long as the query runs. Spark calls
``latestOffset`` repeatedly. After a batch it answers at once. If the previous call found nothing
new either, it waits at the brokers for the first record (``pollTimeoutMs``). So an idle query
neither spins nor sleeps past a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.core.types import TopicPartition
from millstream.spark.options import STREAM, Options, parse
from millstream.spark.source.batch_reader import read_task
from millstream.spark.source.cluster_view import REQUEST_TIMEOUT_S, ClusterView
from millstream.spark.source.data_loss import one_line_errors, warn_without_effect
from millstream.spark.source.group_progress import GroupProgress
from millstream.spark.source.offsets import (
    LogState,
    Loss,
    Offset,
    next_offset,
    pending_offsets,
    ranges_between,
)
from millstream.spark.source.planning import (
    Columns,
    check_columns,
    check_subscription,
    confirmed_losses,
    handle_losses,
    make_tasks,
    refresh_logs,
    starting_positions,
)

# A query that calls again this soon after an answer without news is idle.
SPINNING_S = 0.1
FLUSH_S = 2.0
FRESH_S = 1.0


class RefusedReader(DataSourceStreamReader):
    """Raises on its first use why there is no reader: Spark 4.3 loses errors of the constructor."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        with one_line_errors():
            raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver it lives as long as the query; ``read`` runs on executors, on a copy."""

    def __init__(self, texts: Mapping[str, str], schema: StructType) -> None:
        with one_line_errors():
            self._options = parse(texts, STREAM)
            check_subscription(self._options)
            warn_without_effect(texts, STREAM)
            self._columns = check_columns(schema)
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_columns": self._columns, "_driver": None}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        with one_line_errors():
            return self.driver.initial().render()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the two limits, because Spark takes only one.

        Both apply unless the engine asks for everything.
        """
        if self._options.is_set("maxOffsetsPerTrigger"):
            return ReadMaxRows(self._options["maxOffsetsPerTrigger"])
        if self._options.is_set("minOffsetsPerTrigger"):
            return ReadMinRows(self._options["minOffsetsPerTrigger"])
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with one_line_errors():
            self.driver.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_line_errors():
            return self.driver.latest(
                Offset.parse(start), isinstance(limit, ReadAllAvailable)
            ).render()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self.driver.newest
        return newest.render() if newest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with one_line_errors():
            return self.driver.plan(Offset.parse(start), Offset.parse(end), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.driver.finished(Offset.parse(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()


class Driver:
    """The state of the reader while the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._view = ClusterView(options)
        self._group = GroupProgress(options.connection(REQUEST_TIMEOUT_S), group_of(options))
        self._target: dict[TopicPartition, int] | None = None
        # When the last answer without news was given.
        self._idle_since_s: float | None = None
        # Since when minOffsetsPerTrigger holds records back.
        self._held_since_s: float | None = None
        self._seen: tuple[float, Mapping[TopicPartition, LogState]] = (float("-inf"), {})
        self._reported: set[Loss] = set()
        self.newest: Offset | None = None

    def initial(self) -> Offset:
        self._view.refresh()
        positions = starting_positions(self._view, self._options, default="latest")
        # These offsets may be any numbers.
        if isinstance(self._options["startingOffsets"], Mapping):
            logs = self._view.logs()
            ahead = [
                Loss(partition, "ahead", position, logs[partition].latest)
                for partition, position in positions.items()
                if position > logs[partition].latest
            ]
            handle_losses(ahead, self._options, self._reported)
        return Offset(positions, self._view.ids)

    def fix_target(self) -> None:
        """For Trigger.AvailableNow: later records and later partitions are not read."""
        self._view.refresh()
        self._target = {partition: log.latest for partition, log in self._view.logs().items()}

    # ---------------------------------------------------------------- the next batch

    def latest(self, start: Offset, everything: bool) -> Offset:
        # Everything before ``start`` is done, even after the last batch, for which ``commit`` is
        # never called.
        self._commit_progress(start)
        end = self._next(start, everything)
        if end == start and self._target is None and self._is_spinning():
            # Wait at the ends of the logs, not at the start: records that are held back are not
            # new.
            self._view.wait_for_records(self._ends(), self._options["pollTimeoutMs"])
            end = self._next(start, everything)
        self._idle_since_s = time.monotonic() if end == start else None
        if end == start and self._target is not None:
            # The query ends now, and its process with it.
            self._group.flush(FLUSH_S)
        return end

    def _ends(self) -> Mapping[TopicPartition, int]:
        return self.newest.positions if self.newest is not None else {}

    def _is_spinning(self) -> bool:
        return self._idle_since_s is not None and time.monotonic() - self._idle_since_s < SPINNING_S

    def _next(self, start: Offset, everything: bool) -> Offset:
        losses, logs = confirmed_losses(self._view, start, refresh_logs(self._view, start))
        handle_losses(losses, self._options, self._reported)
        self._seen = time.monotonic(), logs
        self.newest = Offset(
            {partition: log.latest for partition, log in logs.items()}, self._view.ids
        )
        logs = self._up_to_target(logs)
        if not losses and not everything and self._is_held_back(start, logs):
            return start
        self._held_since_s = None
        limit = None if everything else self._options["maxOffsetsPerTrigger"]
        return next_offset(start, logs, self._view.ids, losses, max_offsets=limit)

    def _up_to_target(
        self, logs: Mapping[TopicPartition, LogState]
    ) -> Mapping[TopicPartition, LogState]:
        if self._target is None:
            return logs
        return {
            partition: LogState(
                log.earliest, max(log.earliest, min(log.latest, self._target[partition]))
            )
            for partition, log in logs.items()
            if partition in self._target
        }

    def _is_held_back(self, start: Offset, logs: Mapping[TopicPartition, LogState]) -> bool:
        """Return whether the pending records wait for more.

        They are fewer than minOffsetsPerTrigger, and none waits longer than maxTriggerDelay.
        """
        minimum = self._options["minOffsetsPerTrigger"]
        if minimum is None or self._target is not None:
            return False
        pending = pending_offsets(start, logs)
        if pending == 0 or pending >= minimum:
            return False
        if self._held_since_s is None:
            self._held_since_s = time.monotonic()
        return bool(time.monotonic() - self._held_since_s < self._options["maxTriggerDelay"] / 1000)

    # ---------------------------------------------------------------- a batch

    def plan(self, start: Offset, end: Offset, columns: Columns) -> list[InputPartition]:
        """Return the tasks of a batch, new or repeated after a restart."""
        ranges = ranges_between(start, end)
        if not ranges:
            return []
        begins = Offset({span.partition: span.start for span in ranges}, end.ids)
        losses, logs = confirmed_losses(self._view, begins, self._fresh_logs(begins))
        handle_losses(losses, self._options, self._reported)
        unreadable = {loss.partition for loss in losses if loss.kind != "deleted"}
        readable = [
            span._replace(start=min(max(span.start, logs[span.partition].earliest), span.end))
            for span in ranges
            if span.partition not in unreadable
        ]
        return list(make_tasks(self._view, self._options, readable, columns))

    def _fresh_logs(self, begins: Offset) -> Mapping[TopicPartition, LogState]:
        """Return the logs as just seen for this batch, or look them up for a repeated batch.

        Tasks handle later changes.
        """
        seen_s, logs = self._seen
        if time.monotonic() - seen_s < FRESH_S and all(
            partition in logs for partition in begins.positions
        ):
            return logs
        return refresh_logs(self._view, begins)

    def finished(self, end: Offset) -> None:
        # A batch has run, so the query is not idle.
        self._idle_since_s = None
        self._commit_progress(end)

    def _commit_progress(self, offset: Offset) -> None:
        ids = {info.partition.topic: info.topic_id for info in self._view.partitions.values()}
        known = {
            partition: position
            for partition, position in offset.positions.items()
            if partition.topic in ids or not ids
        }
        if known and ids:
            self._group.offer(known, ids)

    def close(self) -> None:
        self._group.flush(FLUSH_S)
        self._group.close()
        self._view.close()


def group_of(options: Options) -> str:
    """Return groupId, else the name of the query if it is set, else a name made of the topics.

    Spark does not tell a source which query reads it, so the name has to be an option:
    ``.option("queryName", ...)``.
    """
    if options.is_set("groupId"):
        return str(options["groupId"])
    if options.is_set("queryName"):
        return str(options["queryName"])
    if options.is_set("subscribePattern"):
        return f"spark-{options['subscribePattern']}"
    topics = options["assign"] if options.is_set("assign") else options["subscribe"]
    return "spark-" + ",".join(sorted(topics))
