"""Topics and other origins as DataFrames of records that are not decoded yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from millstream.pipelines.dead_letters.queries import SOURCE_OPTIONS
from millstream.pipelines.declare import Pipeline, Stream, Table
from millstream.pipelines.errors import PipelineError, SourceLine
from millstream.pipelines.formats.codec import errors_at, format_of
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

TIME_RULES = "spark.sql.legacy.timeParserPolicy"


class TopicReader:
    """The sources of one pipeline in one session, each loaded once.

    Spark starts a Python process to get the schema of a source, so DataFrames are cached by their
    options.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, *, batch: bool = False) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.batch = batch
        """Read the records that exist now, instead of a stream."""
        self._loaded: dict[tuple[tuple[str, str], ...], DataFrame] = {}
        self._starts: dict[tuple[str, str], str] = {}
        """``startingOffsets`` by stream and flow, if they differ from the stream's declaration."""
        register(spark, TableSource)

    def start_at(self, stream: str, flow: str, start: str) -> bool:
        """Set ``startingOffsets`` of a stream for a flow, and return whether that is a change."""
        changed = self._starts.get((stream, flow)) != start
        self._starts[stream, flow] = start
        return changed

    def stream(self, stream: Stream, flow: str, schema: Any) -> DataFrame:
        """Return the records of a stream as a flow reads them."""
        parsed = self._parsed_column(stream.value, schema, stream.options, stream.place)
        return self._topic(
            stream.topic, flow, self._start_options(stream, flow), stream.place, parsed
        )

    def written(self, target: TopicTarget, flow: str, schema: Any, place: SourceLine) -> DataFrame:
        """Return the records of a topic that another flow writes, from its beginning."""
        parsed = self._parsed_column(target.value, schema, target.options, place)
        return self._topic(target.topic, flow, {"startingOffsets": "earliest"}, place, parsed)

    def table(self, table: Table) -> DataFrame:
        """Return the latest record of each key of a table."""
        options = {**self.job_options(), "subscribe": table.topic, **table.source_options}
        _check_options(options, BATCH, table.place)
        return self._load(self.spark.read, FORMAT, options)

    def origin(self, stream: Stream) -> DataFrame:
        """Return the decoded rows of a stream that is not a topic, with and without errors."""
        assert stream.origin is not None
        key = (("origin", stream.name),)
        if key not in self._loaded:
            with errors_at(stream.place):
                self._loaded[key] = stream.origin.rows(self.spark)
        return self._loaded[key]

    def unparsed(self, source: Stream | Table, flow: str, schema: Any) -> DataFrame:
        """Return the records of a stream or table for a query that looks for bad ones."""
        options = dict(SOURCE_OPTIONS)
        if isinstance(source, Stream):
            options |= self._start_options(source, flow)
        else:
            options |= {**only_for(source.source_options, STREAM), "startingOffsets": "earliest"}
        parsed = self._parsed_column(source.value, schema, source.options, source.place)
        # The source leaves out values that certainly parse, if the column has this name.
        unproven = None if parsed is None else StructField(UNPROVEN, parsed.dataType)
        return self._topic(source.topic, flow, options, source.place, unproven)

    def between(
        self, stream: Stream, schema: Any, options: Mapping[str, str], ranges: Sequence[Range]
    ) -> DataFrame:
        """Return the records of these ranges of a stream's topic, for a job."""
        topic = stream.topic
        numbered = {str(range.partition.partition): range for range in ranges}
        chosen = {
            **options,
            **SOURCE_OPTIONS,
            "assign": json.dumps({topic: [int(number) for number in numbered]}),
            "startingOffsets": json.dumps(
                {topic: {n: range.start for n, range in numbered.items()}}
            ),
            "endingOffsets": json.dumps({topic: {n: range.end for n, range in numbered.items()}}),
            "failOnDataLoss": "false",
        }
        parsed = self._parsed_column(stream.value, schema, stream.options, stream.place)
        reader = self.spark.read.format("millstream").options(**chosen)
        if parsed is not None:
            reader = reader.schema(_columns(chosen).add(StructField(UNPROVEN, parsed.dataType)))
        return reader.load()

    def declared_options(self, stream: Stream, flow: str) -> dict[str, str]:
        """Return the options to read a stream from its declared start."""
        declared = {"startingOffsets": stream.starting, **stream.source_options}
        return self._stream_options(stream.topic, flow, declared, stream.place)

    def job_options(self) -> dict[str, str]:
        """Return the options of the pipeline that apply to jobs."""
        return {
            **only_for(self._pipeline_options, BATCH),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
        }

    def _start_options(self, stream: Stream, flow: str) -> dict[str, str]:
        start = self._starts.get((stream.name, flow))
        if start is None:
            return {"startingOffsets": stream.starting, **stream.source_options}
        return {**without_start(stream.source_options), "startingOffsets": start}

    @property
    def _pipeline_options(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.pipeline.options.items()}

    def _parsed_column(
        self, value: str, schema: Any, options: Mapping[str, Any], place: SourceLine
    ) -> StructField | None:
        """Return the column for values that the source parses itself, or None.

        The format, the schema and the session have to allow it.
        """
        with errors_at(place):
            column = format_of(value, schema, options, place).proven_column()
        # The legacy policy has other rules for fractions of seconds and for years before 1582.
        legacy = (
            column is not None and str(self.spark.conf.get(TIME_RULES, None)).upper() == "LEGACY"
        )
        return None if legacy else column

    def _topic(
        self,
        topic: str,
        flow: str,
        options: Mapping[str, str],
        place: SourceLine,
        parsed: StructField | None,
    ) -> DataFrame:
        if self.batch:
            return self._all_records(topic, options, place, parsed)
        chosen = self._stream_options(topic, flow, options, place)
        return self._load(self.spark.readStream, "millstream", chosen, parsed)

    def _stream_options(
        self, topic: str, flow: str, options: Mapping[str, str], place: SourceLine
    ) -> dict[str, str]:
        chosen = {
            **only_for(self._pipeline_options, STREAM),
            "kafka.bootstrap.servers": self.pipeline.bootstrap,
            "subscribe": topic,
            "groupId": f"{self.pipeline.name}.{flow}",
            **options,
        }
        _check_options(chosen, STREAM, place)
        return without_overridden(chosen)

    def _all_records(
        self, topic: str, options: Mapping[str, str], place: SourceLine, parsed: StructField | None
    ) -> DataFrame:
        """Return the records of a whole topic. The start that a stream declares does not matter."""
        chosen = {
            **self.job_options(),
            "subscribe": topic,
            **only_for(options, BATCH),
            "startingOffsets": "earliest",
        }
        _check_options(chosen, BATCH, place)
        return self._load(self.spark.read, "millstream", without_overridden(chosen), parsed)

    def _load(
        self, reader: Any, source: str, options: dict[str, str], parsed: StructField | None = None
    ) -> DataFrame:
        column = () if parsed is None else (("parsed", parsed.json()),)
        key = (("source", source), *column, *sorted(options.items()))
        if key not in self._loaded:
            chosen = reader.format(source).options(**options)
            if parsed is not None:
                chosen = chosen.schema(_columns(options).add(parsed))
            self._loaded[key] = chosen.load()
        return self._loaded[key]


def _columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a topic that is read with these options."""
    with_headers = options.get("includeHeaders", "false").lower() == "true"
    return StructType([field for field in all_columns() if with_headers or field.name != "headers"])


def _check_options(options: dict[str, str], used_by: str, place: SourceLine) -> None:
    try:
        parse(options, used_by)
    except OptionError as error:
        raise PipelineError(error.message, hint=error.hint, place=place) from None
