"""The dead letters of a micro-batch, found by the parse that its flow does anyway.

While a batch runs, Spark counts the rows of a stream that do not parse, and collects the partition
and offset of the first thousand (``observe``). That costs almost nothing if every row is good.
After the batch is computed, and before its transaction ends, ``BatchDeadLetters`` reads the count:

- No bad rows: nothing to do.
- All of them were collected: the driver fetches these records and makes dead letters of them.
- There are more, or not every row was counted: a job reads the range of the batch again and finds
  the bad rows. Spark may compute a result without reading, and a LIMIT or a function of the user
  may end before the last row.

Counts may be too high, because a repeated task counts again. They are never too low if every row
was counted. Dead letters are identified by their offsets, so each bad record gives one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.client.dead_letters import letters as names
from millstream.core.types import TopicPartition
from millstream.pipelines.dead_letters.headers import MAX_REASON_CHARACTERS
from millstream.pipelines.dead_letters.queries import explained
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import ERROR, RECORD, Explain
from millstream.spark.source.offsets import Offset, Range, ranges_between
from millstream.spark.source.records_at import StoredRecord, records_at

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("millstream.pipelines")

METRIC = "millstream.dead_letters."
MAX_COLLECTED = 1000
# Nodes of a plan that may end before every row was read.
LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Tail", "Offset", "GlobalLimitAndOffset"})
# Functions of the user that get an iterator over batches, and may return before its end.
FUNCTIONS = frozenset({"MapInPandas", "MapInArrow", "MapPartitions"})


class BadRecord(NamedTuple):
    """A record that does not parse."""

    partition: int
    offset: int
    error: str


class RowCounts(NamedTuple):
    """The numbers of decoded and of bad rows of a stream in a batch, and the first bad rows."""

    rows: int
    bad: int
    first: tuple[BadRecord, ...] = ()


NO_ROWS = RowCounts(0, 0)


@dataclass(frozen=True)
class OwnedStream:
    """A stream whose dead letters a flow writes."""

    name: str
    dead_letter_topic: str
    """The topic of the dead letters."""
    metrics: Sequence[str]
    """The metrics of the stream in the plan of the flow, one for each time the flow reads it."""
    explain: Explain | None
    topic: str
    """Empty if the rows do not come from a topic."""
    options: Mapping[str, str]
    """The options to read its topic."""
    read_again: Callable[[Sequence[Range]], DataFrame]
    """Return the dead letters of ranges of its topic, found by a job."""
    of_rows: Callable[[DataFrame], DataFrame]
    """Return the dead letters among decoded rows."""


def observed(rows: DataFrame, metric: str, *, by_offset: bool) -> DataFrame:
    """Count decoded rows while they pass. ``by_offset``: they are records of a topic."""
    from pyspark.sql import functions as F

    bad = F.col(ERROR).isNotNull()
    count = F.count(F.lit(1)).alias("rows")
    if not by_offset:
        # Counted so that Spark keeps the column for ``_of_rows``. It is null for good rows.
        kept = rows.withColumn(_BAD, F.when(bad, F.col(RECORD)))
        return kept.observe(metric, count, F.count(_BAD).alias("bad")).drop(_BAD)
    place = F.struct(F.col(f"{RECORD}.partition").alias("p"), F.col(f"{RECORD}.offset").alias("o"))
    reason = F.left(F.col(ERROR), F.lit(MAX_REASON_CHARACTERS))
    record = F.when(bad, F.struct(place.alias("at"), reason.alias("error")))
    first = F.expr(f"min_by({_BAD}, {_PLACE}, {MAX_COLLECTED})").alias("named")
    return (
        rows.withColumns({_BAD: record, _PLACE: F.when(bad, place)})
        .observe(metric, count, F.count(_BAD).alias("bad"), first)
        .drop(_BAD, _PLACE)
    )


_BAD, _PLACE = "_bad_record", "_bad_place"


class BatchDeadLetters:
    """Finds the dead letters of the batches of one flow."""

    def __init__(self, pipeline: str, flow: str, streams: Sequence[OwnedStream]) -> None:
        self._pipeline = pipeline
        self._flow = flow
        self.streams = streams
        self._nodes: frozenset[str] | None = None
        """The names of the nodes in the plan of the flow."""

    def of_batch(self, spark: SparkSession, execution: Any) -> Iterator[DataFrame | pa.Table]:
        """Yield the dead letters of a computed batch, with a column for their topic.

        ``execution`` is the plan of the batch (``IncrementalExecution``).
        """
        metrics = execution.observedMetrics()
        for stream in self.streams:
            counts = max((read_metric(metrics, name) for name in stream.metrics), default=NO_ROWS)
            if counts.rows and not counts.bad and self._counted_all(execution, stream, counts):
                continue
            letters = self._letters_of(spark, execution, stream, counts)
            if letters is not None:
                yield letters

    def _counted_all(self, execution: Any, stream: OwnedStream, counts: RowCounts) -> bool:
        """Return whether every row of the batch was counted."""
        if self._nodes is None:
            self._nodes = frozenset(node.nodeName() for node in _nodes(execution.logical()))
        if self._nodes & LIMITS:
            return False
        if not self._nodes & FUNCTIONS:
            return True
        ranges = _ranges_read(execution, stream.metrics) if stream.topic else []
        # Offsets without a row, such as transaction markers, only cost another read.
        return counts.rows == sum(range.end - range.start for range in ranges)

    def _letters_of(
        self, spark: SparkSession, execution: Any, stream: OwnedStream, counts: RowCounts
    ) -> DataFrame | pa.Table | None:
        if not stream.topic:
            return self._of_rows(spark, execution, stream)
        if (
            counts.bad
            and len(counts.first) == counts.bad
            and self._counted_all(execution, stream, counts)
        ):
            return self._of_first(stream, counts.first)
        ranges = _ranges_read(execution, stream.metrics)
        return stream.read_again(ranges) if ranges else None

    def _of_first(self, stream: OwnedStream, bad: Sequence[BadRecord]) -> pa.Table | None:
        """Return the dead letters of a few records, made in the driver."""
        errors = {(record.partition, record.offset): record.error for record in bad}
        offsets: dict[TopicPartition, list[int]] = {}
        for partition, offset in sorted(errors):
            offsets.setdefault(TopicPartition(stream.topic, partition), []).append(offset)
        records = list(records_at(stream.options, offsets))
        if len(records) < len(errors):
            logger.warning(
                "flow %s: %d bad records of %s were deleted from the topic before they became dead letters",
                self._flow,
                len(errors) - len(records),
                stream.topic,
            )
        return self._table(
            stream, [(record, errors[record.partition, record.offset]) for record in records]
        )

    def _table(
        self, stream: OwnedStream, bad: Sequence[tuple[StoredRecord, str]]
    ) -> pa.Table | None:
        import pyarrow as pa

        if not bad:
            return None
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        headers = [self._headers(stream, record, error) for record, error in bad]
        columns = {
            "key": pa.array([record.key for record, _ in bad], pa.binary()),
            "value": pa.array([record.value for record, _ in bad], pa.binary()),
            "headers": pa.array(headers, pa.list_(header)),
            "topic": pa.array([stream.dead_letter_topic] * len(bad), pa.string()),
        }
        return pa.table(columns)

    def _headers(
        self, stream: OwnedStream, record: StoredRecord, error: str
    ) -> list[dict[str, str | bytes | None]]:
        better = None
        if stream.explain is not None and record.value is not None:
            better = explained(stream.explain, record.value)
        headers = {
            names.REASON: (better or error)[:MAX_REASON_CHARACTERS],
            names.TOPIC: record.topic,
            names.PARTITION: str(record.partition),
            names.OFFSET: str(record.offset),
            names.TIMESTAMP: str(record.timestamp_ms),
            names.PIPELINE: self._pipeline,
            names.FLOW: self._flow,
        }
        kept = [
            (name, value)
            for name, value in record.headers
            if not name.startswith(names.PREFIX) or name in names.STAYING
        ]
        pairs = [*((name, value.encode()) for name, value in headers.items()), *kept]
        return [{"key": name, "value": value} for name, value in pairs]

    def _of_rows(
        self, spark: SparkSession, execution: Any, stream: OwnedStream
    ) -> DataFrame | None:
        """Return the dead letters of rows that do not come from a topic.

        The part of the plan that decodes the rows runs again.
        """
        if not _has_input(execution, stream.metrics):
            return None
        node = next(
            (node for node in _physical_nodes(execution) if _is_metric(node, stream.metrics)), None
        )
        if node is None:
            raise PipelineError(
                f"flow {self._flow} never reads the rows of {stream.name}, so bad rows cannot be found",
                hint="let the flow read the stream, or declare it with dead_letters=False",
            )
        rows = _as_frame(spark, execution, node.child()).where(f"{_BAD} IS NOT NULL")
        return stream.of_rows(rows.selectExpr(f"{_BAD} AS {RECORD}", ERROR))


# ---- Spark's objects ----


def read_metric(metrics: Any, name: str) -> RowCounts:
    """Return the counts of a metric in Spark's map."""
    metric = metrics.get(name)
    if metric.isEmpty():
        return NO_ROWS
    row = json.loads(metric.get().json())
    named = tuple(
        BadRecord(record["at"]["p"], record["at"]["o"], record.get("error", ""))
        for record in row.get("named") or ()
    )
    return RowCounts(row["rows"], row["bad"], named)


def observes(rows: DataFrame, metrics: Sequence[str]) -> bool:
    """Return whether the plan of these rows has one of the metrics."""
    plan = rows._jdf.queryExecution().analyzed()
    return any(_is_metric(node, metrics) for node in _nodes(plan))


def _children(node: Any) -> Iterator[Any]:
    children = node.children()
    for at in range(children.size()):
        yield children.apply(at)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _physical_nodes(execution: Any) -> Iterator[Any]:
    yield from _through_stages(execution.executedPlan())


def _through_stages(node: Any) -> Iterator[Any]:
    """Yield the nodes of a physical plan, also those inside adaptive plans and their stages."""
    yield node
    kind = node.getClass().getSimpleName()
    if kind == "AdaptiveSparkPlanExec":
        yield from _through_stages(node.executedPlan())
    elif kind.endswith("QueryStageExec"):
        yield from _through_stages(node.plan())
    for child in _children(node):
        yield from _through_stages(child)


def _is_metric(node: Any, metrics: Sequence[str]) -> bool:
    return node.nodeName() == "CollectMetrics" and node.name() in metrics


def _scans(execution: Any, metrics: Sequence[str]) -> Iterator[Any]:
    """Yield the scans of a batch below its metrics; none if it only advances the watermark."""
    for node in _nodes(execution.logical()):
        if _is_metric(node, metrics):
            leaves = node.collectLeaves()
            for at in range(leaves.size()):
                leaf = leaves.apply(at)
                if leaf.getClass().getSimpleName() != "LocalRelation":
                    yield leaf


def _has_input(execution: Any, metrics: Sequence[str]) -> bool:
    return any(True for _ in _scans(execution, metrics))


def _ranges_read(execution: Any, metrics: Sequence[str]) -> list[Range]:
    """Return the offsets of a topic that a batch reads."""
    ranges: set[Range] = set()
    for leaf in _scans(execution, metrics):
        start, end = (
            Offset.parse(offset.get().json()) for offset in (leaf.startOffset(), leaf.endOffset())
        )
        ranges.update(ranges_between(start, end))
    return sorted(ranges)


def _as_frame(spark: SparkSession, execution: Any, plan: Any) -> DataFrame:
    """Return the rows of a part of a physical plan."""
    from pyspark.sql import DataFrame

    frame = execution.sparkSession().internalCreateDataFrame(plan.execute(), plan.schema(), False)
    return DataFrame(frame, spark)
