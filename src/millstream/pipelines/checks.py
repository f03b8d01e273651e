"""``pipeline check``: finds errors in names, schemas, plans, modes and topics without running.

It never starts a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError
from millstream.pipelines.declare import Flow, Mode, Pipeline, Stream, Table
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.frames.builder import Frames
from millstream.pipelines.graph import Problem, build_graph, find_problems, leaves
from millstream.pipelines.run.failures import explain
from millstream.pipelines.run.session import pipeline_session
from millstream.pipelines.topics import differing_topics, missing_inputs, uncompacted_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Operators that keep state until a watermark passes, by their names in Spark's plans.
_UNBOUNDED = {
    "Aggregate": "aggregates",
    "Join": "joins streams",
    "Deduplicate": "removes duplicates",
}


@dataclass
class FlowCheck:
    """The inputs, schema and plan of a flow."""

    flow: Flow
    inputs: list[str]
    schema: list[tuple[str, str]] = field(default_factory=list)
    plan: str = ""


@dataclass
class Check:
    """The result of a check: the flows in their order, and all problems."""

    flows: list[FlowCheck] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(problem.warning for problem in self.problems)


def check_names(pipeline: Pipeline) -> list[Problem]:
    """Return the problems that can be found without Spark and without a broker."""
    return find_problems(pipeline)


def check_topics(pipeline: Pipeline) -> list[Problem]:
    """Return the problems of topics. A broker that does not answer is a problem too."""
    flows = list(pipeline.flows.values())
    try:
        with Admin(pipeline.bootstrap) as admin:
            names = admin.topics.names()
            read = [
                source
                for flow in flows
                for source in leaves(pipeline, flow)
                if isinstance(source, Table)
            ]
            tables = {table.name: table for table in read if table.topic in names}
            return [
                *missing_inputs(pipeline, flows, names),
                *differing_topics(admin, flows),
                *uncompacted_tables(admin, tables.values()),
            ]
    except ClientError as error:
        return [Problem(None, error.message, error.hint)]


def check_flows(pipeline: Pipeline, spark: SparkSession) -> Check:
    """Build every flow and let Spark analyze its plan."""
    check = Check()
    spark = pipeline_session(spark, pipeline)
    frames = Frames(spark, pipeline)
    for flow in build_graph(pipeline).order:
        result = FlowCheck(flow, [_input(source) for source in leaves(pipeline, flow)])
        check.flows.append(result)
        try:
            rows = frames.build(flow)
            result.schema = [
                (field.name, field.dataType.simpleString()) for field in rows.schema.fields
            ]
            result.plan = rows._jdf.queryExecution().analyzed().toString()
            check.problems += _plan_problems(flow, rows)
        except PipelineError as error:
            check.problems.append(Problem(error.place, _without_place(error), error.hint))
    return check


def _input(source: Stream | Table | Flow) -> str:
    if isinstance(source, Flow):
        return f"flow {source.name} ({source.topics[0]})"
    kind = "stream" if isinstance(source, Stream) else "table"
    if isinstance(source, Stream) and source.origin is not None:
        return f"{kind} {source.name} ({source.origin})"
    return f"{kind} {source.name}" + (
        f" (topic {source.topic})" if source.topic != source.name else ""
    )


def _plan_problems(flow: Flow, rows: DataFrame) -> list[Problem]:
    """Return the reason why Spark would not start the query, and warnings about unbounded state."""
    reason = unsupported_reason(rows, flow.mode)
    if reason is not None:
        return [
            Problem(
                flow.place,
                f"flow {flow.name} cannot run in {flow.mode} mode: {reason}",
                _mode_hint(reason),
            )
        ]
    return unbounded_state(flow, rows)


def unsupported_reason(rows: DataFrame, mode: Mode) -> str | None:
    """Return why Spark would not run a streaming query in this mode, or None if it would."""
    jvm: Any = rows.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output_mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[
        mode
    ]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), output_mode)
    except Exception as error:
        return explain(error, None).reason
    return None


def _mode_hint(reason: str) -> str:
    if "watermark" in reason:
        return "give the stream a watermark, or use mode='update' for results that change as rows arrive"
    return "see Spark's table of output modes"


def unbounded_state(flow: Flow, rows: DataFrame) -> list[Problem]:
    """Return a warning if the state of a flow grows without limit."""
    plan: str = rows._jdf.queryExecution().analyzed().toString()
    if "EventTimeWatermark" in plan or flow.mode == "complete":
        return []
    for line in plan.splitlines():
        operator = line.strip(" +-:~'").split(" ")[0]
        if operator in _UNBOUNDED and line.strip(" +-:").startswith("~"):
            if operator == "Join" and _static_side(plan):
                continue
            activity = _UNBOUNDED[operator]
            return [
                Problem(
                    flow.place,
                    f"flow {flow.name} {activity} without a watermark, so its state grows without limit",
                    "declare watermark='COLUMN DELAY' for its input",
                    warning=True,
                )
            ]
    return []


def _static_side(plan: str) -> bool:
    """Return whether a join reads a table, which needs no state."""
    return plan.count("StreamingRelation") < 2


def _without_place(error: PipelineError) -> str:
    return error.message.removeprefix(f"{error.place}: ") if error.place else error.message


def all_problems(parts: Sequence[Sequence[Problem]]) -> list[Problem]:
    """Return problems in the order of the file, without duplicates."""
    problems = {(str(problem.place), problem.text): problem for part in parts for problem in part}
    return sorted(
        problems.values(),
        key=lambda problem: (problem.place is None, problem.place or ("", 0), problem.text),
    )
