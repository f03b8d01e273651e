"""The rows that a sink takes: columns named as in Spark's Kafka sink, checked once on the driver and brought into one shape.

``value`` is required; ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp`` are used when they are there. Other columns are ignored, so
that what was read can be written again. A topic given to the sink wins over the column, as it does in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.spark.failures import RowRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
# column -> the types it may have
TYPES: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def shaped(batch: DataFrame, topic: str | None) -> DataFrame:
    """The columns that count, as bytes and numbers; raises RowRefused where one is missing or of another type."""
    found = find_columns(batch.schema, topic)
    return batch.select(*(_column(name, actual) for name, actual in found.items()))


def find_columns(schema: StructType, topic: str | None) -> dict[str, str]:
    """Our columns that are there, whatever the case of their names, and the names they have."""
    found: dict[str, str] = {}
    for field in schema.fields:
        name = field.name.lower()
        shown = field.dataType.simpleString()
        if name not in TYPES or shown == "void" or (name == "topic" and topic is not None):
            continue
        if shown.split("(")[0].split(" ")[0] not in TYPES[name] and shown not in TYPES[name]:
            raise RowRefused(
                f"the column {field.name!r} is {shown}", hint=f"it must be {' or '.join(TYPES[name])}"
            )
        found[name] = field.name
    if "value" not in found:
        raise RowRefused(
            f"the column 'value' is missing (there are {', '.join(map(repr, schema.names)) or 'none'})",
            hint="name what is to be sent 'value', for example with to_json(struct(*)) AS value",
        )
    if topic is None and "topic" not in found:
        raise RowRefused(
            "nobody says which topic the rows are for",
            hint="give the sink a topic, or the rows a column 'topic'",
        )
    return found


def _column(name: str, actual: str) -> Column:
    from pyspark.sql import functions as F

    column = F.col(f"`{actual}`")
    if name in ("value", "key"):
        return column.cast("binary").alias(name)
    if name == "partition":
        return column.cast("int").alias(name)
    if name == "timestamp":
        return F.unix_millis(column.cast("timestamp")).alias(name)
    return column.alias(name)


def shaped_arrow(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """The same for rows that are in Arrow already; ``columns`` come from ``find_columns``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = []
    for name, actual in columns.items():
        column = batch.column(batch.schema.get_field_index(actual))
        if name in ("value", "key"):
            column = pc.cast(column, pa.binary())
        elif name == "partition":
            column = pc.cast(column, pa.int32())
        elif name == "timestamp":
            column = pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False), pa.int64())
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
