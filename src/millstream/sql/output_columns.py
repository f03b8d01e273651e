"""What a query gives, fitted to the columns of what it is inserted into: by order, as SQL does it, and by types that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.pipelines.formats.registry import quoted
from millstream.sql.catalog import Column, Source, quoted_name
from millstream.sql.errors import SqlError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


def columns_of(schema: StructType) -> tuple[Column, ...]:
    return tuple(Column(one.name, type_text(one.dataType), not one.nullable) for one in schema.fields)


def type_text(kind: DataType) -> str:
    """A type as Spark reads it back; its own ``simpleString`` forgets the quotes of odd names."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return (
            f"struct<{','.join(f'{quoted_name(one.name)}:{type_text(one.dataType)}' for one in kind.fields)}>"
        )
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
    return kind.simpleString()


def conform(rows: DataFrame, target: Source) -> DataFrame:
    """The rows with the names and types of the target's columns. What is written as it is (text, bytes) stays as it is."""
    if target.value in ("raw", "string") or not target.columns:
        return rows
    given, wanted = rows.schema.fields, target.columns
    if len(given) != len(wanted):
        raise SqlError(
            f"{target.name} has {len(wanted)} columns ({_names(wanted)}), and the query gives {len(given)} "
            f"({', '.join(one.name for one in given)})"
        )
    unnamed = rows.toDF(*[f"_{number}" for number in range(len(given))])
    return unnamed.select(
        *[
            _fitted(unnamed, f"_{number}", one.name, column).alias(column.name)
            for number, (one, column) in enumerate(zip(given, wanted, strict=True))
        ]
    )


def _fitted(rows: DataFrame, name: str, shown: str, column: Column) -> Any:
    from pyspark.sql import functions as F

    given = rows.schema[name].dataType
    found = F.col(quoted(name))
    if type_text(given) == column.type:
        return found
    if not _fits(rows, name, column.type):
        raise SqlError(
            f"{shown} is {type_text(given)}, and the column {column.name} is {column.type}",
            hint=f"say what is meant: CAST({quoted_name(shown)} AS {column.type})",
        )
    return found.cast(column.type)


def _fits(rows: DataFrame, name: str, kind: str) -> bool:
    """Whether Spark would store such a value in such a column."""
    jvm: Any = rows.sparkSession._jvm
    given = rows._jdf.schema().apply(name).dataType()
    wanted = jvm.org.apache.spark.sql.types.DataType.fromDDL(kind)
    cast = jvm.org.apache.spark.sql.catalyst.expressions.Cast
    return bool(cast.canANSIStoreAssign(given, wanted))


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(one.name for one in columns)
