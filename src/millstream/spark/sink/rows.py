"""The rows that a sink takes: columns named as in Spark's Kafka sink, checked once on the driver and brought into one shape.

``value`` is required; ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp`` are used when they are there. Other columns are ignored, so
that what was read can be written again. A topic given to the sink wins over the column, as it does in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.spark.sink.failures import RowRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
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


class Shape:
    """Leaves out the columns that nobody wants. The schema is looked at when it changes, which is once."""

    def __init__(self, topic: str | None) -> None:
        self.columns: dict[str, str] = {}
        self._topic = topic
        self._schema: int | None = None
        self._others = False

    def of(self, batch: DataFrame) -> DataFrame:
        """Raises RowRefused where a column is missing or of another type. ``columns`` then says what each is called."""
        schema = batch._jdf.schema().hashCode()
        if schema != self._schema:
            self.columns = find_columns(batch.schema, self._topic)
            self._others = len(self.columns) < len(batch.columns)
            self._schema = schema
        if not self._others:  # which saves Spark a plan
            return batch
        return batch.select(*("`" + name.replace("`", "``") + "`" for name in self.columns.values()))


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


def shaped_arrow(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """The columns that count, under our names, as bytes and numbers; ``columns`` come from ``find_columns``."""
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
