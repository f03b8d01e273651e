"""Carries statements out: one at a time, against the catalog as it is then. Spark is started by the first that needs it."""

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
from millstream.sql.declaring import Confirm, check_name, declared_columns, make_topic, plain_name, refuse_all
from millstream.sql.errors import SqlError, from_spark
from millstream.sql.output_columns import columns_of
from millstream.sql.results import LiveRows, Outcome, Plan, Rows, Told
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
# What a flow may be, in the order of what is best for its target: a table takes rows that change, a stream only final ones.
MODES: dict[str, tuple[Mode, ...]] = {"table": ("update", "append"), "stream": ("append",)}


class Engine:
    """One session of SQL."""

    def __init__(
        self,
        catalog: CatalogTopic,
        spark: Callable[[], SparkSession],
        *,
        checkpoint: str | None = None,
        confirm: Confirm = refuse_all,
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
        """Carry out one statement; a query comes back as something that can be run."""
        return self.run(parse(text))

    @singledispatchmethod
    def run(self, statement: Statement) -> Outcome:
        raise AssertionError(f"nobody knows {statement}")

    # ---------------------------------------------------------------- looking

    @run.register
    def _show(self, statement: Show) -> Outcome:
        return describing.show(statement.what, self.catalog.read(), self.bootstrap, self._layout())

    @run.register
    def _describe(self, statement: Describe) -> Outcome:
        catalog = self.catalog.read()
        if statement.flow:
            return describing.describe_flow(catalog.flow(statement.name), self.bootstrap, self._layout())
        return describing.describe_source(catalog.source(statement.name), catalog, self.bootstrap)

    def _layout(self) -> describing.Where:
        return describing.Where(self.pipeline, self.checkpoint)

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
                "only tables are read, which nothing makes come live",
                hint="leave out EMIT CHANGES, or declare the topic as a stream too",
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
        with self._told(query, catalog):
            return Plan("\n".join(_cut(line) for line in _plan_of(frame).splitlines()))

    def _frame(self, catalog: Catalog, query: str, *, batch: bool, name: str = "query") -> DataFrame:
        pipeline = pipeline_of(catalog, self.bootstrap, name=self.pipeline, flows=())
        with self._told(query, catalog):
            return self._frames(pipeline, batch=batch).query(_looked_at(name, query))

    def _frames(self, pipeline: Pipeline, *, batch: bool = False) -> Frames:
        """In a session of their own: what was dropped is no view any more."""
        return Frames(pipeline_session(self._spark(), pipeline), pipeline, batch=batch)

    @contextmanager
    def _told(self, query: str, catalog: Catalog) -> Iterator[None]:
        """What Spark does not like about a query, in one line."""
        from pyspark.errors import PySparkException

        try:
            yield
        except (PipelineError, PySparkException) as error:
            cause: Any = error if isinstance(error, PySparkException) else error.__cause__
            if isinstance(cause, SqlError):
                raise cause from None
            if cause is None or not hasattr(cause, "getCondition"):
                raise
            told = from_spark(cause, query)
            if cause.getCondition() == NOT_FOUND:
                told = self._unknown(cause, catalog, told)
            raise told from None

    def _unknown(self, error: Any, catalog: Catalog, told: SqlError) -> SqlError:
        """A name that is declared nowhere; often that of a topic."""
        name = str(error.getMessageParameters().get("relationName", "")).strip("`")
        with Admin(self.bootstrap) as admin:
            topics = list(admin.topics.names())
        spelled = [one for one in topics if one.lower() in (name.lower(), name.lower().replace("_", "-"))]
        if spelled:
            hint = f"the topic is not declared yet: CREATE STREAM {plain_name(name)} WITH (topic = '{spelled[0]}')"
        else:
            hint = nearest(name.lower(), catalog.sources)
        return SqlError(f"there is no stream or table {name!r}", hint=hint, text=told.text, span=told.span)

    # ---------------------------------------------------------------- declaring

    @run.register
    def _create(self, statement: Create) -> Outcome:
        check_name(statement.name)
        catalog = self.catalog.read()
        before = catalog.sources.get(statement.name.lower())
        if before is not None and statement.if_not_exists:
            return Told(f"{before.kind} {before.name} is there already")
        if before is not None and self._is_the_same(catalog, before, statement):
            return Told(f"{before.kind} {before.name} and flow {before.name.lower()} are there already")
        if before is not None and not statement.or_replace:
            raise SqlError(
                f"there is a {before.kind} {before.name} already",
                hint=f"DROP {before.kind.upper()} {before.name} first, or CREATE OR REPLACE",
            )
        for flow in catalog.flows.values():
            if _uses(flow, statement.name.lower()):
                does = "writes" if flow.target.lower() == statement.name.lower() else "reads"
                raise SqlError(
                    f"flow {flow.name} {does} {statement.name} as it is declared now",
                    hint=f"DROP FLOW {flow.name} first",
                )
        if statement.query is not None:
            return self._create_filled(catalog, statement)
        self._spark()
        source, guessed = declared_columns(statement, self.bootstrap)
        if guessed:
            self._confirm(source, guessed)
        self._check_source(source)
        made = make_topic(source, self.bootstrap)
        self.catalog.put(source)
        return Told(f"{source.kind} {source.name} created" + (f", and topic {source.topic}" if made else ""))

    def _is_the_same(self, catalog: Catalog, before: Source, statement: Create) -> bool:
        """Whether a CREATE ... AS SELECT is the one that has made what is there."""
        stored = catalog.flows.get(statement.name.lower())
        if stored is None or statement.query is None:
            return False
        again = replace(stored, target=before.name, query=statement.query)
        options = dict(before.options) == _filled_options(statement)
        return options and before.kind == statement.kind and stored.same_as(again)

    def _check_source(self, source: Source) -> None:
        """Everything about it that would be refused later."""
        pipeline = Pipeline(self.pipeline, bootstrap=self.bootstrap)
        declare_source(pipeline, source)
        if source.key:
            topic_target(source)
        self._frames(pipeline, batch=True).query(_looked_at("query", f"SELECT * FROM {quoted(source.name)}"))

    def _create_filled(self, catalog: Catalog, statement: Create) -> Outcome:
        """CREATE ... AS SELECT: the columns are those of the query, and a flow of the same name fills it."""
        assert statement.query is not None
        rows = self._frame(catalog, statement.query, batch=False)
        options = _filled_options(statement)
        columns = tuple(one._replace(not_null=False) for one in columns_of(rows.schema))
        target = Source(statement.kind, statement.name, columns, options)
        for name in target.key:
            if name not in rows.columns:
                raise SqlError(f"the key {name!r} is no column", hint=nearest(name, rows.columns))
        with_target = Catalog(catalog.sources | {target.name.lower(): target}, catalog.all_flows)
        flow = CreateFlow(statement.name, statement.name, statement.query)
        done = self._store_flow(with_target, flow, target, declares=(target,))
        return replace(done, text=f"{target.kind} {target.name} created; {done.text}")

    @run.register
    def _create_flow(self, statement: CreateFlow) -> Outcome:
        check_name(statement.name)
        catalog = self.catalog.read()
        target = catalog.source(statement.target)
        return self._store_flow(catalog, statement, target)

    def _store_flow(
        self, catalog: Catalog, statement: CreateFlow, target: Source, declares: tuple[Source, ...] = ()
    ) -> Told:
        """What it ``declares`` is stored before it: a runner must never see a flow into something that is not there."""
        name = statement.name.lower()
        before = catalog.all_flows.get(name)
        flow = StoredFlow(
            name, target.name, statement.query, generation=before.generation + 1 if before else 1
        )
        if before is not None and not before.dropped:
            if before.same_as(flow) or statement.if_not_exists:
                self.catalog.put(*declares)
                return Told(f"flow {name} is there already")
            raise SqlError(
                f"there is a flow {name} already, with another query",
                hint=f"DROP FLOW {name} first, or give this one a name: CREATE FLOW name AS INSERT INTO {target.name} ...",
            )
        flow, warnings = self._checked(catalog, flow, target)
        self.catalog.put(*declares, flow)
        return Told(f"flow {name} stored: `millstream sql run` runs it", warnings)

    def _checked(
        self, catalog: Catalog, flow: StoredFlow, target: Source
    ) -> tuple[StoredFlow, tuple[str, ...]]:
        """The flow with its mode, and what is worth a warning; the topic that it writes is there."""
        pipeline = pipeline_of(catalog, self.bootstrap, name=self.pipeline)
        declared = declare_flow(pipeline, flow, target)
        with self._told(flow.query, catalog):
            rows = self._frames(pipeline).build(declared)
        mode = self._mode(rows, MODES[target.kind], flow.query)
        build_graph(pipeline)
        with Admin(self.bootstrap) as admin:
            create_missing(admin, [declared])
        problems = unbounded_state(replace(declared, mode=mode), rows)
        return replace(flow, mode=mode), tuple(f"{one.text}; {one.hint}" for one in problems)

    def _mode(self, rows: DataFrame, modes: tuple[Mode, ...], query: str) -> Mode:
        """The first mode that Spark would run the query in."""
        reasons = {mode: unsupported_reason(rows, mode) for mode in modes}
        for mode, reason in reasons.items():
            if reason is None:
                return mode
        hint = "give the stream a watermark: WITH (watermark = 'column 1 minute')"
        if modes == MODES["stream"]:
            hint += "; or make it a TABLE, whose rows may change"
        raise SqlError(str(reasons[modes[-1]]).rstrip("."), hint=hint, text=query)

    @run.register
    def _insert_values(self, statement: InsertValues) -> Outcome:
        target = self.catalog.read().source(statement.target)
        spark = pipeline_session(self._spark(), Pipeline(self.pipeline, bootstrap=self.bootstrap))
        return Told(writing.insert(spark, statement, target, self.bootstrap))

    @run.register
    def _drop(self, statement: Drop) -> Outcome:
        catalog, name = self.catalog.read(), statement.name.lower()
        known = catalog.flows if statement.kind == "flow" else catalog.sources
        if statement.if_exists and name not in known:
            return Told(f"there is no {statement.kind} {statement.name}")
        if statement.kind == "flow":
            self.catalog.put(replace(catalog.flow(name), dropped=True))
            return Told(f"flow {name} dropped; what it wrote stays")
        source = catalog.source(name)
        if source.kind != statement.kind:
            raise SqlError(
                f"{source.name} is a {source.kind}, not a {statement.kind}",
                hint=f"DROP {source.kind.upper()} {source.name}",
            )
        users = [one.name for one in catalog.flows.values() if _uses(one, name)]
        if users:
            raise SqlError(
                f"{source.kind} {source.name} is used by flow {', '.join(users)}",
                hint=f"DROP FLOW {users[0]} first",
            )
        self.catalog.remove(source)
        return Told(f"{source.kind} {source.name} dropped; topic {source.topic} stays")


def _filled_options(statement: Create) -> dict[str, str]:
    """Of what a query fills."""
    return {"topic": statement.name, "value": "json"} | dict(statement.options)


def _looked_at(name: str, query: str) -> Flow:
    """A query that writes nowhere."""

    def run(spark: SparkSession) -> DataFrame:
        return spark.sql(query)

    return Flow(name, inputs_of(query), run, (), "append", NOWHERE, sql=query)


def _plan_of(frame: DataFrame) -> str:
    """Spark's plan: the physical one, and of a stream, which has none before it is started, what the optimizer makes of the query."""
    spark: Any = frame.sparkSession
    execution = frame._jdf.queryExecution()
    if frame.isStreaming:
        optimized = spark._jsparkSession.sessionState().optimizer().execute(execution.analyzed())
        return f"== Optimized Logical Plan ==\n{optimized.toString().strip()}"
    mode = spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    plan: str = execution.explainString(mode)
    return plan.strip()


def _cut(line: str) -> str:
    """Plans have lines of thousands of letters, most of them about how values are parsed."""
    return line if len(line) <= PLAN_WIDTH else line[: PLAN_WIDTH - 1] + "…"


def _uses(flow: StoredFlow, source: str) -> bool:
    return flow.target.lower() == source or source in inputs_of(flow.query)
