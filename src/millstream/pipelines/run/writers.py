"""Makes the writer of each flow: its stores, its topics, and the topics of its dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.pipelines.dead_letters.batches import BatchDeadLetters
from millstream.pipelines.dead_letters.refusals import (
    SUFFIX,
    DeadLetterSink,
    RejectedRows,
    needs_keys,
    reject_keyless,
    rejected_rows_topic,
)
from millstream.pipelines.declare import Flow, Pipeline
from millstream.pipelines.formats.codec import encoded
from millstream.pipelines.run.flow_writer import FlowWriter
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.targets import TopicTarget
from millstream.spark.options import SINK, only_for
from millstream.spark.sink.progress import Progress
from millstream.spark.sink.topic_sink import TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.frames.builder import Frames

Sink = TypeVar("Sink", bound=TopicSink)


class WriterFactory:
    """Makes sinks and writers for the flows of one run."""

    def __init__(self, layout: Layout, options: RunOptions) -> None:
        self._layout = layout
        self._options = options
        self.compacted: set[str] = set()
        """Topics that are known to be compacted."""

    def writer(self, frames: Frames, flow: Flow) -> FlowWriter:
        """Return the writer of a flow. It is not open yet."""
        pipeline = frames.pipeline
        sink_id = f"{pipeline.name}.{flow.name}"
        reset = self._options.reset_progress
        stores = [(store, store.sink(sink_id, reset_progress=reset)) for store in flow.stores]
        letters = rejected_rows_topic(pipeline, flow, self.compacted)

        def reject(records: DataFrame, target: TopicTarget) -> DataFrame:
            if letters is None or not needs_keys(target, self.compacted):
                return records
            return reject_keyless(records, target, letters, pipeline.name, flow.name)

        def encode(batch: DataFrame) -> DataFrame:
            return encoded(batch, flow.topics, frames.schema_of(flow), flow.place, reject)

        # Building the flow also finds the streams that it counts bad records of.
        frames.build(flow)
        owned = frames.owned_by(flow)
        names = [target.topic for target in flow.topics] + ([] if letters is None else [letters])
        names += [
            stream.dead_letter_topic for stream in owned if stream.dead_letter_topic not in names
        ]
        topics = self._topic_sink(pipeline, TopicSink, sink_id, names) if flow.topics else None
        owned_topics = [] if flow.topics else [stream.dead_letter_topic for stream in owned]
        return FlowWriter(
            flow.name,
            self._layout.checkpoint(flow.name),
            stores,
            topics,
            encode,
            self._rejected_rows(pipeline, flow, sink_id, owned_topics),
            BatchDeadLetters(pipeline.name, flow.name, owned),
        )

    def fence(self, pipeline: Pipeline, flow: str) -> tuple[Progress | None, Progress | None]:
        """Fence the sinks of a flow, and return the last batches that they committed.

        These are the batches in its topics, and in its sink for dead letters.
        """
        sink_id = f"{pipeline.name}.{flow}"
        return self._fence(pipeline, sink_id), self._fence(pipeline, f"{sink_id}.{SUFFIX}")

    def _fence(self, pipeline: Pipeline, sink_id: str) -> Progress | None:
        sink = self._topic_sink(pipeline, TopicSink, sink_id)
        try:
            sink.open()
            return sink.progress
        finally:
            sink.close()

    def _rejected_rows(
        self, pipeline: Pipeline, flow: Flow, sink_id: str, letters: Sequence[str]
    ) -> RejectedRows:
        """Return the writer of rejected rows.

        ``letters`` are the topics for dead letters of a flow that writes no other topic.
        """
        rejects = any(store.rejects_rows for store in flow.stores)
        name = rejected_rows_topic(pipeline, flow) if rejects else None
        topics = [*letters, *([name] if name is not None and name not in letters else [])]
        sink = (
            self._topic_sink(pipeline, DeadLetterSink, f"{sink_id}.{SUFFIX}", topics)
            if topics
            else None
        )
        return RejectedRows(pipeline.name, flow.name, name, sink)

    def _topic_sink(
        self, pipeline: Pipeline, kind: type[Sink], sink_id: str, topics: Sequence[str] = ()
    ) -> Sink:
        return kind(
            pipeline.bootstrap,
            sink_id,
            topic=None,
            topics=topics,
            delivery=pipeline.delivery,
            options=only_for({name: str(value) for name, value in pipeline.options.items()}, SINK),
            reset_progress=self._options.reset_progress,
        )
