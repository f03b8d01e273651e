"""Columns of CSV files: converts texts to the declared types, and explains texts that do not fit.

An empty value is null; ``""`` is the empty text in a text column and null in any other. Nothing is
rounded, truncated or completed: a text that would need it makes its row a dead letter.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.pipelines.formats.exact_texts import (
    Intervals,
    is_decimal,
    is_exact,
    too_many_decimals,
)
from millstream.pipelines.formats.json_checks import fits, reading_type
from millstream.pipelines.formats.registry import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

TYPED = "_typed"
NO_NAME = "\x00\x01 no value \x01\x00"
"""A text for null that no file contains."""
KEPT_SPACES = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
# Options of Spark's reader about values; the others are about lines.
VALUE_OPTIONS = (
    "dateFormat",
    "timestampFormat",
    "timestampNTZFormat",
    "timeZone",
    "locale",
    "nanValue",
    "positiveInf",
    "negativeInf",
)
UNKNOWN_CHARACTER = "\ufffd"
SHOWN_CHARACTERS = 40
MAX_LINE_BYTES = 1 << 20


def typed_columns(schema: StructType, options: Mapping[str, str]) -> Column:
    """Return the columns other than text in one struct, null if a text is not of its type."""
    fields = [field for field in schema.fields if not isinstance(field.dataType, StringType)]
    if not fields:
        return F.lit(None).cast("struct<none:int>")
    texts = [_readable(field, options).alias(field.name) for field in fields]
    line = F.to_csv(F.struct(*texts), {"escape": '"', **KEPT_SPACES})
    # Decimals of a locale are compared after they were read; all others are checked as texts.
    kinds = [
        StructField(
            field.name, reading_type(field.dataType) if "locale" in options else field.dataType
        )
        for field in fields
    ]
    return F.from_csv(line, _ddl(kinds), {"escape": '"', **KEPT_SPACES, **_value_options(options)})


def _readable(field: StructField, options: Mapping[str, str]) -> Column:
    """Return the text of a column, or null for a number that takes Java hours to parse."""
    text = F.col(quoted(field.name))
    if isinstance(field.dataType, DecimalType) and "locale" not in options:
        return F.when(is_decimal(text), text)
    return text


def typed_column(field: StructField) -> Column:
    """Return a column in its declared type."""
    if isinstance(field.dataType, StringType):
        return F.col(quoted(field.name))
    read = F.col(TYPED).getField(field.name)
    cast = read.try_cast(field.dataType) if isinstance(field.dataType, DecimalType) else read
    return cast.alias(field.name)


def column_faults(
    field: StructField, options: Mapping[str, str]
) -> Iterator[tuple[Column, Column]]:
    """Yield the possible faults of a column: the condition, and the reason for the dead letter."""
    text, kind = F.col(quoted(field.name)), field.dataType
    name = f"column {field.name!r}"
    is_text = isinstance(kind, StringType)
    if not field.nullable:
        empty = text.isNull() if is_text else F.coalesce(text == "", F.lit(True))
        yield empty, F.lit(f"{name} has no value, and it is NOT NULL")
    if is_text:
        yield (
            text.contains(UNKNOWN_CHARACTER),
            F.lit(f"{name} has bytes that are not text in this encoding"),
        )
        return
    shown = F.concat(F.lit(f"{name}: '"), F.left(text, F.lit(SHOWN_CHARACTERS)), F.lit("' "))
    has_value = text.isNotNull() & (text != "")
    read = F.col(TYPED).getField(field.name)
    declared = kind.simpleString()
    if isinstance(kind, DecimalType) and "locale" not in options:
        more = F.lit(f"has more than the {kind.scale} decimals of {declared}")
        yield has_value & is_decimal(text) & too_many_decimals(text, kind), F.concat(shown, more)
    yield (
        has_value & read.isNull(),
        F.concat(shown, F.lit(f"is not {declared}, or out of its range")),
    )
    if (exact := _is_exact(text, read, field, options)) is not None:
        yield (
            has_value & ~F.coalesce(exact, F.lit(False)),
            F.concat(shown, F.lit(f"does not fit {declared} exactly")),
        )


def _is_exact(
    text: Column, read: Column, field: StructField, options: Mapping[str, str]
) -> Column | None:
    kind = field.dataType
    if isinstance(kind, DecimalType) and "locale" in options:
        return read == read.try_cast(kind)
    if isinstance(kind, DoubleType | FloatType):
        names = {"nanValue": "NaN", "positiveInf": "Inf", "negativeInf": "-Inf"}
        special = [options.get(name, default) for name, default in names.items()]
        exact = is_exact(text, kind)
        return None if exact is None else exact | text.isin(*special)
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        within, exact = fits(read, kind), is_exact(text, kind, options)
        return within if exact is None or within is None else within & exact
    if isinstance(kind, Intervals):
        return is_exact(text, kind)
    return None


def _ddl(fields: list[StructField]) -> str:
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)


def _value_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: options[name] for name in VALUE_OPTIONS if name in options}


def explain_line(value: bytes, *, names: tuple[str, ...], separator: str, quote: str) -> str | None:
    """Return the number of values of a line in words, if it differs from the number of columns."""
    if len(value) > MAX_LINE_BYTES or len(separator) != 1 or len(quote) != 1:
        return None
    rows = list(csv.reader([value.decode()], delimiter=separator, quotechar=quote))
    if len(rows) != 1 or len(rows[0]) == len(names):
        return None
    return f"the line has {len(rows[0])} values for {len(names)} columns ({', '.join(names)})"
