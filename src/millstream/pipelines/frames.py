"""Declarations as DataFrames: streams decoded and watermarked, tables as of each batch, flows read through the topics they write.

Building reads nothing from the broker; ``check`` builds everything and starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from millstream.pipelines.dead_letters.batches import METRIC, OwnedStream, observed, observes
from millstream.pipelines.dead_letters.ownership import OwnedLetters
from millstream.pipelines.dead_letters.queries import SOURCE_OPTIONS, dead_letters, letters
from millstream.pipelines.declare import SESSION, Flow, Pipeline, Stream, Table, View
from millstream.pipelines.durations import Watermark
from millstream.pipelines.errors import PipelineError, Place, nearest
from millstream.pipelines.formats.codec import (
    READ_BY_COLUMNS,
    decoded,
    format_of,
    parsed,
    told_by,
    written_schema,
)
from millstream.pipelines.formats.registry import quoted
from millstream.pipelines.graph import inputs_of, leaves
from millstream.pipelines.run.failures import explain
from millstream.pipelines.run.start_offsets import without_start
from millstream.pipelines.table_source import FORMAT, TableSource
from millstream.pipelines.targets import TopicTarget
from millstream.spark.options import BATCH, STREAM, OptionError, only_for, parse, without_overridden
from millstream.spark.registration import register
from millstream.spark.source.arrow_json import UNPROVEN
from millstream.spark.source.offsets import Range
from millstream.spark.source.planning import all_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_LETTERS: Mapping[str, OwnedLetters] = MappingProxyType({})
MOST_LOOKS = 4
"""Sources that are looked at at the same time."""
TIME_RULES = "spark.sql.legacy.timeParserPolicy"


class Frames:
    """The DataFrames of one pipeline in one session."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        file: str | None = None,
        *,
        batch: bool = False,
        letters: Mapping[str, OwnedLetters] = NO_LETTERS,
    ) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.file = file or pipeline.place.file
        self.batch = batch
        """Streams are what is there now, and end."""
        self._letters = letters
        self._observations: dict[str, list[str]] = {}
        self._flows: dict[str, DataFrame] = {}
        self._sources: dict[tuple[tuple[str, str], ...], DataFrame] = {}
        self._starts: dict[tuple[str, str], str] = {}
        """By stream and flow: the option ``startingOffsets``, instead of what the stream declares."""
        register(spark, TableSource)

    def build(self, flow: Flow) -> DataFrame:
        """The rows of a flow, built once. PipelineError names the user's line when its function or its plan is wrong."""
        if flow.name in self._flows:
            return self._flows[flow.name]
        if flow.letters_of is not None:
            self._flows[flow.name] = self._dead_letters(flow.letters_of, flow.name)
            return self._flows[flow.name]
        made = self._call(flow, flow)
        if not made.isStreaming:
            raise PipelineError(
                f"flow {flow.name} reads only tables, so nothing would make it run",
                hint="declare one of its inputs with stream()",
                place=flow.place,
            )
        _check_columns(flow, made.columns)
        self._flows[flow.name] = made
        return made

    def own(self, letters: Mapping[str, OwnedLetters]) -> None:
        """Change who writes the dead letters; flows whose part in it changes are built again."""
        before, self._letters = self._letters, letters
        for name in before.keys() | letters.keys():
            if before.get(name) != letters.get(name):
                for owned in (before.get(name), letters.get(name)):
                    if owned is not None:
                        self._forget(owned.flow)

    def reads(self, flow: Flow, stream: Stream) -> bool:
        """Whether the plan of a flow reads a stream that the flow names: its function may ignore it."""
        owned = self._letters.get(stream.name)
        frames = self
        if owned is None or owned.flow != flow.name:
            letters = {stream.name: OwnedLetters(flow.name, stream)}
            frames = Frames(self.spark, self.pipeline, self.file, batch=self.batch, letters=letters)
            frames._sources, frames._starts = self._sources, self._starts
        return observes(frames.build(flow), frames._observations.get(stream.name, ()))

    def begin_at(self, stream: str, flow: str, start: str) -> None:
        """Let a flow begin to read a stream at these offsets (``startingOffsets``)."""
        if self._starts.get((stream, flow)) != start:
            self._starts[stream, flow] = start
            self._forget(flow)

    def _forget(self, flow: str) -> None:
        self._flows.pop(flow, None)
        for name, owned in self._letters.items():
            if owned.flow == flow:
                self._observations.pop(name, None)

    def query(self, flow: Flow) -> DataFrame:
        """The rows of a flow that writes nowhere: somebody looks at them."""
        return self._call(flow, flow)

    def schema_of(self, flow: Flow) -> StructType:
        """The schema that a flow writes."""
        return self.build(flow).schema

    def stream(self, stream: Stream, reader: str) -> DataFrame:
        """The rows of a stream that parse, for the flow ``reader``."""
        if stream.origin is not None:
            rows = parsed(self._observed(self._origin_rows(stream), stream.name, reader), meta=stream.meta)
            return _with_watermark(rows, stream.watermark, f"stream {stream.name}", stream.place)
        rows = decoded(
            self._raw_stream(stream, reader),
            stream.value,
            self._schema_to_read(stream),
            stream.options,
            meta=stream.meta,
            place=stream.place,
            tombstones=stream.tombstones,
            observe=lambda rows: self._observed(rows, stream.name, reader),
        )
        return _with_watermark(rows, stream.watermark, f"stream {stream.name}", stream.place)

    def look_at_sources(self, flows: Iterable[Flow]) -> None:
        """Have Spark look at the sources of these flows, several at the same time.

        Spark starts a Python process for each. ``build`` then finds them looked at; it also meets again, and explains,
        whatever goes wrong here.
        """
        looks: dict[tuple[str, str], Callable[[], object]] = {}
        for flow in flows:
            for leaf in leaves(self.pipeline, flow):
                if isinstance(leaf, Stream) and leaf.origin is None and self._is_declared(leaf):
                    looks[leaf.name, flow.name] = partial(self._raw_stream, leaf, flow.name)
                elif isinstance(leaf, Table) and self._is_declared(leaf):
                    looks[leaf.name, ""] = partial(self._raw_table, leaf)
        if len(looks) < 2:
            return
        with ThreadPoolExecutor(MOST_LOOKS) as pool:
            wait([pool.submit(look) for look in looks.values()])

    def _is_declared(self, one: Stream | Table) -> bool:
        """Whether it can be read without building another flow first, for the sake of its schema."""
        return one.schema is not None or self.pipeline.writer_of(one.topic) is None

    def _raw_stream(self, stream: Stream, reader: str) -> DataFrame:
        """The records of a stream, not decoded yet."""
        schema = self._schema_to_read(stream)
        given = self._start(stream, reader)
        proven = self._proven(stream.value, schema, stream.options, stream.place)
        return self._read_topic(stream.topic, reader, given, stream.place, proven)

    def _start(self, stream: Stream, reader: str) -> dict[str, str]:
        """The options of a stream, with those that say where it begins."""
        start = self._starts.get((stream.name, reader))
        if start is None:
            return {"startingOffsets": stream.starting, **stream.source_options}
        return {**without_start(stream.source_options), "startingOffsets": start}

    def declared_source(self, stream: Stream, reader: str) -> dict[str, str]:
        """The options to read a stream where it declares to begin."""
        return self._topic_options(
            stream.topic, reader, {"startingOffsets": stream.starting, **stream.source_options}, stream.place
        )

    def _origin_rows(self, stream: Stream) -> DataFrame:
        """Those that parse and those that do not; looked at once, as topics are."""
        assert stream.origin is not None
        key = (("origin", stream.name),)
        if key not in self._sources:
            with told_by(stream.place):
                self._sources[key] = stream.origin.rows(self.spark)
        return self._sources[key]

    def _proven(
        self, value: str, schema: Any, options: Mapping[str, Any], place: Place
    ) -> StructField | None:
        """The column that has values decoded where they are read, if the format, the schema and the session allow it."""
        with told_by(place):
            found = format_of(value, schema, options, place).proven_column()
        # Times are read by other rules then: fractions of seconds, and years before 1582.
        legacy = found is not None and str(self.spark.conf.get(TIME_RULES, None)).upper() == "LEGACY"
        return None if legacy else found

    def _read_topic(
        self, topic: str, reader: str, given: dict[str, str], place: Place, proven: StructField | None = None
    ) -> DataFrame:
        if self.batch:
            return self._read_all(topic, given, place, proven)
        options = self._topic_options(topic, reader, given, place)
        return self._load(self.spark.readStream, "millstream", options, proven)

    def _topic_options(
        self, topic: str, reader: str, given: Mapping[str, str], place: Place
    ) -> dict[str, str]:
        options = {
            **only_for(self._options, STREAM),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
            "subscribe": topic,
            "groupId": f"{self.pipeline.name}.{reader}",
            **given,
        }
        _check_options(options, STREAM, place)
        return without_overridden(options)

    def _read_all(
        self, topic: str, given: dict[str, str], place: Place, proven: StructField | None
    ) -> DataFrame:
        """All there is: where a stream would begin does not matter."""
        options = {
            **only_for(self._options, BATCH),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
            "subscribe": topic,
            **only_for(given, BATCH),
            "startingOffsets": "earliest",
        }
        _check_options(options, BATCH, place)
        return self._load(self.spark.read, "millstream", without_overridden(options), proven)

    @property
    def _options(self) -> dict[str, str]:
        """Those of the pipeline, for everything that it reads and writes."""
        return {name: str(value) for name, value in self.pipeline.options.items()}

    def _load(
        self, reader: Any, source: str, options: dict[str, str], proven: StructField | None = None
    ) -> DataFrame:
        """Spark starts a Python process to look at a source: each is looked at once."""
        parsed = () if proven is None else (("parsed", proven.json()),)
        key = (("source", source), *parsed, *sorted(options.items()))
        if key not in self._sources:
            made = reader.format(source).options(**options)
            if proven is not None:
                made = made.schema(_columns(options).add(proven))
            self._sources[key] = made.load()
        return self._sources[key]

    def _raw_table(self, table: Table) -> DataFrame:
        """The records of a table, not decoded yet."""
        options = {
            **only_for(self._options, BATCH),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
            "subscribe": table.topic,
            **table.source_options,
        }
        _check_options(options, BATCH, table.place)
        return self._load(self.spark.read, FORMAT, options)

    def _table(self, table: Table) -> DataFrame:
        return decoded(
            self._raw_table(table),
            table.value,
            self._schema_to_read(table),
            table.options,
            meta=table.meta,
            place=table.place,
        )

    def _flow_output(self, flow: Flow, reader: str) -> DataFrame:
        """What another flow writes, read back from its topic."""
        target = flow.topics[0]
        schema = target.schema if target.schema is not None else self._written_schema(flow, target)
        proven = self._proven(target.value, schema, target.options, flow.place)
        given = {"startingOffsets": "earliest"}
        raw = self._read_topic(target.topic, reader, given, flow.place, proven)
        rows = decoded(
            raw,
            target.value,
            schema,
            target.options,
            meta=False,
            place=flow.place,
            observe=lambda rows: self._observed(rows, flow.name, reader),
        )
        return _with_watermark(rows, target.watermark, f"topic {target.topic}", flow.place)

    def _observed(self, rows: DataFrame, name: str, reader: str) -> DataFrame:
        """Decoded rows of a stream or flow; counted, where ``reader`` is the flow that writes the dead letters of it."""
        owned = self._letters.get(name)
        if owned is None or owned.flow != reader:
            return rows
        metrics = self._observations.setdefault(name, [])
        metrics.append(f"{METRIC}{name}.{len(metrics)}")
        return observed(rows, metrics[-1], by_offset=owned.stream.origin is None)

    def owned_by(self, flow: Flow) -> list[OwnedStream]:
        """The streams whose dead letters a flow writes, once it has been built."""
        return [
            self._owned(name, owned.stream, flow.name)
            for name, owned in self._letters.items()
            if owned.flow == flow.name
        ]

    def _owned(self, name: str, stream: Stream, flow: str) -> OwnedStream:
        if stream.origin is not None:
            explain = stream.origin.explainer()
        else:
            schema = self._schema_to_read(stream)
            explain = format_of(stream.value, schema, stream.options, stream.place).explainer()
        topic = stream.dead_letters
        assert topic is not None
        place_free = {
            name: value
            for name, value in only_for(stream.source_options, BATCH).items()
            if not name.lower().startswith(("starting", "ending"))
        }
        options = {
            **only_for(self._options, BATCH),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
            **place_free,
        }

        def read_again(ranges: Sequence[Range]) -> DataFrame:
            return self._letters_between(stream, flow, options, ranges)

        def of_rows(rows: DataFrame) -> DataFrame:
            return _for_topic(letters(rows, pipeline=self.pipeline.name, flow=flow, explain=explain), topic)

        return OwnedStream(
            name,
            topic,
            tuple(self._observations.get(name, ())),
            explain,
            stream.topic,
            options,
            read_again,
            of_rows,
        )

    def _letters_between(
        self, stream: Stream, flow: str, options: Mapping[str, str], ranges: Sequence[Range]
    ) -> DataFrame:
        """The dead letters of these ranges of a topic, read by a job."""
        assert stream.dead_letters is not None
        topic = stream.topic
        numbers = {str(one.partition.partition): one for one in ranges}
        given = {
            **options,
            **SOURCE_OPTIONS,
            "assign": json.dumps({topic: [int(number) for number in numbers]}),
            "startingOffsets": json.dumps({topic: {number: one.start for number, one in numbers.items()}}),
            "endingOffsets": json.dumps({topic: {number: one.end for number, one in numbers.items()}}),
            "failOnDataLoss": "false",
        }
        schema = self._schema_to_read(stream)
        proven = self._proven(stream.value, schema, stream.options, stream.place)
        reader = self.spark.read.format("millstream").options(**given)
        if proven is not None:
            reader = reader.schema(_columns(given).add(StructField(UNPROVEN, proven.dataType)))
        made = dead_letters(
            reader.load(),
            format_of(stream.value, schema, stream.options, stream.place),
            pipeline=self.pipeline.name,
            flow=flow,
            tombstones=stream.tombstones,
        )
        return _for_topic(made, stream.dead_letters)

    def _dead_letters(self, one: Stream | Table, reader: str) -> DataFrame:
        """What does not parse. In a table a record without a value is none of it."""
        if isinstance(one, Stream) and one.origin is not None:
            name, explain = self.pipeline.name, one.origin.explainer()
            return letters(self._origin_rows(one), pipeline=name, explain=explain)
        schema = self._schema_to_read(one)
        given = dict(SOURCE_OPTIONS)
        if isinstance(one, Stream):
            given |= self._start(one, reader)
        else:
            given |= {**only_for(one.source_options, STREAM), "startingOffsets": "earliest"}
        proven = self._proven(one.value, schema, one.options, one.place)
        # Where the reader is sure that a value is fine, there is no letter.
        unproven = None if proven is None else StructField(UNPROVEN, proven.dataType)
        return dead_letters(
            self._read_topic(one.topic, reader, given, one.place, unproven),
            format_of(one.value, schema, one.options, one.place),
            pipeline=self.pipeline.name,
            tombstones="drop" if isinstance(one, Table) else one.tombstones,
        )

    def _schema_to_read(self, one: Stream | Table) -> Any:
        """The one that is declared, or that of the flow which writes the topic."""
        writer = self.pipeline.writer_of(one.topic)
        if one.schema is not None or writer is None:
            return one.schema
        return self._written_schema(*writer) if one.value in READ_BY_COLUMNS else None

    def _written_schema(self, flow: Flow, target: TopicTarget) -> StructType | None:
        return written_schema(self.schema_of(flow), target) if target.value in READ_BY_COLUMNS else None

    def _input(self, one: Stream | Table | View | Flow, reader: Flow) -> DataFrame:
        if isinstance(one, Stream):
            return self.stream(one, reader.name)
        if isinstance(one, Table):
            return self._table(one)
        if isinstance(one, View):
            return self._call(one, reader)
        return self._flow_output(one, reader.name)

    def _call(self, step: Flow | View, reader: Flow) -> DataFrame:
        from pyspark.sql import DataFrame

        given: dict[str, Any] = {one.name: self._input(one, reader) for one in inputs_of(self.pipeline, step)}
        try:
            if step.sql is not None:
                for name, frame in given.items():
                    frame.createOrReplaceTempView(name)
                made = step.function(self.spark)
            else:
                if SESSION in step.inputs:
                    given[SESSION] = self.spark
                made = step.function(**given)
        except PipelineError:
            raise
        except Exception as error:
            failure = explain(error, self.file)
            raise PipelineError(
                f"{step.name}: {failure.reason}", place=failure.place or step.place
            ) from error
        if not isinstance(made, DataFrame):
            raise PipelineError(
                f"{step.name} returns {type(made).__name__}", hint="return a DataFrame", place=step.place
            )
        return made


def _for_topic(rows: DataFrame, topic: str) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("topic", F.lit(topic))


def _columns(options: Mapping[str, str]) -> StructType:
    """What a topic is read as by these options."""
    with_headers = options.get("includeHeaders", "false").lower() == "true"
    return StructType([one for one in all_columns() if with_headers or one.name != "headers"])


def _check_options(options: dict[str, str], used_by: str, place: Place) -> None:
    try:
        parse(options, used_by)
    except OptionError as error:
        raise PipelineError(error.message, hint=error.hint, place=place) from None


def _with_watermark(rows: DataFrame, watermark: Watermark | None, what: str, place: Place) -> DataFrame:
    if watermark is None:
        return rows
    if watermark.column not in rows.columns:
        raise PipelineError(
            f"the watermark of {what} is on {watermark.column!r}, which is no column",
            hint=nearest(watermark.column, rows.columns),
            place=place,
        )
    kind = rows.schema[watermark.column].dataType.simpleString()
    if kind != "timestamp":
        raise PipelineError(
            f"the watermark of {what} is on {watermark.column}, which is a {kind}",
            hint="a watermark needs a timestamp",
            place=place,
        )
    return rows.withWatermark(quoted(watermark.column), watermark.delay)


def _check_columns(flow: Flow, columns: list[str]) -> None:
    """Every column that a target names must be there."""
    for target in flow.targets:
        named = (*target.key, *target.header_columns) if isinstance(target, TopicTarget) else target.columns
        for column in named:
            if column not in columns:
                raise PipelineError(
                    f"{target} of flow {flow.name} needs the column {column!r}, which it does not have",
                    hint=nearest(column, columns),
                    place=flow.place,
                )
        if not isinstance(target, TopicTarget) and not set(columns) - set(target.aside):
            raise PipelineError(
                f"{target} has no columns left beside {', '.join(target.aside)}", place=flow.place
            )
