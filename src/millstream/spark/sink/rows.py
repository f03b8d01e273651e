"""The columns that a sink takes: named as in Spark's Kafka sink, and checked once on the driver.

``value`` is required; ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp`` are used if
they exist. Other columns are ignored, so that rows from a topic can be written again. A topic set
on the sink overrides the column, as it does in Spark.
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


class ColumnSelection:
    """Selects the columns that a sink writes. Checks the schema only when it changes."""

    def __init__(self, topic: str | None) -> None:
        self.names: dict[str, str] = {}
        """Our column names, and the names they have in the last batch."""
        self._topic = topic
        self._schema: int | None = None
        self._has_others = False

    def select(self, batch: DataFrame) -> DataFrame:
        """Return the columns to write. Raise RowRefused if one is missing or has the wrong type."""
        schema = batch._jdf.schema().hashCode()
        if schema != self._schema:
            self.names = find_columns(batch.schema, self._topic)
            self._has_others = len(self.names) < len(batch.columns)
            self._schema = schema
        if not self._has_others:
            # This saves Spark a plan.
            return batch
        return batch.select(*("`" + name.replace("`", "``") + "`" for name in self.names.values()))


def find_columns(schema: StructType, topic: str | None) -> dict[str, str]:
    """Return our columns that the schema has, with the names they have there. Case is ignored."""
    columns: dict[str, str] = {}
    for field in schema.fields:
        name = field.name.lower()
        kind = field.dataType.simpleString()
        if name not in TYPES or kind == "void" or (name == "topic" and topic is not None):
            continue
        if kind.split("(")[0].split(" ")[0] not in TYPES[name] and kind not in TYPES[name]:
            raise RowRefused(
                f"the column {field.name!r} has type {kind}",
                hint=f"it must be {' or '.join(TYPES[name])}",
            )
        columns[name] = field.name
    if "value" not in columns:
        raise RowRefused(
            f"the column 'value' is missing (columns: {', '.join(map(repr, schema.names)) or 'none'})",
            hint="name the column to send 'value', for example with to_json(struct(*)) AS value",
        )
    if topic is None and "topic" not in columns:
        raise RowRefused(
            "the rows have no topic",
            hint="set a topic on the sink, or add a column 'topic' to the rows",
        )
    return columns


def shaped_arrow(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Return the columns of ``find_columns`` under our names, as bytes and numbers."""
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
            column = pc.cast(
                pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False), pa.int64()
            )
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
