"""PostgreSQL's types and Spark's: which column stores what, and what it would round. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from millstream.connect.databases.column_guards import (
    DOUBLE_DIGITS,
    FLOAT_DIGITS,
    MAX_EXACT_DOUBLE,
    MAX_EXACT_FLOAT,
    NAME_BYTES,
    Guard,
    decimals,
    fractions,
    short_bytes,
    trailing_spaces,
    whole_numbers,
)
from millstream.connect.databases.database import (
    BINARY,
    BOOLEAN,
    NUMBER,
    OTHER,
    TEXT,
    TIME,
    Column,
    ColumnTypes,
    family_of,
)

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_FAMILIES = {
    NUMBER: {"smallint", "integer", "bigint", "numeric", "real", "double precision", "money"},
    TEXT: {"text", "character varying", "character", "name", '"char"'},
    BOOLEAN: {"boolean"},
    TIME: {"timestamp without time zone", "timestamp with time zone", "date"},
    BINARY: {"bytea"},
}
_SPARK = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    # numeric without a precision; a value that does not fit is a dead letter and is not rounded
    "numeric": "decimal(38,18)",
    "boolean": "boolean",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_FLOAT_DIGITS = {"real": FLOAT_DIGITS, "double precision": DOUBLE_DIGITS}


class PostgresqlTypes(ColumnTypes):
    """The types of PostgreSQL."""

    def read_type(self, column: Column) -> str:
        decimal = re.match(r"numeric\((\d+),(\d+)\)", column.sql_type)
        if decimal:
            return f"decimal({decimal[1]},{decimal[2]})"
        return _SPARK.get(_without_size(column.sql_type).strip(), "string")

    def accepts(self, column: Column, spark_type: DataType) -> bool:
        """Reject types of which most values would be rounded.

        These are doubles in real, long decimals in either, and timestamps in a date.
        """
        from pyspark.sql import types as T

        if column.sql_type == "date":
            return isinstance(spark_type, T.DateType)
        if digits := _FLOAT_DIGITS.get(column.sql_type):
            exact = not isinstance(spark_type, T.DecimalType) or spark_type.precision <= digits
            if not exact or (isinstance(spark_type, T.DoubleType) and column.sql_type == "real"):
                return False
        return super().accepts(column, spark_type)

    def guard(self, column: Column, spark_type: DataType) -> Guard | None:
        from pyspark.sql import types as T

        size = re.search(r"\((\d+)(?:,(-?\d+))?\)", column.sql_type)
        plain = _without_size(column.sql_type)
        is_timestamp = isinstance(spark_type, T.TimestampType | T.TimestampNTZType)
        if column.family == NUMBER and isinstance(spark_type, T.FractionalType):
            scale = 2 if plain == "money" else int(size[2]) if size and plain == "numeric" else None
            return None if scale is None else decimals(scale, column.sql_type)
        if isinstance(spark_type, T.IntegerType | T.LongType) and plain in _FLOAT_DIGITS:
            limit = MAX_EXACT_FLOAT if plain == "real" else MAX_EXACT_DOUBLE
            return whole_numbers(limit, column.sql_type)
        if is_timestamp and size and plain.startswith("timestamp"):
            return fractions(int(size[1]), column.sql_type)
        if family_of(spark_type) == TEXT and size and plain in ("character varying", "character"):
            return trailing_spaces(int(size[1]), column.sql_type)
        limit_bytes = {"name": NAME_BYTES, '"char"': 1}.get(column.sql_type)
        if limit_bytes and family_of(spark_type) == TEXT:
            return short_bytes(limit_bytes, column.sql_type)
        return None


def family_of_sql(sql_type: str) -> str:
    """Return the family of one of PostgreSQL's types."""
    plain = _without_size(sql_type).strip()
    return next((family for family, names in _FAMILIES.items() if plain in names), OTHER)


def declared_type(spark_type: DataType) -> str:
    """Return the type of a column that is created for a Spark type."""
    from pyspark.sql import types as T

    names: list[tuple[Any, str]] = [
        ((T.ByteType, T.ShortType), "smallint"),
        (T.IntegerType, "integer"),
        (T.LongType, "bigint"),
        (T.FloatType, "real"),
        (T.DoubleType, "double precision"),
        (T.TimestampType, "timestamptz"),
        (T.TimestampNTZType, "timestamp"),
        (T.DateType, "date"),
        ((T.StructType, T.ArrayType, T.MapType), "jsonb"),
    ]
    if isinstance(spark_type, T.DecimalType):
        return f"numeric({spark_type.precision},{spark_type.scale})"
    name = next((name for types, name in names if isinstance(spark_type, types)), None)
    return name or {BOOLEAN: "boolean", BINARY: "bytea"}.get(family_of(spark_type), "text")


def _without_size(sql_type: str) -> str:
    return re.sub(r"\(.*?\)", "", sql_type)
