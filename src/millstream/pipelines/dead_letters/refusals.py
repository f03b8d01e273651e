"""Rows that a target rejects, as dead letters.

Rows without a key for a compacted topic are part of the batch's transaction (``reject_keyless``).
Rows that a store rejects are written to their topic exactly once, after the store has the rest of
the batch.

A store keeps the rejected rows of its last batch beside its progress, so they survive a crash
between the two. Most batches have none and cost nothing here. So this sink, unlike others, accepts
batches with gaps between them; the store makes sure that none is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.client.dead_letters import letters as names
from millstream.pipelines.dead_letters.headers import HEADERS, headers_column, row_headers
from millstream.pipelines.declare import Flow, Pipeline, Stream
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.graph import leaves
from millstream.pipelines.stores import RejectedRow, Store
from millstream.pipelines.targets import TopicTarget
from millstream.spark.sink.topic_sink import TopicSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SUFFIX = "refused"
"""Part of transactional ids, so it cannot change."""
COLUMNS = f"key binary, value binary, headers {HEADERS}, topic string"


class DeadLetterSink(TopicSink):
    """A sink that accepts gaps between batches. Any batch that is not committed is new."""

    allows_gaps = True


def needs_keys(target: TopicTarget, compacted: Collection[str]) -> bool:
    """Return whether records of a topic need keys: it is declared as compacted, or is compacted."""
    return target.needs_keys or (bool(target.key) and target.topic in compacted)


def rejected_rows_topic(
    pipeline: Pipeline, flow: Flow, compacted: Collection[str] = ()
) -> str | None:
    """Return the topic for rejected rows of a flow, or None.

    It is the dead-letter topic of the input, or of the flow if it has several inputs.
    """
    rejects = any(store.rejects_rows for store in flow.stores)
    if not rejects and not any(needs_keys(target, compacted) for target in flow.topics):
        return None
    read = list(leaves(pipeline, flow))
    if len(read) == 1 and isinstance(read[0], Stream):
        return read[0].dead_letters
    return f"{pipeline.name}.{flow.name}{names.SUFFIX}" if pipeline.dead_letters else None


def rejected_rows_origin(pipeline: Pipeline, flow: Flow) -> str:
    """Return the topic whose partitions and settings a topic of rejected rows copies, or ""."""
    read = list(leaves(pipeline, flow))
    return read[0].topic if len(read) == 1 and isinstance(read[0], Stream) else ""


def reject_keyless(
    records: DataFrame, target: TopicTarget, letters: str, pipeline: str, flow: str
) -> DataFrame:
    """Turn records without a key into dead letters of the flow that writes them."""
    from pyspark.sql import functions as F

    reason = f"{', '.join(target.key)} is null, and a compacted topic needs keys"
    fields = row_headers(reason, str(target), pipeline, flow)
    headers = headers_column({name: F.lit(value) for name, value in fields.items()})
    keyless = F.col("key").isNull()
    record_headers = F.col("headers") if "headers" in records.columns else F.lit(None)
    return records.withColumns(
        {
            "topic": F.when(keyless, letters).otherwise(F.col("topic")),
            "headers": F.when(keyless, headers).otherwise(record_headers.cast(HEADERS)),
        }
    )


class RejectedRows:
    """The rejected rows of one flow, and the dead letters of a flow that writes no topic."""

    def __init__(
        self, pipeline: str, flow: str, topic: str | None, sink: DeadLetterSink | None
    ) -> None:
        self._pipeline = pipeline
        self._flow = flow
        self._topic = topic
        self._sink = sink
        self.written = 0

    def open(self) -> None:
        if self._sink is not None:
            self._sink.open()

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def write(
        self,
        spark: SparkSession,
        batch_id: int,
        rejected: Sequence[tuple[Store, RejectedRow]],
        letters: Sequence[DataFrame | pa.Table] = (),
    ) -> None:
        """Write rejected rows and dead letters of a batch once.

        Without a topic for them the flow fails, because no row may be dropped.
        """
        if not rejected and not letters:
            return
        if self._sink is None or (rejected and self._topic is None):
            store, first = rejected[0]
            raise PipelineError(
                f"{store} rejects {len(rejected)} rows of batch {batch_id}, "
                f"the first {first.value}: {first.reason}",
                hint="set dead_letters=True, or fix the rows or the table",
            )
        self._sink.side_output = lambda session: letters
        self._sink(self._records(spark, rejected), batch_id)
        self.written += self._sink.rows_written + self._sink.side_rows

    def _records(
        self, spark: SparkSession, rejected: Iterable[tuple[Store, RejectedRow]]
    ) -> DataFrame:
        rows = [
            (
                row.key and row.key.encode(),
                row.value and row.value.encode(),
                self._headers(str(store), row.reason),
                self._topic,
            )
            for store, row in rejected
        ]
        return spark.createDataFrame(rows, COLUMNS)

    def _headers(self, store: str, reason: str) -> list[tuple[str, bytes]]:
        fields = row_headers(reason, store, self._pipeline, self._flow)
        return [(name, value.encode()) for name, value in fields.items()]
