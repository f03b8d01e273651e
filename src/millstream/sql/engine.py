"""Runs statements, one at a time, against the current catalog.

The first that needs Spark starts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

from millstream.client.admin.client import Admin
from millstream.pipelines.checks import unbounded_state, unsupported_reason
from millstream.pipelines.declare import Flow, Pipeline
from millstream.pipelines.errors import NOWHERE, PipelineError, nearest
from millstream.pipelines.formats.registry import quoted
from millstream.pipelines.frames.builder import Frames
from millstream.pipelines.graph import build_graph
from millstream.pipelines.run.session import pipeline_session
from millstream.pipelines.topics import create_missing
from millstream.sql import describing, writing
from millstream.sql.catalog import Catalog, CatalogTopic, Source, StoredFlow
from millstream.sql.declared import (
    declare_flow,
    declare_source,
    inputs_of,
    pipeline_name,
    pipeline_of,
    topic_target,
)
from millstream.sql.declaring import (
    Confirm,
    check_name,
    create_topic,
    declared_columns,
    plain_name,
    reject_guess,
)
from millstream.sql.errors import SqlError, from_spark
from millstream.sql.output_columns import columns_of
from millstream.sql.results import Confirmation, LiveRows, Outcome, Plan, Rows
from millstream.sql.statements import (
    Create,
    CreateFlow,
    Describe,
    Drop,
    Explain,
    InsertValues,
    Select,
    Show,
    Statement,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from millstream.pipelines.declare import Mode

LIVE = "live-"
PLAN_WIDTH = 160
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
# The output modes of a flow, best first: a table accepts rows that change, a stream only final
# ones.
MODES: dict[str, tuple[Mode, ...]] = {"table": ("update", "append"), "stream": ("append",)}


class Engine:
    """One SQL session."""

    def __init__(
        self,
        catalog: CatalogTopic,
        spark: Callable[[], SparkSession],
        *,
        checkpoint: str | None = None,
        confirm: Confirm = reject_guess,
    ) -> None:
        self.catalog = catalog
        self.checkpoint = checkpoint
        self.pipeline = pipeline_name(catalog.topic)
        self._spark = spark
        self._confirm = confirm

    @property
    def bootstrap(self) -> str:
        return self.catalog.bootstrap

    def execute(self, text: str) -> Outcome:
        """Run one statement; a query is returned as an object that can be run."""
        return self.run(parse(text))

    @singledispatchmethod
    def run(self, statement: Statement) -> Outcome:
        raise AssertionError(f"unknown statement {statement}")

    # ---------------------------------------------------------------- showing

    @run.register
    def _show(self, statement: Show) -> Outcome:
        return describing.show(
            statement.subject, self.catalog.read(), self.bootstrap, self._flow_location()
        )

    @run.register
    def _describe(self, statement: Describe) -> Outcome:
        catalog = self.catalog.read()
        if statement.flow:
            return describing.describe_flow(
                catalog.flow(statement.name), self.bootstrap, self._flow_location()
            )
        return describing.describe_source(catalog.source(statement.name), catalog, self.bootstrap)

    def _flow_location(self) -> describing.FlowLocation:
        return describing.FlowLocation(self.pipeline, self.checkpoint)

    # ---------------------------------------------------------------- queries

    @run.register
    def _select(self, statement: Select) -> Outcome:
        catalog = self.catalog.read()
        if not statement.live:
            return Rows(self._frame(catalog, statement.query, batch=True), statement.query)
        name = f"{LIVE}{uuid.uuid4().hex[:12]}"
        frame = self._frame(catalog, statement.query, batch=False, name=name)
        if not frame.isStreaming:
            raise SqlError(
                "the query reads only tables, which have no live changes",
                hint="remove EMIT CHANGES, or declare the topic as a stream too",
                text=statement.query,
            )
        mode = self._mode(frame, ("update", "append"), statement.query)
        whole = "complete" if unsupported_reason(frame, "complete") is None else mode
        groups = (f"{self.pipeline}.{name}",)
        return LiveRows(frame, statement.query, mode, whole, statement.limit, groups)

    @run.register
    def _explain(self, statement: Explain) -> Outcome:
        catalog = self.catalog.read()
        if statement.flow is not None:
            query, live = catalog.flow(statement.flow).query, True
        else:
            assert statement.select is not None
            query, live = statement.select.query, statement.select.live
        frame = self._frame(catalog, query, batch=not live)
        with self._sql_errors(query, catalog):
            return Plan("\n".join(_truncated(line) for line in _plan_of(frame).splitlines()))

    def _frame(
        self, catalog: Catalog, query: str, *, batch: bool, name: str = "query"
    ) -> DataFrame:
        pipeline = pipeline_of(catalog, self.bootstrap, name=self.pipeline, flows=())
        with self._sql_errors(query, catalog):
            return self._frames(pipeline, batch=batch).query(_read_only_flow(name, query))

    def _frames(self, pipeline: Pipeline, *, batch: bool = False) -> Frames:
        """Return frames in a separate session, so that dropped entries are not visible as views."""
        return Frames(pipeline_session(self._spark(), pipeline), pipeline, batch=batch)

    @contextmanager
    def _sql_errors(self, query: str, catalog: Catalog) -> Iterator[None]:
        """Convert Spark's errors about a query."""
        from pyspark.errors import PySparkException

        try:
            yield
        except (PipelineError, PySparkException) as error:
            cause: Any = error if isinstance(error, PySparkException) else error.__cause__
            if isinstance(cause, SqlError):
                raise cause from None
            if cause is None or not hasattr(cause, "getCondition"):
                raise
            converted = from_spark(cause, query)
            if cause.getCondition() == NOT_FOUND:
                converted = self._unknown_name(cause, catalog, converted)
            raise converted from None

    def _unknown_name(self, error: Any, catalog: Catalog, converted: SqlError) -> SqlError:
        """Return the error for an undeclared name, which is often that of a topic."""
        name = str(error.getMessageParameters().get("relationName", "")).strip("`")
        with Admin(self.bootstrap) as admin:
            topics = list(admin.topics.names())
        spellings = (name.lower(), name.lower().replace("_", "-"))
        matches = [topic for topic in topics if topic.lower() in spellings]
        if matches:
            statement = f"CREATE STREAM {plain_name(name)} WITH (topic = '{matches[0]}')"
            hint = f"the topic is not declared yet: {statement}"
        else:
            hint = nearest(name.lower(), catalog.sources)
        return SqlError(
            f"there is no stream or table {name!r}",
            hint=hint,
            text=converted.text,
            span=converted.span,
        )

    # ---------------------------------------------------------------- declaring

    @run.register
    def _create(self, statement: Create) -> Outcome:
        check_name(statement.name)
        catalog = self.catalog.read()
        before = catalog.sources.get(statement.name.lower())
        if before is not None and statement.if_not_exists:
            return Confirmation(f"{before.kind} {before.name} already exists")
        if before is not None and self._is_same(catalog, before, statement):
            return Confirmation(
                f"{before.kind} {before.name} and flow {before.name.lower()} already exist"
            )
        if before is not None and not statement.or_replace:
            raise SqlError(
                f"{before.kind} {before.name} already exists",
                hint=f"DROP {before.kind.upper()} {before.name} first, or CREATE OR REPLACE",
            )
        for flow in catalog.flows.values():
            if _uses(flow, statement.name.lower()):
                verb = "writes" if flow.target.lower() == statement.name.lower() else "reads"
                raise SqlError(
                    f"flow {flow.name} {verb} {statement.name} with its current declaration",
                    hint=f"DROP FLOW {flow.name} first",
                )
        if statement.query is not None:
            return self._create_filled(catalog, statement)
        self._spark()
        source, guessed = declared_columns(statement, self.bootstrap)
        if guessed:
            self._confirm(source, guessed)
        self._check_source(source)
        created = create_topic(source, self.bootstrap)
        self.catalog.put(source)
        text = f"{source.kind} {source.name} created"
        return Confirmation(f"{text}, and topic {source.topic}" if created else text)

    def _is_same(self, catalog: Catalog, before: Source, statement: Create) -> bool:
        """Return whether a CREATE ... AS SELECT is the one that created the existing entry."""
        stored = catalog.flows.get(statement.name.lower())
        if stored is None or statement.query is None:
            return False
        again = replace(stored, target=before.name, query=statement.query)
        options = dict(before.options) == _filled_options(statement)
        return options and before.kind == statement.kind and stored.same_as(again)

    def _check_source(self, source: Source) -> None:
        """Check everything that would be rejected later."""
        pipeline = Pipeline(self.pipeline, bootstrap=self.bootstrap)
        declare_source(pipeline, source)
        if source.key:
            topic_target(source)
        self._frames(pipeline, batch=True).query(
            _read_only_flow("query", f"SELECT * FROM {quoted(source.name)}")
        )

    def _create_filled(self, catalog: Catalog, statement: Create) -> Outcome:
        """Run CREATE ... AS SELECT.

        The query defines the columns, and a flow of the same name fills them.
        """
        assert statement.query is not None
        rows = self._frame(catalog, statement.query, batch=False)
        options = _filled_options(statement)
        columns = tuple(column._replace(not_null=False) for column in columns_of(rows.schema))
        target = Source(statement.kind, statement.name, columns, options)
        for name in target.key:
            if name not in rows.columns:
                raise SqlError(
                    f"the key {name!r} is not a column", hint=nearest(name, rows.columns)
                )
        with_target = Catalog(catalog.sources | {target.name.lower(): target}, catalog.all_flows)
        flow = CreateFlow(statement.name, statement.name, statement.query)
        stored = self._store_flow(with_target, flow, target, declares=(target,))
        return replace(stored, text=f"{target.kind} {target.name} created; {stored.text}")

    @run.register
    def _create_flow(self, statement: CreateFlow) -> Outcome:
        check_name(statement.name)
        catalog = self.catalog.read()
        target = catalog.source(statement.target)
        return self._store_flow(catalog, statement, target)

    def _store_flow(
        self,
        catalog: Catalog,
        statement: CreateFlow,
        target: Source,
        declares: tuple[Source, ...] = (),
    ) -> Confirmation:
        """Store a flow, after the entries that it ``declares``.

        A runner must never see a flow into something that does not exist.
        """
        name = statement.name.lower()
        before = catalog.all_flows.get(name)
        flow = StoredFlow(
            name, target.name, statement.query, generation=before.generation + 1 if before else 1
        )
        if before is not None and not before.dropped:
            if before.same_as(flow) or statement.if_not_exists:
                self.catalog.put(*declares)
                return Confirmation(f"flow {name} already exists")
            raise SqlError(
                f"flow {name} already exists with another query",
                hint=f"DROP FLOW {name} first, or name this one: "
                f"CREATE FLOW name AS INSERT INTO {target.name} ...",
            )
        flow, warnings = self._checked(catalog, flow, target)
        self.catalog.put(*declares, flow)
        return Confirmation(f"flow {name} stored: `millstream sql run` runs it", warnings)

    def _checked(
        self, catalog: Catalog, flow: StoredFlow, target: Source
    ) -> tuple[StoredFlow, tuple[str, ...]]:
        """Return the flow with its mode, and warnings. Creates the topic that it writes."""
        pipeline = pipeline_of(catalog, self.bootstrap, name=self.pipeline)
        declared = declare_flow(pipeline, flow, target)
        with self._sql_errors(flow.query, catalog):
            rows = self._frames(pipeline).build(declared)
        mode = self._mode(rows, MODES[target.kind], flow.query)
        build_graph(pipeline)
        with Admin(self.bootstrap) as admin:
            create_missing(admin, [declared])
        problems = unbounded_state(replace(declared, mode=mode), rows)
        return replace(flow, mode=mode), tuple(
            f"{problem.text}; {problem.hint}" for problem in problems
        )

    def _mode(self, rows: DataFrame, modes: tuple[Mode, ...], query: str) -> Mode:
        """Return the first mode in which Spark would run the query."""
        reasons = {mode: unsupported_reason(rows, mode) for mode in modes}
        for mode, reason in reasons.items():
            if reason is None:
                return mode
        hint = "declare a watermark for the stream: WITH (watermark = 'column 1 minute')"
        if modes == MODES["stream"]:
            hint += "; or write to a TABLE, whose rows may change"
        raise SqlError(str(reasons[modes[-1]]).rstrip("."), hint=hint, text=query)

    @run.register
    def _insert_values(self, statement: InsertValues) -> Outcome:
        target = self.catalog.read().source(statement.target)
        spark = pipeline_session(self._spark(), Pipeline(self.pipeline, bootstrap=self.bootstrap))
        return Confirmation(writing.insert(spark, statement, target, self.bootstrap))

    @run.register
    def _drop(self, statement: Drop) -> Outcome:
        catalog, name = self.catalog.read(), statement.name.lower()
        known = catalog.flows if statement.kind == "flow" else catalog.sources
        if statement.if_exists and name not in known:
            return Confirmation(f"there is no {statement.kind} {statement.name}")
        if statement.kind == "flow":
            self.catalog.put(replace(catalog.flow(name), dropped=True))
            return Confirmation(f"flow {name} dropped; its output stays")
        source = catalog.source(name)
        if source.kind != statement.kind:
            raise SqlError(
                f"{source.name} is a {source.kind}, not a {statement.kind}",
                hint=f"DROP {source.kind.upper()} {source.name}",
            )
        users = [flow.name for flow in catalog.flows.values() if _uses(flow, name)]
        if users:
            raise SqlError(
                f"{source.kind} {source.name} is used by flow {', '.join(users)}",
                hint=f"DROP FLOW {users[0]} first",
            )
        self.catalog.remove(source)
        return Confirmation(f"{source.kind} {source.name} dropped; topic {source.topic} stays")


def _filled_options(statement: Create) -> dict[str, str]:
    """Return the options of a stream or table that a query fills."""
    return {"topic": statement.name, "value": "json"} | dict(statement.options)


def _read_only_flow(name: str, query: str) -> Flow:
    """Return a query that writes nowhere, as a flow."""

    def run(spark: SparkSession) -> DataFrame:
        return spark.sql(query)

    return Flow(name, inputs_of(query), run, (), "append", NOWHERE, sql=query)


def _plan_of(frame: DataFrame) -> str:
    """Return Spark's physical plan, or the optimized logical plan of a stream.

    A stream has no physical plan before it is started.
    """
    spark: Any = frame.sparkSession
    execution = frame._jdf.queryExecution()
    if frame.isStreaming:
        optimized = spark._jsparkSession.sessionState().optimizer().execute(execution.analyzed())
        return f"== Optimized Logical Plan ==\n{optimized.toString().strip()}"
    mode = spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    plan: str = execution.explainString(mode)
    return plan.strip()


def _truncated(line: str) -> str:
    """Truncate a line: plans have lines of thousands of characters, mostly about parsing values."""
    return line if len(line) <= PLAN_WIDTH else line[: PLAN_WIDTH - 1] + "…"


def _uses(flow: StoredFlow, source: str) -> bool:
    return flow.target.lower() == source or source in inputs_of(flow.query)
