"""Checks for values that a database would change silently, run before they are written.

PostgreSQL rounds numbers and times to the precision of a column. SQLite stores NaN as NULL, and
converts texts to numbers in columns of a type that it does not know. A guard returns what is wrong
with a value, and the row becomes a dead letter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from millstream.connect.databases.database import Change, Column, ColumnTypes

Guard = Callable[[Any], str | None]
# Whole numbers up to these limits are exact in floating point.
MAX_EXACT_FLOAT, MAX_EXACT_DOUBLE = 1 << 24, 1 << 53
# Decimal digits that survive a round trip through floating point.
FLOAT_DIGITS, DOUBLE_DIGITS = 6, 15
NAME_BYTES = 63
_NUMERIC_TEXT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def guards(
    types: ColumnTypes, columns: Mapping[str, Column], spark_types: Mapping[str, DataType]
) -> list[tuple[int, str, Guard]]:
    """Return index, name and guard of the written columns that need one."""
    checks = [(name, types.guard(columns[name], kind)) for name, kind in spark_types.items()]
    return [(index, name, guard) for index, (name, guard) in enumerate(checks) if guard is not None]


def fault(change: Change, guards: Sequence[tuple[int, str, Guard]]) -> str | None:
    """Return what is wrong with a row, or None if all of its values are stored unchanged."""
    for index, name, guard in guards:
        value = change.values[index]
        if value is not None and (reason := guard(value)) is not None:
            return f"column {name!r}: {reason}"
    return None


def decimals(limit: int, sql_type: str) -> Guard:
    """Guard a column that rounds numbers to ``limit`` decimals."""

    def guard(value: Any) -> str | None:
        if isinstance(value, float) and not math.isfinite(value):
            return None
        number = value if isinstance(value, Decimal) else Decimal(repr(value))
        exponent = number.as_tuple().exponent
        if isinstance(exponent, int) and -exponent > limit and number % Decimal(1).scaleb(-limit):
            return f"{value} has more than the {limit} decimals of {sql_type}"
        return None

    return guard


def whole_numbers(limit: int, sql_type: str) -> Guard:
    """Guard a floating-point column, which rounds whole numbers above a limit."""
    return lambda value: (
        None if abs(value) <= limit else f"{value} is too large for {sql_type} to be exact"
    )


def fractions(digits: int, sql_type: str) -> Guard:
    """Guard a column that rounds times to this many digits of a second."""
    unit = 10 ** (6 - digits)
    return lambda value: (
        f"{value} is more precise than {sql_type}" if value.microsecond % unit else None
    )


def trailing_spaces(limit: int, sql_type: str) -> Guard:
    """Guard a column that truncates trailing spaces, and rejects other texts that are too long."""

    def guard(text: str) -> str | None:
        excess = text[limit:]
        truncated = excess and not excess.strip(" ")
        return f"{text!r} has spaces that {sql_type} truncates" if truncated else None

    return guard


def short_bytes(limit: int, sql_type: str) -> Guard:
    """Guard a type that truncates longer texts."""
    return lambda text: (
        f"{text!r} is longer than {sql_type} keeps" if len(text.encode()) > limit else None
    )


def no_nan(value: Any) -> str | None:
    """Guard a column of SQLite, which stores NaN as NULL."""
    return "SQLite has no NaN" if value != value else None


def no_number(text: str) -> str | None:
    """Guard a column of SQLite that converts texts to numbers."""
    if _NUMERIC_TEXT.fullmatch(text) and str(_number(text)) != text:
        return f"{text!r} is a text that SQLite stores as the number {_number(text)}; declare the column TEXT"
    return None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < MAX_EXACT_DOUBLE else number
