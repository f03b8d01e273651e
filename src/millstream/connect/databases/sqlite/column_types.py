"""SQLite's types and Spark's: which column stores what, and what it would change. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millstream.connect.databases.column_guards import (
    MAX_EXACT_DOUBLE,
    Guard,
    no_nan,
    no_number,
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
from millstream.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

EXACT_DIGITS = 15
"""SQLite converts decimals to floating point in columns that are declared as numbers."""
_FAMILIES = (
    ("BOOL", BOOLEAN),
    ("DATE", TIME),
    ("TIME", TIME),
    ("INT", NUMBER),
    ("CHAR", TEXT),
    ("CLOB", TEXT),
    ("TEXT", TEXT),
    ("BLOB", BINARY),
    ("REAL", NUMBER),
    ("FLOA", NUMBER),
    ("DOUB", NUMBER),
    ("DEC", NUMBER),
    ("NUM", NUMBER),
)


class SqliteTypes(ColumnTypes):
    """The types of SQLite, which are hints: any column can hold any value."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def read_type(self, column: Column) -> str:
        sql_type = column.sql_type.upper()
        decimal = re.search(r"\((\d+)\s*,\s*(\d+)\)", sql_type)
        if column.family == NUMBER and decimal and "INT" not in sql_type:
            return f"decimal({decimal[1]},{decimal[2]})"
        if column.family == TIME:
            return "date" if sql_type == "DATE" else "timestamp"
        if column.family == NUMBER:
            return "bigint" if "INT" in sql_type else "double"
        return {BOOLEAN: "boolean", BINARY: "binary"}.get(column.family, "string")

    def accepts(self, column: Column, spark_type: DataType) -> bool:
        """Accept times and decimals in text columns, and booleans (0 and 1) in number columns."""
        from pyspark.sql.types import DecimalType

        family = family_of(spark_type)
        as_text = family == TIME or isinstance(spark_type, DecimalType)
        digits = spark_type.precision if isinstance(spark_type, DecimalType) else 0
        if column.family == NUMBER and digits > EXACT_DIGITS:
            raise PipelineError(
                f"the column {column.name} {column.sql_type} of {self._shown} keeps {EXACT_DIGITS} "
                f"digits, and {spark_type.simpleString()} has more",
                hint="declare the column TEXT, or cast to fewer digits in the flow",
            )
        if (as_text and column.family == TEXT) or (family == BOOLEAN and column.family == NUMBER):
            return True
        return super().accepts(column, spark_type)

    def guard(self, column: Column, spark_type: DataType) -> Guard | None:
        from pyspark.sql.types import DoubleType, FloatType, LongType

        if isinstance(spark_type, DoubleType | FloatType):
            return no_nan
        is_real = any(part in column.sql_type.upper() for part in ("REAL", "FLOA", "DOUB"))
        if isinstance(spark_type, LongType) and is_real:
            return whole_numbers(MAX_EXACT_DOUBLE, column.sql_type)
        # A declared type that SQLite does not know, such as STRING, gives the column numeric
        # affinity; a column without a type has none.
        numeric = column.family == OTHER and column.sql_type
        return no_number if family_of(spark_type) == TEXT and numeric else None


def family_of_sql(sql_type: str) -> str:
    """Return the family of a declared type, by the words in it, much as SQLite's affinity."""
    words = sql_type.upper()
    return next((family for part, family in _FAMILIES if part in words), OTHER)


def declared_type(spark_type: DataType) -> str:
    """Return the type of a column that is created for a Spark type.

    Decimals are texts: SQLite's numbers would round them.
    """
    from pyspark.sql import types as T

    if isinstance(spark_type, T.DecimalType):
        return "TEXT"
    if isinstance(spark_type, T.FractionalType):
        return "REAL"
    if isinstance(spark_type, T.DateType):
        return "DATE"
    names = {NUMBER: "INTEGER", BOOLEAN: "BOOLEAN", TIME: "TIMESTAMP", BINARY: "BLOB"}
    return names.get(family_of(spark_type), "TEXT")
