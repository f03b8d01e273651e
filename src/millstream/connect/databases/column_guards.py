"""Values that a database would store in another form, and not refuse: found before they are written.

PostgreSQL rounds numbers and times to what a column keeps; SQLite has NULL for NaN and makes numbers of texts in columns whose
type it does not know. A guard says what is wrong with a value; its row is a dead letter then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from millstream.connect.databases.database import Change, Column, Database

Guard = Callable[[Any], str | None]
# Whole numbers up to here are exact as floating-point numbers.
MOST_WHOLE_FLOAT, MOST_WHOLE_DOUBLE = 1 << 24, 1 << 53
# Digits of a decimal that come back the same from a floating-point number.
FLOAT_DIGITS, DOUBLE_DIGITS = 6, 15
NAME_BYTES = 63
_NUMERIC_TEXT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def guards(
    db: Database, there: Mapping[str, Column], here: Mapping[str, DataType]
) -> list[tuple[int, str, Guard]]:
    """The guards of a table: the place of a column among those that are written, its name, and its guard."""
    made = [(name, db.guard(there[name], kind)) for name, kind in here.items()]
    return [(place, name, guard) for place, (name, guard) in enumerate(made) if guard is not None]


def fault(change: Change, checked: Sequence[tuple[int, str, Guard]]) -> str | None:
    """What is wrong with a row; None if all of its values are stored as they are."""
    for place, name, guard in checked:
        value = change.values[place]
        if value is not None and (reason := guard(value)) is not None:
            return f"column {name!r}: {reason}"
    return None


def decimals(most: int, kind: str) -> Guard:
    """For columns that round numbers to ``most`` decimals."""

    def guard(value: Any) -> str | None:
        if isinstance(value, float) and not math.isfinite(value):
            return None
        number = value if isinstance(value, Decimal) else Decimal(repr(value))
        exponent = number.as_tuple().exponent
        if isinstance(exponent, int) and -exponent > most and number % Decimal(1).scaleb(-most):
            return f"{value} has more than the {most} decimals of {kind}"
        return None

    return guard


def whole_numbers(most: int, kind: str) -> Guard:
    """For columns of floating-point numbers, which round larger whole numbers."""
    return lambda value: None if abs(value) <= most else f"{value} is too large for {kind} to keep it exactly"


def fractions(digits: int, kind: str) -> Guard:
    """For columns that round times to this many digits of a second."""
    unit = 10 ** (6 - digits)
    return lambda value: f"{value} is more exact than {kind}" if value.microsecond % unit else None


def trailing_spaces(most: int, kind: str) -> Guard:
    """For columns that cut spaces off at the end, and refuse any other text that is too long."""

    def guard(text: str) -> str | None:
        cut = text[most:]
        return f"{text!r} has spaces that {kind} cuts off" if cut and not cut.strip(" ") else None

    return guard


def short_bytes(most: int, kind: str) -> Guard:
    """For types that cut off what is longer."""
    return lambda text: f"{text!r} is longer than {kind} keeps" if len(text.encode()) > most else None


def no_nan(value: Any) -> str | None:
    """For SQLite, which stores NaN as NULL."""
    return "SQLite has no NaN" if value != value else None


def no_number(text: str) -> str | None:
    """For columns of SQLite that make numbers of texts."""
    if _NUMERIC_TEXT.fullmatch(text) and str(_number(text)) != text:
        return f"{text!r} is a text that SQLite stores as the number {_number(text)}; declare the column TEXT"
    return None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < MOST_WHOLE_DOUBLE else number
