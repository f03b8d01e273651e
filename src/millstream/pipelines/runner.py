"""Runs a pipeline: one Spark session, a query for each flow, and a clean shutdown.

``Run`` connects the parts in ``pipelines/run``: ``plan`` has the queries that should run,
``supervisor`` decides when each starts and stops, and ``queries`` starts and watches them in Spark.
Everything happens in the thread that called ``run``; Spark writes the batches in its own threads
(``flow_writer``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.pipelines.declare import Flow, Pipeline
from millstream.pipelines.frames.builder import Frames
from millstream.pipelines.run.failure_log import log_failure
from millstream.pipelines.run.failures import explain
from millstream.pipelines.run.jvm_failures import fault_of
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.locks import lock_pipeline
from millstream.pipelines.run.options import Emit, RunOptions
from millstream.pipelines.run.plan import RunPlan
from millstream.pipelines.run.preparation import Preparation, preflight
from millstream.pipelines.run.progress import Figures, FlowProgress
from millstream.pipelines.run.queries import POLL_S, Queries, now_ms
from millstream.pipelines.run.session import SESSION_CONF, pipeline_session
from millstream.pipelines.run.start_offsets import StartOffsets
from millstream.pipelines.run.status_file import StatusFile
from millstream.pipelines.run.supervisor import (
    ENDED,
    Instruction,
    Report,
    Restart,
    Start,
    State,
    Stop,
    Supervisor,
)
from millstream.pipelines.run.writers import WriterFactory
from millstream.spark.sink.checkpoint import check_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SESSION_CONF", "Run", "RunOptions", "preflight"]


@dataclass
class Run:
    """One run of a pipeline.

    ``emit`` gets events as they happen; ``figures`` returns the progress of every flow.
    """

    pipeline: Pipeline
    spark: SparkSession
    options: RunOptions = field(default_factory=RunOptions)
    emit: Emit = lambda event: None
    stop_requested: bool = False

    def __post_init__(self) -> None:
        self.spark = pipeline_session(self.spark, self.pipeline, self.options.conf)
        self.layout = Layout.of(self.pipeline, self.options.checkpoint)
        self.plan = RunPlan(self.pipeline, self.options, self.layout)
        self.frames = self._frames()
        self._expect_queries()
        self.hurry = False
        self._on_tick: Callable[[], None] = lambda: None
        self._starts = StartOffsets(self.layout)
        self._writers = WriterFactory(self.layout, self.options)
        self._preparation = Preparation(self.layout, self._starts, self._writers, self.emit)
        conf = {**self.pipeline.conf, **self.options.conf}
        self._queries = Queries(self.spark, conf, self.options, self)
        self._status = StatusFile(self.layout, self.options, now_ms())

    def _frames(self) -> Frames:
        return Frames(self.spark, self.pipeline, owners=self.plan.dead_letters.owned)

    def _expect_queries(self) -> None:
        """Set the queries that will run. Nothing has been started."""
        self.queries: dict[str, Flow] = {} if self.options.independent else dict(self.plan.queries)
        self.supervisor = Supervisor.of(
            [self.plan.flow_state(flow) for flow in self.queries.values()],
            independent=self.options.independent,
            restarts_ms=self.options.restarts_ms,
        )
        self.progress = {name: FlowProgress(name) for name in self.queries}

    # ---------------------------------------------------------------- for the caller

    @property
    def flows(self) -> list[Flow]:
        """The flows of the pipeline that run, without queries for dead letters."""
        return self.plan.flows

    def stop(self) -> None:
        """Request the end, for instance from a signal handler.

        The second call stops the run without waiting for batches.
        """
        self.hurry = self.stop_requested
        self.stop_requested = True

    def change(self, pipeline: Pipeline) -> None:
        """Run these flows from now on, for independent flows.

        New flows are started, missing ones are stopped, changed ones are restarted. The others
        continue. Called from the function that is passed to ``run``.
        """
        self.plan = RunPlan(pipeline, self.options, self.layout, self.plan, self.queries)
        self.pipeline = pipeline
        self.frames = self._frames()

    def figures(self) -> list[Figures]:
        now = now_ms()
        return [
            self.progress[flow.name].figures(
                str(flow.state), now, failures=flow.failures, reason=flow.reason
            )
            for flow in self.supervisor.flows.values()
        ]

    @property
    def restart(self) -> Restart | None:
        """The restart of the driver's JVM that this run ended with.

        The caller should then run the pipeline again in a new JVM.
        """
        return None if self.stop_requested else self.supervisor.restart

    @property
    def state(self) -> str:
        if self.restart is not None:
            return "restarting"
        if self.supervisor.failed:
            return "failed"
        if not self.supervisor.ended:
            return "stopping" if self.supervisor.stopping else "running"
        stopped = any(flow.state is State.STOPPED for flow in self.supervisor.flows.values())
        return "stopped" if stopped else "done"

    def run(self, each: Callable[[], None] = lambda: None) -> bool:
        """Run until everything has ended, and return whether no flow failed.

        ``each`` is called several times a second.
        """
        lock = lock_pipeline(self.layout, self.pipeline.name)
        try:
            self._on_tick = each
            self._prepare()
            self._loop()
        finally:
            self._queries.close()
            self._write_status(ended=True)
            lock.release()
        return not self.supervisor.failed

    # ---------------------------------------------------------------- the loop

    def _prepare(self) -> None:
        if self.pipeline.delivery == "exactly-once":
            check_session(self.spark)
        if not self.options.independent:
            self._preparation.prepare_all(self.frames, self.plan, self._expect_queries)
        names = [flow.name for flow in self.flows]
        self.emit({"event": "started", "pipeline": self.pipeline.name, "flows": names})

    def _loop(self) -> None:
        self._adjust()
        while not self._is_over():
            if self.stop_requested and not self.supervisor.stopping:
                self._carry_out(self.supervisor.stop())
            self._carry_out(self.supervisor.tick(now_ms()))
            self._queries.poll()
            self.tick()
            self._adjust()
            time.sleep(POLL_S)

    def _is_over(self) -> bool:
        stays = (
            self.options.independent and not self.options.once and self.supervisor.restart is None
        )
        return self.supervisor.ended and (self.stop_requested or not stays)

    def _adjust(self) -> None:
        """Stop queries that are not in the plan, and add those that are missing."""
        for name, flow in list(self.supervisor.flows.items()):
            if self.queries[name] is self.plan.queries.get(name):
                continue
            self._carry_out(self.supervisor.stop_flow(name))
            if flow.state in ENDED:
                del self.supervisor.flows[name], self.queries[name], self.progress[name]
        for name, query in self.plan.queries.items():
            if name not in self.supervisor.flows and not self.supervisor.stopping:
                self._add(query)

    def _add(self, flow: Flow) -> None:
        self.queries[flow.name] = flow
        self.progress[flow.name] = FlowProgress(flow.name)
        self.supervisor.flows[flow.name] = self.plan.flow_state(flow)
        try:
            self._preparation.prepare_one(self.frames, self.plan, flow)
        except Exception as error:
            self.failed(flow.name, error)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                # After a stop request nothing new is started.
                if not self.stop_requested:
                    self._start(self.queries[instruction.flow])
            elif isinstance(instruction, Stop):
                self._queries.request_stop(instruction.flow)
            elif isinstance(instruction, Restart):
                self.emit(
                    {
                        "event": "restart",
                        "reason": instruction.reason,
                        "restart": instruction.number,
                        "in_ms": instruction.in_ms,
                    }
                )
            else:
                self._report(instruction)

    def _start(self, flow: Flow) -> None:
        progress = self.progress[flow.name]
        progress.begin(now_ms())
        try:
            self._starts.apply(self.frames, flow)
            writer = self._writers.writer(self.frames, flow)
        except Exception as error:
            self.failed(flow.name, error)
            return
        if self._queries.start(self.frames, flow, writer, progress):
            self.emit({"event": "flow", "flow": flow.name, "state": "running"})

    def _report(self, message: Report) -> None:
        event: dict[str, Any] = {"event": "flow", "flow": message.flow, "state": message.event}
        if message.reason:
            event["reason"] = message.reason
        if message.retry_in_ms is not None:
            failures = self.supervisor.flows[message.flow].failures
            event |= {"retry_in_ms": message.retry_in_ms, "failures": failures}
        self.emit(event)

    def _write_status(self, *, ended: bool) -> None:
        now = now_ms()
        if not ended and not self._status.is_due(now):
            return
        state = self.state
        if ended and state in ("running", "stopping"):
            state = "stopped"
        self._status.write(self.pipeline, self.frames.file, state, self.figures(), now)

    # ---------------------------------------------------------------- ``QueryHost``

    def tick(self) -> None:
        self._write_status(ended=False)
        self._on_tick()

    def batch_done(self, flow: str, report: Mapping[str, Any]) -> None:
        self.supervisor.batch_done(flow)
        self._status.batch_done(flow)
        self.emit(
            {
                "event": "batch",
                "flow": flow,
                "batch": report["batchId"],
                "input_rows": report["numInputRows"],
                "batch_ms": report["durationMs"].get("triggerExecution"),
            }
        )

    def finished(self, flow: str) -> None:
        self._carry_out(self.supervisor.finished(flow, now_ms()))

    def failed(self, flow: str, error: BaseException) -> None:
        log_failure(self.layout.failures, flow, error)
        failure = explain(error, self.frames.file)
        self._carry_out(
            self.supervisor.query_failed(
                flow,
                str(failure),
                permanent=failure.permanent,
                now_ms=now_ms(),
                patient=failure.patient,
                fault=fault_of(error),
            )
        )
