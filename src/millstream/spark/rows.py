"""The rows that a sink takes: columns named as in Spark's Kafka sink, checked once on the driver and brought into one shape.

``value`` is required; ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp`` are used when they are there. Other columns are ignored, so
that what was read can be written again. A topic given to the sink wins over the column, as it does in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.spark.failures import RowRefused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    found = _found(batch)
    if "value" not in found:
        raise RowRefused(
            f"the column 'value' is missing (there are {', '.join(map(repr, batch.columns)) or 'none'})",
            hint="name what is to be sent 'value', for example with to_json(struct(*)) AS value",
        )
    if topic is None and "topic" not in found:
        raise RowRefused(
            "nobody says which topic the rows are for",
            hint="give the sink a topic, or the rows a column 'topic'",
        )
    wanted = [name for name in TYPES if name in found and (name != "topic" or topic is None)]
    return batch.select(*(_column(name, found[name]) for name in wanted))


def _found(batch: DataFrame) -> dict[str, str]:
    """Our columns, whatever the case of their names, and the names they have."""
    found = {}
    for field in batch.schema.fields:
        name = field.name.lower()
        if name not in TYPES or field.dataType.simpleString() == "void":
            continue
        shown = field.dataType.simpleString()
        if shown.split("(")[0].split(" ")[0] not in TYPES[name] and shown not in TYPES[name]:
            raise RowRefused(
                f"the column {field.name!r} is {shown}", hint=f"it must be {' or '.join(TYPES[name])}"
            )
        found[name] = field.name
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
