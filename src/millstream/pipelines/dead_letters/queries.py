"""Dead letters: what of a topic does not parse, written exactly once to a topic of its own, by a query of its own.

    rows = dead_letters(records, format, pipeline="revenue", flow="totals")       # key, value, headers: what TopicSink takes
    TopicSink(bootstrap, query_name("revenue", "orders"), topic="orders.dlq").start(rows.writeStream...)

``start`` does all of that. The records are to be read with SOURCE_OPTIONS, so that their headers come along. A record that a flow
drops because of its ``_error`` is one that is found here, since both ask the same format.

Each letter says which pipeline and which flow refused the record. The flow is empty for a query that only looks for bad records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.client.admin.client import Admin
from millstream.client.dead_letters import letters as names
from millstream.client.errors import TopicExists
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
MOST_REASON_CHARACTERS = 500
# What the headers of a dead letter add to a record that was itself as large as its topic allows.
ROOM_BYTES = 64 << 10
HEADERS = "array<struct<key:string,value:binary>>"


def query_name(pipeline: str, stream: str) -> str:
    """The name of the query, and of its sink and consumer group."""
    return f"{pipeline}.dlq.{stream}"


def dead_letters(
    records: DataFrame,
    format: ValueFormat,
    *,
    pipeline: str,
    flow: str = "",
    tombstones: Tombstones | None = None,
) -> DataFrame:
    """The records that do not parse, with key and value as they were and headers that say why and where from."""
    rows = decode_records(format, records, tombstones)
    return letters(rows, pipeline=pipeline, flow=flow, explain=format.explainer())


def letters(rows: DataFrame, *, pipeline: str, flow: str = "", explain: Explain | None = None) -> DataFrame:
    """Of decoded rows those with an error, as records of a dead-letter topic; ``flow`` refuses them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    kind = rows.schema[RECORD].dataType
    assert isinstance(kind, StructType)
    bad = rows.where(f"{ERROR} IS NOT NULL").select(RECORD, ERROR)
    return bad.select(RECORD, _explained(explain).alias(ERROR)).select(
        F.col(f"{RECORD}.key").alias("key"),
        F.col(f"{RECORD}.value").alias("value"),
        _headers(pipeline, flow, elsewhere=SOURCE in kind.names).alias("headers"),
    )


def _headers(pipeline: str, flow: str, *, elsewhere: bool) -> Column:
    """``elsewhere``: the rows do not come from a topic."""
    from pyspark.sql import functions as F

    def header(name: str, value: Column) -> Column:
        return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    of = {names.REASON: F.left(F.col(ERROR), F.lit(MOST_REASON_CHARACTERS))}
    if elsewhere:
        of[names.SOURCE] = F.col(f"{RECORD}.{SOURCE}")
    else:
        of |= {
            names.TOPIC: F.col(f"{RECORD}.topic"),
            names.PARTITION: F.col(f"{RECORD}.partition"),
            names.OFFSET: F.col(f"{RECORD}.offset"),
            names.TIMESTAMP: F.unix_millis(f"{RECORD}.timestamp"),
        }
    of[names.PIPELINE] = F.lit(pipeline)
    if flow:
        of[names.FLOW] = F.lit(flow)
    ours = F.array(*[header(name, value) for name, value in of.items()]).cast(HEADERS)
    theirs = F.coalesce(F.col(f"{RECORD}.headers"), F.array().cast(HEADERS))
    # How often it was sent back is kept, and from where: a record that always comes back is seen, and stays in order.
    kept = F.filter(
        theirs,
        lambda one: ~one.getField("key").startswith(names.PREFIX) | one.getField("key").isin(*names.STAYING),
    )
    return F.concat(ours, kept)


def _explained(explain: Explain | None) -> Column:
    """The reason in better words, found in Python: only bad records get there."""
    from pyspark.sql import functions as F

    if explain is None:
        return F.col(ERROR)

    def better(values: pa.Array, errors: pa.Array) -> pa.Array:
        import pyarrow

        told = [
            error if value is None else explained(explain, value) or error
            for value, error in zip(values.to_pylist(), errors.to_pylist(), strict=True)
        ]
        return pyarrow.array(told, pyarrow.string())

    return arrow_column(better, "string", F.col(f"{RECORD}.value"), F.col(ERROR))


def explained(explain: Explain, value: bytes) -> str | None:
    """Return a better reason, or None. An error while looking for one must not fail the query: the plain reason stays.

    JSON can name half a character ("\\ud800"), which no text in UTF-8 holds: it is shown as it is written.
    """
    try:
        told = explain(value)
        return None if told is None else told.encode("utf-8", "backslashreplace").decode()
    except Exception:
        return None


def create_topic(admin: Admin, topic: str, origin: str) -> bool:
    """Make the dead-letter topic, as wide as its origin (if that is a topic), with room for a record as large as can be; False if it is
    there already."""
    if topic in admin.topics.names():
        return False
    partitions, configs = None, {}
    if origin:
        settings = admin.configs.describe("topic", origin)
        largest = next(one.value for one in settings if one.name == "max.message.bytes")
        configs = {"max.message.bytes": str(int(largest or 0) + ROOM_BYTES)}
        partitions = len(admin.topics.get(origin).partitions)
    try:
        admin.topics.create(topic, partitions=partitions, configs=configs)
    except TopicExists:
        return False  # somebody was faster
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
    """The query that writes the dead letters of one stream, started; close the sink when it has ended."""
    from millstream.spark.sink.topic_sink import TopicSink

    name = query_name(pipeline, stream)
    rows = dead_letters(records, format, pipeline=pipeline, flow=flow, tombstones=tombstones)
    writer = rows.writeStream.queryName(name).outputMode("append").option("checkpointLocation", checkpoint)
    sink = TopicSink(bootstrap, name, topic=topic)
    return sink.start(writer.trigger(availableNow=True) if once else writer), sink
