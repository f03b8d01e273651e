"""Writes the records of a topic that do not parse exactly once to a dead-letter topic.

    rows = dead_letters(records, format, pipeline="revenue", flow="totals")
    sink = TopicSink(bootstrap, query_name("revenue", "orders"), topic="orders.dlq")
    sink.start(rows.writeStream...)

``start`` does all of that. The records must be read with SOURCE_OPTIONS, so that they have their
headers. Flows and this query use the same format, so they agree about bad records.

Each dead letter names the pipeline and the flow that rejected the record. The flow is empty for a
query that only looks for bad records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.client.admin.client import Admin
from millstream.client.errors import TopicExists
from millstream.pipelines.dead_letters.headers import record_headers
from millstream.pipelines.formats.arrow_functions import arrow_column
from millstream.pipelines.formats.registry import (
    ERROR,
    RECORD,
    Explain,
    Tombstones,
    ValueFormat,
    decode_records,
)
from millstream.pipelines.origins import SOURCE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.spark.sink.topic_sink import TopicSink

SOURCE_OPTIONS = {"includeHeaders": "true"}
# Room for the headers of a dead letter, in addition to the maximum size of a record.
HEADER_ROOM_BYTES = 64 << 10


def query_name(pipeline: str, stream: str) -> str:
    """Return the name of the query, and of its sink and consumer group."""
    return f"{pipeline}.dlq.{stream}"


def dead_letters(
    records: DataFrame,
    format: ValueFormat,
    *,
    pipeline: str,
    flow: str = "",
    tombstones: Tombstones | None = None,
) -> DataFrame:
    """Return the records that do not parse, with their key and value and headers for the reason."""
    rows = decode_records(format, records, tombstones)
    return to_dead_letters(rows, pipeline=pipeline, flow=flow, explain=format.explainer())


def to_dead_letters(
    rows: DataFrame, *, pipeline: str, flow: str = "", explain: Explain | None = None
) -> DataFrame:
    """Return the decoded rows with an error as dead letters that ``flow`` rejected."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    kind = rows.schema[RECORD].dataType
    assert isinstance(kind, StructType)
    bad = rows.where(f"{ERROR} IS NOT NULL").select(RECORD, ERROR)
    return bad.select(RECORD, _explained(explain).alias(ERROR)).select(
        F.col(f"{RECORD}.key").alias("key"),
        F.col(f"{RECORD}.value").alias("value"),
        record_headers(pipeline, flow, elsewhere=SOURCE in kind.names).alias("headers"),
    )


def _explained(explain: Explain | None) -> Column:
    """Return a better reason, found in Python. Only bad records get there."""
    from pyspark.sql import functions as F

    if explain is None:
        return F.col(ERROR)

    def better(values: pa.Array, errors: pa.Array) -> pa.Array:
        import pyarrow

        reasons = [
            error if value is None else explained(explain, value) or error
            for value, error in zip(values.to_pylist(), errors.to_pylist(), strict=True)
        ]
        return pyarrow.array(reasons, pyarrow.string())

    return arrow_column(better, "string", F.col(f"{RECORD}.value"), F.col(ERROR))


def explained(explain: Explain, value: bytes) -> str | None:
    """Return a better reason, or None. An error in ``explain`` must not fail the query.

    JSON can have half of a surrogate pair ("\\ud800"), which UTF-8 cannot encode. It is escaped.
    """
    try:
        reason = explain(value)
        return None if reason is None else reason.encode("utf-8", "backslashreplace").decode()
    except Exception:
        return None


def create_topic(admin: Admin, topic: str, origin: str) -> bool:
    """Create a dead-letter topic, and return False if it already exists.

    It has as many partitions as its origin (if that is a topic), and room for the largest records.
    """
    if topic in admin.topics.names():
        return False
    partitions, configs = None, {}
    if origin:
        settings = admin.configs.describe("topic", origin)
        largest = next(setting.value for setting in settings if setting.name == "max.message.bytes")
        configs = {"max.message.bytes": str(int(largest or 0) + HEADER_ROOM_BYTES)}
        partitions = len(admin.topics.get(origin).partitions)
    try:
        admin.topics.create(topic, partitions=partitions, configs=configs)
    except TopicExists:
        # Another process was faster.
        return False
    return True


def start(
    records: DataFrame,
    format: ValueFormat,
    *,
    bootstrap: str,
    pipeline: str,
    stream: str,
    topic: str,
    checkpoint: str,
    once: bool = False,
    flow: str = "",
    tombstones: Tombstones | None = None,
) -> tuple[StreamingQuery, TopicSink]:
    """Start the query that writes the dead letters of one stream. The caller closes the sink."""
    from millstream.spark.sink.topic_sink import TopicSink

    name = query_name(pipeline, stream)
    rows = dead_letters(records, format, pipeline=pipeline, flow=flow, tombstones=tombstones)
    writer = (
        rows.writeStream.queryName(name)
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
    )
    sink = TopicSink(bootstrap, name, topic=topic)
    return sink.start(writer.trigger(availableNow=True) if once else writer), sink
