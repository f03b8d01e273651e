"""``spark.readStream.format("millstream")``: micro-batches from where the last one ended.

Lives in a Python process beside the driver for as long as the query runs. ``latestOffset`` is asked again and again: after a batch it
answers at once, but when there was nothing new the time before either, it waits at the brokers for the first record to come
(``pollTimeoutMs``), so that an idle query neither spins nor sleeps past a record.
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
    ranges_between,
    waiting,
)
from millstream.spark.source.planning import (
    Columns,
    check_columns,
    check_subscription,
    confirmed_losses,
    handle_losses,
    look,
    make_tasks,
    starting_positions,
)

SPINNING_S = (
    0.1  # asked again so soon after an answer without news: the query is idle, and does nothing but ask
)
FLUSH_S = 2.0
FRESH_S = 1.0


class RefusedReader(DataSourceStreamReader):
    """Says why there is no reader when it is asked for the first time: Spark 4.3 loses what is raised while one is made."""

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
    """The driver's side is an object that lives as long as the query; ``read`` runs on executors, on a copy."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        with one_line_errors():
            self._options = parse(given, STREAM)
            check_subscription(self._options)
            warn_without_effect(given, STREAM)
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
        """One of the two limits, as more cannot be said; both hold whenever the engine does not ask for everything."""
        if self._options.given("maxOffsetsPerTrigger"):
            return ReadMaxRows(self._options["maxOffsetsPerTrigger"])
        if self._options.given("minOffsetsPerTrigger"):
            return ReadMinRows(self._options["minOffsetsPerTrigger"])
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with one_line_errors():
            self.driver.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_line_errors():
            return self.driver.latest(Offset.parse(start), isinstance(limit, ReadAllAvailable)).render()

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
    """What the reader knows while the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._view = ClusterView(options)
        self._group = GroupProgress(options.connection(REQUEST_TIMEOUT_S), group_of(options))
        self._target: dict[TopicPartition, int] | None = None
        self._idle_since_s: float | None = None  # when the last answer without news was given
        self._held_since_s: float | None = None  # since when minOffsetsPerTrigger holds records back
        self._seen: tuple[float, Mapping[TopicPartition, LogState]] = (float("-inf"), {})
        self._told: set[Loss] = set()
        self.newest: Offset | None = None

    def initial(self) -> Offset:
        self._view.refresh()
        positions = starting_positions(self._view, self._options, default="latest")
        if isinstance(self._options["startingOffsets"], Mapping):  # which may be any numbers
            logs = self._view.logs()
            ahead = [
                Loss(one, "ahead", at, logs[one].latest)
                for one, at in positions.items()
                if at > logs[one].latest
            ]
            handle_losses(ahead, self._options, self._told)
        return Offset(positions, self._view.ids)

    def fix_target(self) -> None:
        """For Trigger.AvailableNow: what comes later is not read, nor are partitions that come later."""
        self._view.refresh()
        self._target = {partition: log.latest for partition, log in self._view.logs().items()}

    # ---------------------------------------------------------------- the next batch

    def latest(self, start: Offset, everything: bool) -> Offset:
        # Whatever is before ``start`` is done, also after the last batch, for which ``commit`` is never called.
        self._show_progress(start)
        end = self._next(start, everything)
        if end == start and self._target is None and self._is_spinning():
            # At the ends of the logs, not at the start: records that are held back are no news.
            self._view.wait_for_records(self._ends(), self._options["pollTimeoutMs"])
            end = self._next(start, everything)
        self._idle_since_s = time.monotonic() if end == start else None
        if end == start and self._target is not None:
            self._group.flush(FLUSH_S)  # the query ends now, and its process with it
        return end

    def _ends(self) -> Mapping[TopicPartition, int]:
        return self.newest.positions if self.newest is not None else {}

    def _is_spinning(self) -> bool:
        return self._idle_since_s is not None and time.monotonic() - self._idle_since_s < SPINNING_S

    def _next(self, start: Offset, everything: bool) -> Offset:
        losses, logs = confirmed_losses(self._view, start, look(self._view, start))
        handle_losses(losses, self._options, self._told)
        self._seen = time.monotonic(), logs
        self.newest = Offset({one: log.latest for one, log in logs.items()}, self._view.ids)
        logs = self._up_to_target(logs)
        if not losses and not everything and self._is_held_back(start, logs):
            return start
        self._held_since_s = None
        limit = None if everything else self._options["maxOffsetsPerTrigger"]
        return next_offset(start, logs, self._view.ids, losses, max_offsets=limit)

    def _up_to_target(self, logs: Mapping[TopicPartition, LogState]) -> Mapping[TopicPartition, LogState]:
        if self._target is None:
            return logs
        return {
            partition: LogState(log.earliest, max(log.earliest, min(log.latest, self._target[partition])))
            for partition, log in logs.items()
            if partition in self._target
        }

    def _is_held_back(self, start: Offset, logs: Mapping[TopicPartition, LogState]) -> bool:
        """Fewer records than minOffsetsPerTrigger, and none of them waits for longer than maxTriggerDelay."""
        wanted = self._options["minOffsetsPerTrigger"]
        if wanted is None or self._target is not None:
            return False
        there = waiting(start, logs)
        if there == 0 or there >= wanted:
            return False
        if self._held_since_s is None:
            self._held_since_s = time.monotonic()
        return bool(time.monotonic() - self._held_since_s < self._options["maxTriggerDelay"] / 1000)

    # ---------------------------------------------------------------- a batch

    def plan(self, start: Offset, end: Offset, columns: Columns) -> list[InputPartition]:
        """The tasks of a batch, be it new or one that is repeated after a restart."""
        ranges = ranges_between(start, end)
        if not ranges:
            return []
        begins = Offset({one.partition: one.start for one in ranges}, end.ids)
        losses, logs = confirmed_losses(self._view, begins, self._fresh_logs(begins))
        handle_losses(losses, self._options, self._told)
        unreadable = {loss.partition for loss in losses if loss.kind != "deleted"}
        left = [
            one._replace(start=min(max(one.start, logs[one.partition].earliest), one.end))
            for one in ranges
            if one.partition not in unreadable
        ]
        return list(make_tasks(self._view, self._options, left, columns))

    def _fresh_logs(self, begins: Offset) -> Mapping[TopicPartition, LogState]:
        """As just seen for this batch; asked for again where a batch is repeated. Tasks find out what happens after."""
        seen_s, logs = self._seen
        if time.monotonic() - seen_s < FRESH_S and all(one in logs for one in begins.positions):
            return logs
        return look(self._view, begins)

    def finished(self, end: Offset) -> None:
        self._idle_since_s = None  # a batch has run: the query is not idle
        self._show_progress(end)

    def _show_progress(self, offset: Offset) -> None:
        ids = {place.partition.topic: place.topic_id for place in self._view.places.values()}
        known = {one: at for one, at in offset.positions.items() if one.topic in ids or not ids}
        if known and ids:
            self._group.offer(known, ids)

    def close(self) -> None:
        self._group.flush(FLUSH_S)
        self._group.close()
        self._view.close()


def group_of(options: Options) -> str:
    """groupId, else the name of the query where it is given, else a name made of what is read.

    Spark tells a source nothing about the query that reads it, so the name has to be given: ``.option("queryName", ...)``.
    """
    if options.given("groupId"):
        return str(options["groupId"])
    if options.given("queryName"):
        return str(options["queryName"])
    if options.given("subscribePattern"):
        return f"spark-{options['subscribePattern']}"
    topics = options["assign"] if options.given("assign") else options["subscribe"]
    return "spark-" + ",".join(sorted(topics))
