"""The Spark queries of a run: starts, watches and stops them.

Batches are written in threads of Spark (``flow_writer``). This code runs in the thread of the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from millstream.pipelines.declare import Flow
from millstream.pipelines.durations import setting_s
from millstream.pipelines.run.flow_writer import FlowWriter, Stopped
from millstream.pipelines.run.jvm_failures import fault_of
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.run.progress import FlowProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.pipelines.frames.builder import Frames

POLL_S = 0.1
COMMIT_WAIT_MS = 2000
INITIALIZING = "Initializing"
SOURCES_WAIT = "spark.millstream.source.start.timeout"
"""Setting: the maximum time, in seconds, that the start of a flow delays the next one."""
SOURCES_WAIT_S = 120.0


class QueryHost(Protocol):
    """The run that owns the queries. It decides what their results mean."""

    stop_requested: bool
    hurry: bool
    """Stop without waiting for batches."""

    def tick(self) -> None:
        """Report the status of the run, while a query starts."""

    def batch_done(self, flow: str, report: Mapping[str, Any]) -> None: ...

    def finished(self, flow: str) -> None: ...

    def failed(self, flow: str, error: BaseException) -> None: ...


@dataclass
class RunningFlow:
    """A flow whose query has been started."""

    flow: Flow
    query: StreamingQuery
    writer: FlowWriter
    progress: FlowProgress
    reported_rows: int = 0
    reported_dead_letters: int = 0
    stop_at_ms: int | None = None
    idle_since_ms: int | None = None

    def count_written(self) -> None:
        """Add the rows and dead letters since the last call to the progress of the flow."""
        if self.writer.rows > self.reported_rows:
            self.progress.add_rows(self.writer.rows - self.reported_rows)
            self.reported_rows = self.writer.rows
        if self.writer.dead_letters > self.reported_dead_letters:
            self.progress.dead_letters += self.writer.dead_letters - self.reported_dead_letters
            self.reported_dead_letters = self.writer.dead_letters

    def may_stop(self, now_ms: int) -> bool:
        """Return whether the batch is written and Spark has committed it, or time is up."""
        assert self.stop_at_ms is not None
        if now_ms >= self.stop_at_ms:
            return True
        if self.writer.busy:
            self.idle_since_ms = None
            return False
        self.idle_since_ms = self.idle_since_ms or now_ms
        last = self.writer.last_batch
        committed = last is None or (self.writer.directory / "commits" / str(last)).exists()
        return committed or now_ms - self.idle_since_ms > COMMIT_WAIT_MS


class Queries:
    """The running queries of one run."""

    def __init__(
        self, spark: SparkSession, conf: Mapping[str, str], options: RunOptions, host: QueryHost
    ) -> None:
        self._spark = spark
        self._options = options
        self._host = host
        self._sources_wait_s = setting_s(conf, SOURCES_WAIT, SOURCES_WAIT_S)
        self._running: dict[str, RunningFlow] = {}

    def start(self, frames: Frames, flow: Flow, writer: FlowWriter, progress: FlowProgress) -> bool:
        """Start the query of a flow and wait for its sources. Return False if it failed."""
        try:
            writer.open()
            query = self._query(frames, flow, writer)
        except Exception as error:
            writer.close()
            self._host.failed(flow.name, error)
            return False
        running = RunningFlow(flow, query, writer, progress)
        self._running[flow.name] = running
        try:
            self.wait_for_sources(query)
        except Exception as error:
            self._unreachable(running, error)
            return False
        return True

    def poll(self) -> None:
        """Report the progress of all queries, and the end of those that have ended."""
        for running in list(self._running.values()):
            try:
                self._poll(running)
            except Exception as error:
                self._unreachable(running, error)

    def request_stop(self, name: str) -> None:
        """Let a flow finish its batch, then stop its query."""
        running = self._running.get(name)
        if running is None:
            self._host.finished(name)
            return
        running.writer.stop_accepting()
        running.stop_at_ms = now_ms() + int(self._options.stop_timeout_s * 1000)

    def close(self) -> None:
        """Stop all queries now, however the run ended."""
        for running in list(self._running.values()):
            running.writer.stop_accepting()
            try:
                running.query.stop()
            except Exception as error:
                if fault_of(error) is None:
                    raise
            finally:
                running.writer.close()
        self._running.clear()

    def wait_for_sources(self, query: StreamingQuery) -> None:
        """Wait until a query has its sources, so that queries start one after the other.

        Each source is a Python process, and starting many together takes longest
        (``spark/worker_start``). ``start()`` returns while the status still is "Initializing
        StreamExecution", and "Initializing sources" follows.
        """
        deadline_s = time.monotonic() + self._sources_wait_s
        while (
            query.isActive
            and query.status["message"].startswith(INITIALIZING)
            and time.monotonic() < deadline_s
            and not self._host.stop_requested
        ):
            for running in self._running.values():
                self._report(running)
            self._host.tick()
            time.sleep(POLL_S)

    def _query(self, frames: Frames, flow: Flow, writer: FlowWriter) -> StreamingQuery:
        pipeline = frames.pipeline
        rows = frames.build(flow)
        stream = (
            rows.writeStream.queryName(f"{pipeline.name}.{flow.name}")
            .outputMode(flow.mode)
            .option("checkpointLocation", str(writer.directory))
            .foreachBatch(writer)
        )
        # A pool per flow: jobs of a pool wait for each other, so a slow flow would delay the rest.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", flow.name)
        trigger_ms = flow.trigger_ms or pipeline.trigger_ms
        if self._options.once:
            stream = stream.trigger(availableNow=True)
        elif trigger_ms:
            stream = stream.trigger(processingTime=f"{trigger_ms} milliseconds")
        return stream.start()

    def _poll(self, running: RunningFlow) -> None:
        # Read before the reports, so that the reports include the last batch of an ended query.
        active = running.query.isActive
        self._report(running)
        if not active:
            self._ended(running)
        elif running.stop_at_ms is not None and (self._host.hurry or running.may_stop(now_ms())):
            running.query.stop()

    def _report(self, running: RunningFlow) -> None:
        running.count_written()
        for report in running.query.recentProgress:
            if running.progress.report(report, now_ms()) and "addBatch" in report["durationMs"]:
                self._host.batch_done(running.flow.name, report)

    def _ended(self, running: RunningFlow) -> None:
        name = running.flow.name
        del self._running[name]
        error = running.writer.error or running.query.exception()
        running.writer.close()
        if error is None or _is_stop(error):
            self._host.finished(name)
        else:
            self._host.failed(name, error)

    def _unreachable(self, running: RunningFlow, error: Exception) -> None:
        """Fail a flow because the JVM did not answer. Raise any other error: it is a bug here."""
        if fault_of(error) is None:
            raise error
        self._running.pop(running.flow.name, None)
        running.writer.close()
        self._host.failed(running.flow.name, error)


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, Stopped) or f"{Stopped.__module__}.{Stopped.__name__}" in str(error)


def now_ms() -> int:
    return int(time.time() * 1000)
