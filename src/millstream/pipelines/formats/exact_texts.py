"""Checks that a text becomes a value of its type without being rounded, truncated or completed.

Spark's parsers of JSON and CSV round decimals, drop nanoseconds and the time behind a date, and
complete a time without a date with today. Their result does not show it, so these checks read the
text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

# Java writes out a decimal with a longer exponent digit by digit, for hours.
NUMBER = r"^[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?$"
DIGIT = "[0-9]"
FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")
"""The JSON texts of floating-point numbers that JSON numbers cannot express."""
WHOLE_DATE = r"^\s*[+-]?[0-9]{4,7}-[0-9]{1,2}-[0-9]{1,2}"
# A date, or its first moment.
ONLY_DATE = WHOLE_DATE + r"\s*([T ]00?:00?(:00?(\.0*)?)?\s*(Z|UTC|[+-][0-9:]+)?)?\s*$"
NANOSECONDS = "[.,][0-9]{6}[0-9]*[1-9]"
# Seconds since 1970: more digits are beyond the year 9999, or overflow in Java.
MAX_SECOND_DIGITS = 12
Intervals = DayTimeIntervalType | CalendarIntervalType
"""Intervals with seconds. Those of years and months are integers."""
FORMATS = {
    "timestamp": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
    "date": "dateFormat",
}


def too_many_decimals(text: Column, kind: DecimalType) -> Column:
    """Return whether a number has more decimals than its type. Trailing zeros do not count."""
    digits = F.concat(F.regexp_extract(text, NUMBER, 1), F.regexp_extract(text, NUMBER, 2))
    significant = F.regexp_replace(digits, "0+$", "")
    exponent = F.coalesce(F.regexp_extract(text, NUMBER, 3).try_cast("int"), F.lit(0))
    decimals = F.length(F.regexp_extract(text, NUMBER, 2)) - exponent
    needed = decimals - (F.length(digits) - F.length(significant))
    return (significant != "") & (needed > kind.scale)


def is_decimal(text: Column) -> Column:
    """Return whether a text is a plain decimal, without commas and thousands separators."""
    return text.rlike(NUMBER) & text.rlike(DIGIT)


def is_exact(text: Column, kind: DataType, formats: Collection[str] = ()) -> Column | None:
    """Return whether a text is exactly a value of its type; None for types that need no check.

    Floating-point numbers may be rounded, and only have to be in range. A text with a user-defined
    format is judged by that format alone. ``formats`` has the names of such options.
    """
    if isinstance(kind, DecimalType):
        return is_decimal(text) & ~too_many_decimals(text, kind)
    if isinstance(kind, DoubleType | FloatType):
        within = F.abs(text.try_cast(kind)) < F.lit(float("inf"))
        return text.isin(*SPECIAL_FLOATS) | (text.rlike(FLOAT) & F.coalesce(within, F.lit(False)))
    if isinstance(kind, TimestampType | TimestampNTZType):
        exact = ~text.rlike(NANOSECONDS)
        return exact if FORMATS[kind.typeName()] in formats else exact & text.rlike(WHOLE_DATE)
    if isinstance(kind, Intervals):
        return ~text.rlike(NANOSECONDS)
    if isinstance(kind, DateType):
        return None if FORMATS["date"] in formats else text.rlike(ONLY_DATE)
    return None


def is_whole_second(text: Column) -> Column:
    """Return whether a number is a time in seconds that Spark can multiply without overflow."""
    return text.rlike(f"^-?[0-9]{{1,{MAX_SECOND_DIGITS}}}$")
