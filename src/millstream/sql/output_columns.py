"""Fit the columns of a query to its target: by position, as SQL does, with compatible types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.pipelines.formats.registry import quoted
from millstream.sql.catalog import Column, Source, quoted_name
from millstream.sql.errors import SqlError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


def columns_of(schema: StructType) -> tuple[Column, ...]:
    return tuple(
        Column(field.name, type_text(field.dataType), not field.nullable) for field in schema.fields
    )


def type_text(kind: DataType) -> str:
    """Return a type that Spark can read back; its ``simpleString`` does not quote names."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = (f"{quoted_name(field.name)}:{type_text(field.dataType)}" for field in kind.fields)
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
    return kind.simpleString()


def conform(rows: DataFrame, target: Source) -> DataFrame:
    """Return the rows with the names and types of the target's columns.

    Text and bytes are not changed.
    """
    if target.value in ("raw", "string") or not target.columns:
        return rows
    fields, columns = rows.schema.fields, target.columns
    if len(fields) != len(columns):
        raise SqlError(
            f"{target.name} has {len(columns)} columns ({_names(columns)}), and the query returns "
            f"{len(fields)} ({', '.join(field.name for field in fields)})"
        )
    unnamed = rows.toDF(*[f"_{number}" for number in range(len(fields))])
    return unnamed.select(
        *[
            _fitted(unnamed, f"_{number}", field.name, column).alias(column.name)
            for number, (field, column) in enumerate(zip(fields, columns, strict=True))
        ]
    )


def _fitted(rows: DataFrame, name: str, shown: str, column: Column) -> Any:
    from pyspark.sql import functions as F

    kind = rows.schema[name].dataType
    expression = F.col(quoted(name))
    if type_text(kind) == column.type:
        return expression
    if not _fits(rows, name, column.type):
        raise SqlError(
            f"{shown} is {type_text(kind)}, and the column {column.name} is {column.type}",
            hint=f"convert it: CAST({quoted_name(shown)} AS {column.type})",
        )
    return expression.cast(column.type)


def _fits(rows: DataFrame, name: str, kind: str) -> bool:
    """Return whether Spark would store such a value in such a column."""
    jvm: Any = rows.sparkSession._jvm
    source = rows._jdf.schema().apply(name).dataType()
    target = jvm.org.apache.spark.sql.types.DataType.fromDDL(kind)
    cast = jvm.org.apache.spark.sql.catalyst.expressions.Cast
    return bool(cast.canANSIStoreAssign(source, target))


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(column.name for column in columns)
