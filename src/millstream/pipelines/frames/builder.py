"""``Frames`` builds the DataFrame of each flow of a pipeline.

Streams are decoded and get their watermark, tables have the latest row of each key as of each
batch, and flows that others read are read through the topics that they write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from millstream.pipelines.dead_letters.batches import OwnedStream, observes
from millstream.pipelines.dead_letters.ownership import DeadLetterOwner
from millstream.pipelines.declare import SESSION, Flow, Pipeline, Stream, Table, View
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.codec import READ_BY_COLUMNS, decoded, parsed, written_schema
from millstream.pipelines.frames.columns import check_target_columns, with_watermark
from millstream.pipelines.frames.dead_letters import DeadLetterFrames
from millstream.pipelines.frames.topic_reader import TopicReader
from millstream.pipelines.graph import inputs_of, leaves
from millstream.pipelines.run.failures import explain
from millstream.pipelines.targets import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_OWNERS: Mapping[str, DeadLetterOwner] = MappingProxyType({})
MAX_PARALLEL_SOURCES = 4
"""Maximum number of sources that are loaded at the same time."""


class Frames:
    """The DataFrames of one pipeline in one session.

    ``batch`` reads the records that exist now, instead of streams. ``owners`` has the flows that
    write the dead letters of streams.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        file: str | None = None,
        *,
        batch: bool = False,
        owners: Mapping[str, DeadLetterOwner] = NO_OWNERS,
        topics: TopicReader | None = None,
    ) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.file = file or pipeline.place.file
        self.topics = topics or TopicReader(spark, pipeline, batch=batch)
        self._dead_letters = DeadLetterFrames(self.topics, owners, self._schema_to_read)
        self._flows: dict[str, DataFrame] = {}

    def build(self, flow: Flow) -> DataFrame:
        """Return the rows of a flow, built once.

        PipelineError names the user's line if the function or the plan is wrong.
        """
        if flow.name in self._flows:
            return self._flows[flow.name]
        if flow.letters_of is not None:
            self._flows[flow.name] = self._dead_letters.query(flow.letters_of, flow.name)
            return self._flows[flow.name]
        rows = self._call(flow, flow)
        if not rows.isStreaming:
            raise PipelineError(
                f"flow {flow.name} reads only tables, which do not trigger batches",
                hint="declare one of its inputs with stream()",
                place=flow.place,
            )
        check_target_columns(flow, rows.columns)
        self._flows[flow.name] = rows
        return rows

    def query(self, flow: Flow) -> DataFrame:
        """Return the rows of a flow without targets, to show them."""
        return self._call(flow, flow)

    def schema_of(self, flow: Flow) -> StructType:
        """Return the schema that a flow writes."""
        return self.build(flow).schema

    def start_at(self, stream: str, flow: str, start: str) -> None:
        """Let a flow start to read a stream at these offsets (``startingOffsets``)."""
        if self.topics.start_at(stream, flow, start):
            self._forget(flow)

    def change_owners(self, owners: Mapping[str, DeadLetterOwner]) -> None:
        """Change the flows that write dead letters. Affected flows are built again."""
        for flow in self._dead_letters.change_owners(owners):
            self._forget(flow)

    def owned_by(self, flow: Flow) -> list[OwnedStream]:
        """Return the streams whose dead letters a flow writes. The flow has been built."""
        return self._dead_letters.owned_by(flow)

    def reads(self, flow: Flow, stream: Stream) -> bool:
        """Return whether the plan of a flow reads a stream. Its function may ignore a parameter."""
        frames = self
        if not self._dead_letters.owns(flow.name, stream.name):
            owners = {stream.name: DeadLetterOwner(flow.name, stream)}
            frames = Frames(self.spark, self.pipeline, self.file, owners=owners, topics=self.topics)
        return observes(frames.build(flow), frames._dead_letters.metrics(stream.name))

    def load_sources(self, flows: Iterable[Flow]) -> None:
        """Load the sources of these flows, several at the same time.

        Spark starts a Python process for each. ``build`` then uses the loaded sources, and meets
        and explains any error that occurs here.
        """
        loads: dict[tuple[str, str], Callable[[], object]] = {}
        for flow in flows:
            for leaf in leaves(self.pipeline, flow):
                if isinstance(leaf, Stream) and leaf.origin is None and self._has_schema(leaf):
                    loads[leaf.name, flow.name] = partial(self._records, leaf, flow.name)
                elif isinstance(leaf, Table) and self._has_schema(leaf):
                    loads[leaf.name, ""] = partial(self.topics.table, leaf)
        if len(loads) < 2:
            return
        with ThreadPoolExecutor(MAX_PARALLEL_SOURCES) as pool:
            wait([pool.submit(load) for load in loads.values()])

    def _forget(self, flow: str) -> None:
        self._flows.pop(flow, None)
        self._dead_letters.forget(flow)

    def _records(self, stream: Stream, flow: str) -> DataFrame:
        return self.topics.stream(stream, flow, self._schema_to_read(stream))

    def _has_schema(self, source: Stream | Table) -> bool:
        """Return whether the schema is known without building the flow that writes the topic."""
        return source.schema is not None or self.pipeline.writer_of(source.topic) is None

    def _schema_to_read(self, source: Stream | Table) -> Any:
        """Return the declared schema, or that of the flow that writes the topic."""
        writer = self.pipeline.writer_of(source.topic)
        if source.schema is not None or writer is None:
            return source.schema
        return self._written_schema(*writer) if source.value in READ_BY_COLUMNS else None

    def _written_schema(self, flow: Flow, target: TopicTarget) -> StructType | None:
        return (
            written_schema(self.schema_of(flow), target)
            if target.value in READ_BY_COLUMNS
            else None
        )

    def _input(self, source: Stream | Table | View | Flow, reader: Flow) -> DataFrame:
        if isinstance(source, Stream):
            return self._stream(source, reader.name)
        if isinstance(source, Table):
            return self._table(source)
        if isinstance(source, View):
            return self._call(source, reader)
        return self._flow_output(source, reader.name)

    def _stream(self, stream: Stream, flow: str) -> DataFrame:
        """Return the rows of a stream that parse."""
        if stream.origin is not None:
            rows = self._dead_letters.observe(self.topics.origin(stream), stream.name, flow)
            rows = parsed(rows, meta=stream.meta)
        else:
            rows = decoded(
                self._records(stream, flow),
                stream.value,
                self._schema_to_read(stream),
                stream.options,
                meta=stream.meta,
                place=stream.place,
                tombstones=stream.tombstones,
                observe=lambda rows: self._dead_letters.observe(rows, stream.name, flow),
            )
        return with_watermark(rows, stream.watermark, f"stream {stream.name}", stream.place)

    def _table(self, table: Table) -> DataFrame:
        return decoded(
            self.topics.table(table),
            table.value,
            self._schema_to_read(table),
            table.options,
            meta=table.meta,
            place=table.place,
        )

    def _flow_output(self, flow: Flow, reader: str) -> DataFrame:
        """Return the rows that another flow writes, read back from its topic."""
        target = flow.topics[0]
        schema = target.schema if target.schema is not None else self._written_schema(flow, target)
        raw = self.topics.written(target, reader, schema, flow.place)
        rows = decoded(
            raw,
            target.value,
            schema,
            target.options,
            meta=False,
            place=flow.place,
            observe=lambda rows: self._dead_letters.observe(rows, flow.name, reader),
        )
        return with_watermark(rows, target.watermark, f"topic {target.topic}", flow.place)

    def _call(self, step: Flow | View, reader: Flow) -> DataFrame:
        """Return the rows of a flow or view. ``reader`` is the flow that is being built."""
        from pyspark.sql import DataFrame

        inputs: dict[str, Any] = {
            source.name: self._input(source, reader) for source in inputs_of(self.pipeline, step)
        }
        try:
            if step.sql is not None:
                for name, frame in inputs.items():
                    frame.createOrReplaceTempView(name)
                rows = step.function(self.spark)
            else:
                if SESSION in step.inputs:
                    inputs[SESSION] = self.spark
                rows = step.function(**inputs)
        except PipelineError:
            raise
        except Exception as error:
            failure = explain(error, self.file)
            raise PipelineError(
                f"{step.name}: {failure.reason}", place=failure.place or step.place
            ) from error
        if not isinstance(rows, DataFrame):
            raise PipelineError(
                f"{step.name} returns {type(rows).__name__}",
                hint="return a DataFrame",
                place=step.place,
            )
        return rows
