"""The dead letters of streams and tables as DataFrames.

The flow that owns the dead letters of a stream counts bad records while it reads
(``dead_letters.batches``). Streams without such a flow, and tables, have a query for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.pipelines.dead_letters.batches import METRIC, OwnedStream, observed
from millstream.pipelines.dead_letters.ownership import DeadLetterOwner
from millstream.pipelines.dead_letters.queries import dead_letters, to_dead_letters
from millstream.pipelines.declare import Flow, Stream, Table
from millstream.pipelines.formats.codec import format_of
from millstream.pipelines.formats.registry import Explain, ValueFormat
from millstream.pipelines.frames.topic_reader import TopicReader
from millstream.spark.options import BATCH, only_for
from millstream.spark.source.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Schema = Callable[[Stream | Table], Any]


class DeadLetterFrames:
    """Counts bad records in the plans of flows, and makes dead letters of them."""

    def __init__(
        self, topics: TopicReader, owners: Mapping[str, DeadLetterOwner], schema: Schema
    ) -> None:
        self._topics = topics
        self._pipeline = topics.pipeline.name
        self._owners = owners
        self._schema = schema
        self._metrics: dict[str, list[str]] = {}

    def change_owners(self, owners: Mapping[str, DeadLetterOwner]) -> set[str]:
        """Change the owners of dead letters, and return the flows that gained or lost a stream."""
        before, self._owners = self._owners, owners
        names = [
            name for name in before.keys() | owners.keys() if before.get(name) != owners.get(name)
        ]
        return {
            owned.flow for name in names for owned in (before.get(name), owners.get(name)) if owned
        }

    def owns(self, flow: str, stream: str) -> bool:
        owned = self._owners.get(stream)
        return owned is not None and owned.flow == flow

    def metrics(self, stream: str) -> Sequence[str]:
        """Return the metrics that count the bad records of a stream."""
        return self._metrics.get(stream, ())

    def forget(self, flow: str) -> None:
        """Drop the metrics of a flow that is built again."""
        for name, owned in self._owners.items():
            if owned.flow == flow:
                self._metrics.pop(name, None)

    def observe(self, rows: DataFrame, name: str, flow: str) -> DataFrame:
        """Count the decoded rows of a stream, if ``flow`` owns its dead letters."""
        if not self.owns(flow, name):
            return rows
        metrics = self._metrics.setdefault(name, [])
        metrics.append(f"{METRIC}{name}.{len(metrics)}")
        return observed(rows, metrics[-1], by_offset=self._owners[name].stream.origin is None)

    def owned_by(self, flow: Flow) -> list[OwnedStream]:
        """Return the streams whose dead letters a flow writes. The flow has been built."""
        return [
            self._owned(name, owned.stream, flow.name)
            for name, owned in self._owners.items()
            if owned.flow == flow.name
        ]

    def query(self, source: Stream | Table, flow: str) -> DataFrame:
        """Return the bad records of a stream or table. A table's tombstones are good."""
        if isinstance(source, Stream) and source.origin is not None:
            explain = source.origin.explainer()
            return to_dead_letters(
                self._topics.origin(source), pipeline=self._pipeline, explain=explain
            )
        return dead_letters(
            self._topics.unparsed(source, flow, self._schema(source)),
            self._format(source),
            pipeline=self._pipeline,
            tombstones="drop" if isinstance(source, Table) else source.tombstones,
        )

    def _owned(self, name: str, stream: Stream, flow: str) -> OwnedStream:
        topic = stream.dead_letters
        assert topic is not None
        explain = self._explainer(stream)
        anywhere = {
            option: value
            for option, value in only_for(stream.source_options, BATCH).items()
            if not option.lower().startswith(("starting", "ending"))
        }
        options = {**self._topics.job_options(), **anywhere}

        def read_again(ranges: Sequence[Range]) -> DataFrame:
            records = self._topics.between(stream, self._schema(stream), options, ranges)
            rejected = dead_letters(
                records,
                self._format(stream),
                pipeline=self._pipeline,
                flow=flow,
                tombstones=stream.tombstones,
            )
            return _for_topic(rejected, topic)

        def of_rows(rows: DataFrame) -> DataFrame:
            return _for_topic(
                to_dead_letters(rows, pipeline=self._pipeline, flow=flow, explain=explain), topic
            )

        metrics = tuple(self.metrics(name))
        return OwnedStream(
            name, topic, metrics, explain, stream.topic, options, read_again, of_rows
        )

    def _explainer(self, stream: Stream) -> Explain | None:
        if stream.origin is not None:
            return stream.origin.explainer()
        return self._format(stream).explainer()

    def _format(self, source: Stream | Table) -> ValueFormat:
        return format_of(source.value, self._schema(source), source.options, source.place)


def _for_topic(rows: DataFrame, topic: str) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("topic", F.lit(topic))
