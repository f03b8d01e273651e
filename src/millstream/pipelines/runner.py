"""Runs a pipeline: one Spark session, a query for each flow, figures for whoever looks, a clean end.

``supervisor`` decides, this carries out. Everything happens in the thread that called ``run``; the batches themselves are written in
threads of Spark's (``flow_writer``).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.client.admin.client import Admin
from millstream.pipelines.dead_letters.batches import BatchLetters
from millstream.pipelines.dead_letters.ownership import (
    LetterPlan,
    letter_flows,
    plan_letters,
    writer_name,
)
from millstream.pipelines.dead_letters.queries import create_topic
from millstream.pipelines.dead_letters.refusals import (
    SUFFIX,
    LetterSink,
    Refusals,
    keyless_letters,
    letters_origin,
    letters_topic,
    needs_keys,
)
from millstream.pipelines.declare import Flow, Pipeline, Stream, Table
from millstream.pipelines.durations import setting_s
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.codec import encoded
from millstream.pipelines.frames import Frames
from millstream.pipelines.graph import Graph, build_graph, definition, with_upstream
from millstream.pipelines.run.failure_log import note_failure
from millstream.pipelines.run.failures import Failure, explain
from millstream.pipelines.run.flow_writer import FlowWriter, Stopped
from millstream.pipelines.run.jvm_failures import fault_of
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.locks import Held, Lock
from millstream.pipelines.run.progress import Figures, FlowProgress
from millstream.pipelines.run.start_offsets import StartOffsets
from millstream.pipelines.run.supervisor import (
    ENDED,
    FlowState,
    Instruction,
    Restart,
    Say,
    Start,
    State,
    Stop,
    Supervisor,
)
from millstream.pipelines.targets import TopicTarget
from millstream.pipelines.topics import compacted_topics, create_missing, missing_inputs
from millstream.spark.options import SINK, only_for
from millstream.spark.session import prepare
from millstream.spark.sink.checkpoint import check_session
from millstream.spark.sink.progress import Progress
from millstream.spark.sink.topic_sink import TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.1
STATUS_EVERY_MS = 1000
STOP_TIMEOUT_S = 30.0
COMMIT_WAIT_MS = 2000
INITIALIZING = "Initializing"
SOURCES_WAIT = "spark.millstream.source.start.timeout"
"""Setting: the longest time, in seconds, that a flow's start holds up the next one."""
SOURCES_WAIT_S = 120.0

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
EMPTY_RELATIONS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
SESSION_CONF: Mapping[str, object] = {
    "spark.millstream.log.level": "OFF",  # failures are told by explain(), in words
    STATE_PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
    # One store for a join instead of four, so less than half the files. Needs RocksDB. Spark notes
    # the version in the checkpoint, so joins that began with another one keep it.
    JOIN_FORMAT: 3,
    "spark.sql.streaming.numRecentProgressUpdates": 20,
    "spark.sql.streaming.stopTimeout": 60_000,
    "spark.sql.streaming.metricsEnabled": False,
    # It would leave a stream unread whose join partner is empty, and with it the rows that do not parse.
    "spark.sql.adaptive.optimizer.excludedRules": EMPTY_RELATIONS,
    # Spark's own choice, INT96, is read by others as nanoseconds, which end in the year 2262, and without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

NO_CONF: Mapping[str, str] = MappingProxyType({})

Emit = Callable[[dict[str, Any]], None]
Sink = TypeVar("Sink", bound=TopicSink)


@dataclass(frozen=True)
class RunOptions:
    """How to run."""

    once: bool = False
    only: Sequence[str] = ()
    checkpoint: str | None = None
    reset_progress: bool = False
    stop_timeout_s: float = STOP_TIMEOUT_S
    independent: bool = False
    """Flows that have nothing to do with each other: one that fails leaves the others alone, and without ``once`` the run stays
    even when there are none, since more may come (``Run.change``)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark that win over those of the pipeline."""
    restarts_ms: tuple[int, ...] | None = None
    """When the JVM of the driver was restarted for this pipeline before, if whoever runs it can do so again. ``Run.restart`` then
    asks for the next restart; without it an error of the JVM fails the flow."""


@dataclass
class Running:
    """A flow whose query has been started."""

    flow: Flow
    query: StreamingQuery
    writer: FlowWriter
    told_rows: int = 0
    told_letters: int = 0
    stop_at_ms: int | None = None
    idle_since_ms: int | None = None


@dataclass
class Run:
    """One run of a pipeline. ``emit`` gets events as they happen; ``figures`` says how every flow is doing."""

    pipeline: Pipeline
    spark: SparkSession
    options: RunOptions = field(default_factory=RunOptions)
    emit: Emit = lambda event: None
    stop_requested: bool = False

    def __post_init__(self) -> None:
        self.spark = own_session(self.spark, self.pipeline, self.options.conf)
        self.layout = Layout.of(self.pipeline, self.options.checkpoint)
        self.starts = StartOffsets(self.layout)
        self.queries: dict[str, Flow] = {}
        self._take(self.pipeline)
        self._expect_queries()
        self.started_ms = _now_ms()
        self._running: dict[str, Running] = {}
        self._status_ms = 0
        self._hurry = False
        self._compacted: set[str] = set()
        self._each: Callable[[], None] = lambda: None
        self._sources_wait_s = setting_s(
            {**self.pipeline.conf, **self.options.conf}, SOURCES_WAIT, SOURCES_WAIT_S
        )

    def _expect_queries(self) -> None:
        """Before anything has started: these queries there will be."""
        if not self.options.independent:
            self.queries = dict(self.wanted)
        self.supervisor = Supervisor.of(
            [self._state(flow) for flow in self.queries.values()],
            independent=self.options.independent,
            restarts_ms=self.options.restarts_ms,
        )
        self.progress = {name: FlowProgress(name) for name in self.queries}

    def _take(self, pipeline: Pipeline) -> None:
        """What this pipeline says is what is wanted."""
        self.graph: Graph = _no_flows() if self._may_be_empty(pipeline) else build_graph(pipeline)
        self.flows = self._chosen()
        self.letter_plan = self._plan_letters(pipeline)
        wanted = {flow.name: flow for flow in (*self.flows, *self.letters)}
        for name, flow in self.queries.items():
            if name in wanted and definition(self.pipeline, flow) == definition(pipeline, wanted[name]):
                wanted[name] = flow  # it goes on as it is
        self.wanted = wanted
        self.pipeline = pipeline
        self.frames = Frames(self.spark, pipeline, letters=self.letter_plan.owned)

    def _plan_letters(self, pipeline: Pipeline) -> LetterPlan:
        if self.options.independent:  # flows come and go, and an owner of dead letters would go with them
            return LetterPlan({}, letter_flows(pipeline, self.flows), {})
        return plan_letters(pipeline, self.flows, self.layout.letter_owners(), self.layout.has_started)

    @property
    def letters(self) -> list[Flow]:
        """The queries that write nothing but dead letters."""
        return self.letter_plan.queries

    def _chosen(self) -> list[Flow]:
        """The flows to run. Independent ones may be gone by now."""
        if not self.options.independent:
            return with_upstream(self.graph, self.options.only)
        return [flow for flow in self.graph.order if not self.options.only or flow.name in self.options.only]

    def _may_be_empty(self, pipeline: Pipeline) -> bool:
        return self.options.independent and not pipeline.flows

    def _state(self, flow: Flow) -> FlowState:
        return FlowState(
            flow.name,
            needs=self._needs(flow) if self.options.once else frozenset(),
            follows=self._follows(flow),
            on_failure=flow.on_failure or self.pipeline.on_failure,
            retries=self.pipeline.retries,
        )

    def _needs(self, flow: Flow) -> frozenset[str]:
        """The flows that write what a flow reads; dead letters of a topic that a flow writes come after that flow, too."""
        if flow.letters_of is None:
            return self.graph.upstream.get(flow.name, frozenset())
        writer = writer_name(self.pipeline, flow)
        return frozenset() if writer is None else frozenset({writer})

    def _follows(self, flow: Flow) -> frozenset[str]:
        """Return the flows that a new flow leaves the CPU to until they have had a batch.

        A flow that reads what others write has nothing to read before. Dead letters can wait for results.
        """
        if self.options.once or self.options.independent or self.layout.has_started(flow.name):
            return frozenset()
        if flow.letters_of is None:
            return self.graph.upstream.get(flow.name, frozenset())
        return frozenset(other.name for other in self.flows)

    # ---------------------------------------------------------------- from outside

    def stop(self) -> None:
        """Ask for the end, from a signal handler for instance; a second time: without waiting for batches."""
        self._hurry = self.stop_requested
        self.stop_requested = True

    def change(self, pipeline: Pipeline) -> None:
        """Run these flows from now on: new ones are started, those that are gone stopped, those that differ both; the others go on
        undisturbed. For independent flows, and from the function given to ``run``."""
        self._take(pipeline)

    def figures(self) -> list[Figures]:
        now_ms = _now_ms()
        return [
            self.progress[one.name].figures(str(one.state), now_ms, failures=one.failures, reason=one.reason)
            for one in self.supervisor.flows.values()
        ]

    def run(self, each: Callable[[], None] = lambda: None) -> bool:
        """Run until everything has ended; ``each`` is called several times a second. True if no flow failed."""
        lock = taken_lock(self.layout, self.pipeline.name)
        try:
            self._each = each
            self._prepare()
            self._loop()
        finally:
            self._end()
            lock.release()
        return not self.supervisor.failed

    # ---------------------------------------------------------------- the run

    def _prepare(self) -> None:
        if self.pipeline.delivery == "exactly-once":
            check_session(self.spark)
        if not self.options.independent:
            self._prepare_flows(self.flows, self.letters)
        self.emit(
            {"event": "started", "pipeline": self.pipeline.name, "flows": [one.name for one in self.flows]}
        )

    def _prepare_flows(self, flows: Sequence[Flow], letters: Sequence[Flow]) -> None:
        with Admin(self.pipeline.bootstrap) as admin:
            for problem in missing_inputs(self.pipeline, flows, admin.topics.names()):
                raise problem.error()
            upstream = [flow for flow in self.graph.order if flow.topics]
            for name in create_missing(admin, upstream):
                self.emit({"event": "created", "topic": name})
            if self.options.independent:
                self._begin([*flows, *letters], self.letter_plan)
            else:  # queries of dead letters are not certain yet
                self._begin(flows, self.letter_plan._replace(queries=[]))
            self.frames.look_at_sources(flows)
            for flow in flows:
                self.layout.check_inputs(self.pipeline, flow)
                self.frames.build(flow)
            if not self.options.independent:
                letters = self._settle_letters()
                self._begin(letters, self.letter_plan)
            for stream in self._streams_with_letters(flows, letters):
                assert stream.dead_letters is not None
                if create_topic(admin, stream.dead_letters, stream.topic):
                    self.emit({"event": "created", "topic": stream.dead_letters})
            keyed = [one.topic for flow in flows for one in flow.topics if one.key]
            self._compacted |= compacted_topics(admin, keyed)
            for flow in flows:
                refused = letters_topic(self.pipeline, flow, self._compacted)
                if refused and create_topic(admin, refused, letters_origin(self.pipeline, flow)):
                    self.emit({"event": "created", "topic": refused})
        self.layout.note_letter_owners({name: one.flow for name, one in self.letter_plan.owned.items()})
        for flow in letters:
            self.layout.check_inputs(self.pipeline, flow)
        for flow in (*flows, *letters):
            self.frames.build(flow)

    def _streams_with_letters(self, flows: Sequence[Flow], letters: Sequence[Flow]) -> list[Stream | Table]:
        names = {flow.name for flow in flows}
        owned = [one.stream for one in self.letter_plan.owned.values() if one.flow in names]
        return [*owned, *(flow.letters_of for flow in letters if flow.letters_of is not None)]

    def _begin(self, flows: Sequence[Flow], plan: LetterPlan) -> None:
        """Settle where these flows and queries begin to read, and those that write their dead letters."""
        self.starts.resolve(self.frames, plan, flows, self.flows)
        for flow in flows:
            self.starts.place(self.frames, flow)

    def _settle_letters(self) -> list[Flow]:
        """Decide who writes dead letters by what the plans of the flows read; return the queries for them."""
        owners, has_started = self.layout.letter_owners(), self.layout.has_started
        plan = plan_letters(self.pipeline, self.flows, owners, has_started, self.frames.reads)
        self.starts.hand_over(plan.left, letter_flows(self.pipeline, self.flows), self._committed)
        if plan.writers != self.letter_plan.writers:
            self.letter_plan = plan
            self.wanted = {flow.name: flow for flow in (*self.flows, *plan.queries)}
            self.frames.own(plan.owned)
            self._expect_queries()
        return self.letters

    def _committed(self, flow: str) -> tuple[Progress | None, Progress | None]:
        """The last batches that a flow committed to its topics and to its sink for dead letters."""
        sink_id = f"{self.pipeline.name}.{flow}"
        return self._fence(sink_id), self._fence(f"{sink_id}.{SUFFIX}")

    def _fence(self, sink_id: str) -> Progress | None:
        """Fence whoever still writes under this id, and return the last batch that was committed."""
        sink = self._topic_sink(TopicSink, sink_id)
        try:
            sink.open()
            return sink.progress
        finally:
            sink.close()

    def _adjust(self) -> None:
        """Bring what runs in line with what is wanted."""
        for name, state in list(self.supervisor.flows.items()):
            if self.queries[name] is self.wanted.get(name):
                continue
            self._carry_out(self.supervisor.stop_flow(name))
            if state.state in ENDED:
                del self.supervisor.flows[name], self.queries[name], self.progress[name]
        for name, flow in self.wanted.items():
            if name not in self.supervisor.flows and not self.supervisor.stopping:
                self._add(flow)

    def _add(self, flow: Flow) -> None:
        self.queries[flow.name] = flow
        self.progress[flow.name] = FlowProgress(flow.name)
        self.supervisor.flows[flow.name] = self._state(flow)
        letters = flow.letters_of is not None
        try:
            self._prepare_flows([] if letters else [flow], [flow] if letters else [])
        except Exception as error:
            self._failed(flow.name, error)

    @property
    def restart(self) -> Restart | None:
        """The restart of the driver's JVM that this run ended with: whoever started it is to run it again in a new JVM."""
        return None if self.stop_requested else self.supervisor.restart

    @property
    def _over(self) -> bool:
        stays = self.options.independent and not self.options.once and self.supervisor.restart is None
        return self.supervisor.ended and (self.stop_requested or not stays)

    def _loop(self) -> None:
        self._adjust()
        while not self._over:
            if self.stop_requested and not self.supervisor.stopping:
                self._carry_out(self.supervisor.stop())
            self._carry_out(self.supervisor.tick(_now_ms()))
            for one in list(self._running.values()):
                try:
                    self._look_at(one)
                except Exception as error:
                    self._unreachable(one, error)
            self._write_status(ended=False)
            self._each()
            self._adjust()
            time.sleep(POLL_S)

    def _end(self) -> None:
        """Nothing keeps running, however the run ended."""
        for one in list(self._running.values()):
            one.writer.stop_accepting()
            try:
                one.query.stop()
            except Exception as error:
                if fault_of(error) is None:
                    raise
            finally:
                one.writer.close()
        self._running.clear()
        self._write_status(ended=True)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Start):
                if not self.stop_requested:  # what comes to its end now is not started
                    self._start(self.queries[one.flow])
            elif isinstance(one, Stop):
                self._ask_to_stop(one.flow)
            elif isinstance(one, Restart):
                self.emit(
                    {"event": "restart", "reason": one.reason, "restart": one.number, "in_ms": one.in_ms}
                )
            else:
                self._say(one)

    def _start(self, flow: Flow) -> None:
        now_ms = _now_ms()
        self.progress[flow.name].begin(now_ms)
        try:
            self.starts.place(self.frames, flow)
            writer = self._writer(flow)
        except Exception as error:
            self._failed(flow.name, error)
            return
        try:
            writer.open()
            query = self._query(flow, writer)
        except Exception as error:
            writer.close()
            self._failed(flow.name, error)
            return
        self._running[flow.name] = Running(flow, query, writer)
        try:
            self._wait_for_sources(query)
        except Exception as error:
            self._unreachable(self._running[flow.name], error)
            return
        self.emit({"event": "flow", "flow": flow.name, "state": "running"})

    def _wait_for_sources(self, query: StreamingQuery) -> None:
        """Wait until a query has its sources: queries start one after the other.

        Each source is a Python process, and many that start together take longest (``spark/worker_start``). ``start()``
        returns while the status still is "Initializing StreamExecution"; "Initializing sources" follows.
        """
        self._wait_while(
            query, lambda: query.status["message"].startswith(INITIALIZING), self._sources_wait_s
        )

    def _wait_while(self, query: StreamingQuery, condition: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while query.isActive and condition() and time.monotonic() < deadline_s and not self.stop_requested:
            for one in self._running.values():
                self._take_progress(one)
            self._write_status(ended=False)
            self._each()
            time.sleep(POLL_S)

    def _query(self, flow: Flow, writer: FlowWriter) -> StreamingQuery:
        rows = self.frames.build(flow)
        stream = (
            rows.writeStream.queryName(f"{self.pipeline.name}.{flow.name}")
            .outputMode(flow.mode)
            .option("checkpointLocation", str(writer.directory))
            .foreachBatch(writer)
        )
        # A pool of its own: within one, jobs wait for each other, and a slow flow would hold up the rest.
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", flow.name)
        trigger_ms = flow.trigger_ms or self.pipeline.trigger_ms
        if self.options.once:
            stream = stream.trigger(availableNow=True)
        elif trigger_ms:
            stream = stream.trigger(processingTime=f"{trigger_ms} milliseconds")
        return stream.start()

    def _writer(self, flow: Flow) -> FlowWriter:
        sink_id = f"{self.pipeline.name}.{flow.name}"
        stores = [(one, one.sink(sink_id, reset_progress=self.options.reset_progress)) for one in flow.stores]

        frames = self.frames
        letters = letters_topic(self.pipeline, flow, self._compacted)

        def refuse(records: DataFrame, target: TopicTarget) -> DataFrame:
            if letters is None or not needs_keys(target, self._compacted):
                return records
            return keyless_letters(records, target, letters, self.pipeline.name, flow.name)

        def encode(batch: DataFrame) -> DataFrame:
            return encoded(batch, flow.topics, frames.schema_of(flow), flow.place, refuse)

        directory = self.layout.checkpoint(flow.name)
        frames.build(flow)  # so that it is known what it observes
        owned = frames.owned_by(flow)
        named = [one.topic for one in flow.topics] + ([] if letters is None else [letters])
        named += [one.letters for one in owned if one.letters not in named]
        topics = self._topic_sink(TopicSink, sink_id, topics=named) if flow.topics else None
        refusals = self._refusals(flow, sink_id, [] if flow.topics else [one.letters for one in owned])
        found = BatchLetters(self.pipeline.name, flow.name, owned)
        return FlowWriter(flow.name, directory, stores, topics, encode, refusals, found)

    def _refusals(self, flow: Flow, sink_id: str, letters: Sequence[str]) -> Refusals:
        """``letters``: the topics for dead letters of a flow that writes no other."""
        name = letters_topic(self.pipeline, flow) if any(one.refuses for one in flow.stores) else None
        topics = [*letters, *([name] if name is not None and name not in letters else [])]
        made = self._topic_sink(LetterSink, f"{sink_id}.{SUFFIX}", topics=topics) if topics else None
        return Refusals(self.pipeline.name, flow.name, name, made)

    def _topic_sink(
        self, kind: type[Sink], sink_id: str, topic: str | None = None, topics: Sequence[str] = ()
    ) -> Sink:
        return kind(
            self.pipeline.bootstrap,
            sink_id,
            topic=topic,
            topics=topics,
            delivery=self.pipeline.delivery,
            options=only_for({name: str(value) for name, value in self.pipeline.options.items()}, SINK),
            reset_progress=self.options.reset_progress,
        )

    # ---------------------------------------------------------------- watching

    def _look_at(self, one: Running) -> None:
        active = one.query.isActive  # asked first: what its last batch did is then taken in below
        self._take_progress(one)
        if not active:
            self._query_ended(one)
        elif one.stop_at_ms is not None and self._may_stop(one):
            one.query.stop()

    def _take_progress(self, one: Running) -> None:
        progress = self.progress[one.flow.name]
        if one.writer.rows > one.told_rows:
            progress.wrote(one.writer.rows - one.told_rows)
            one.told_rows = one.writer.rows
        if one.writer.dead_letters > one.told_letters:
            progress.dead_letters += one.writer.dead_letters - one.told_letters
            one.told_letters = one.writer.dead_letters
        for report in one.query.recentProgress:
            if progress.report(report, _now_ms()) and "addBatch" in report["durationMs"]:
                self.supervisor.batch_done(one.flow.name)
                self.emit(_batch_event(one.flow.name, report))

    def _query_ended(self, one: Running) -> None:
        name = one.flow.name
        del self._running[name]
        error = one.writer.error or one.query.exception()
        one.writer.close()
        if error is None or _is_stop(error):
            self._carry_out(self.supervisor.finished(name, _now_ms()))
        else:
            self._failed(name, error)

    def _unreachable(self, one: Running, error: Exception) -> None:
        """The JVM did not answer about a query. An error of any other kind is one of this program."""
        if fault_of(error) is None:
            raise error
        self._running.pop(one.flow.name, None)
        one.writer.close()
        self._failed(one.flow.name, error)

    def _failed(self, name: str, error: BaseException) -> None:
        note_failure(self.layout.failures, name, error)
        failure: Failure = explain(error, self.frames.file)
        self._carry_out(
            self.supervisor.failed_now(
                name,
                str(failure),
                permanent=failure.permanent,
                now_ms=_now_ms(),
                patient=failure.patient,
                fault=fault_of(error),
            )
        )

    def _ask_to_stop(self, name: str) -> None:
        one = self._running.get(name)
        if one is None:
            self._carry_out(self.supervisor.finished(name, _now_ms()))
            return
        one.writer.stop_accepting()
        one.stop_at_ms = _now_ms() + int(self.options.stop_timeout_s * 1000)

    def _may_stop(self, one: Running) -> bool:
        """When its batch is written and Spark has noted that, or the time is over."""
        now_ms = _now_ms()
        assert one.stop_at_ms is not None
        if self._hurry or now_ms >= one.stop_at_ms:
            return True
        if one.writer.busy:
            one.idle_since_ms = None
            return False
        one.idle_since_ms = one.idle_since_ms or now_ms
        last = one.writer.last_batch
        noted = last is None or (one.writer.directory / "commits" / str(last)).exists()
        return noted or now_ms - one.idle_since_ms > COMMIT_WAIT_MS

    # ---------------------------------------------------------------- telling

    def _say(self, one: Say) -> None:
        event: dict[str, Any] = {"event": "flow", "flow": one.flow, "state": one.event}
        if one.reason:
            event["reason"] = one.reason
        if one.retry_in_ms is not None:
            event |= {"retry_in_ms": one.retry_in_ms, "failures": self.supervisor.flows[one.flow].failures}
        self.emit(event)

    @property
    def state(self) -> str:
        if self.restart is not None:
            return "restarting"
        if self.supervisor.failed:
            return "failed"
        if not self.supervisor.ended:
            return "stopping" if self.supervisor.stopping else "running"
        stopped = any(one.state is State.STOPPED for one in self.supervisor.flows.values())
        return "stopped" if stopped else "done"

    def _write_status(self, *, ended: bool) -> None:
        now_ms = _now_ms()
        if not ended and now_ms - self._status_ms < STATUS_EVERY_MS:
            return
        self._status_ms = now_ms
        state = self.state
        self.layout.write_status(
            {
                "pipeline": self.pipeline.name,
                "file": self.frames.file,
                "bootstrap": self.pipeline.bootstrap,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "state": "stopped" if ended and state in ("running", "stopping") else state,
                "once": self.options.once,
                "restarts": len(self.options.restarts_ms or ()),
                "started_ms": self.started_ms,
                "updated_ms": now_ms,
                "flows": [one._asdict() for one in self.figures()],
            }
        )


def _no_flows() -> Graph:
    return Graph((), {})


def taken_lock(layout: Layout, name: str) -> Lock:
    """The lock of a pipeline; PipelineError when another run has it."""
    lock = Lock(layout.lock)
    try:
        lock.acquire()
    except Held as held:
        raise PipelineError(
            f"pipeline {name} runs already ({held.who})",
            hint="see it with `millstream pipeline status`, stop it first, or give --checkpoint another directory",
        ) from None
    return lock


def preflight(pipeline: Pipeline, options: RunOptions) -> None:
    """What can be told before Spark has started: names, a second run, brokers and topics that are not there."""
    flows = with_upstream(build_graph(pipeline), options.only)
    taken_lock(Layout.of(pipeline, options.checkpoint), pipeline.name).release()
    with Admin(pipeline.bootstrap) as admin:
        for problem in missing_inputs(pipeline, flows, admin.topics.names()):
            raise problem.error()


def own_session(spark: SparkSession, pipeline: Pipeline, conf: Mapping[str, str] = NO_CONF) -> SparkSession:
    """Settings and views of a pipeline are its own; the executors are shared with whoever made the session."""
    made = spark.newSession()
    chosen = {**SESSION_CONF, **pipeline.conf, **conf}
    if chosen[STATE_PROVIDER] != ROCKSDB and JOIN_FORMAT not in {**pipeline.conf, **conf}:
        del chosen[JOIN_FORMAT]
    for name, value in chosen.items():
        if name.startswith("spark.sql."):
            made.conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    prepare(made)
    return made


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, Stopped) or f"{Stopped.__module__}.{Stopped.__name__}" in str(error)


def _batch_event(flow: str, report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "event": "batch",
        "flow": flow,
        "batch": report["batchId"],
        "input_rows": report["numInputRows"],
        "batch_ms": report["durationMs"].get("triggerExecution"),
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
