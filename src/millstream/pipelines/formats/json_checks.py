"""Checks on parsed columns, for values that Spark's JSON parser accepts and a pipeline must not.

``from_json`` rounds decimals, reads 255 as the tinyint -1, reads milliseconds as seconds of the
year 55000, and ignores NOT NULL. Each check is a column that is true for good values. A schema that
needs no checks costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_DIGITS = 38
FIRST_TIME, LAST_TIME = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


class Check(NamedTuple):
    """``fine`` is true or null for good values; ``reason`` explains bad ones."""

    fine: Column
    reason: str


def reading_type(kind: DataType) -> DataType:
    """Return the type to parse with: nullable, and with the maximum number of digits in decimals.

    Bytes are parsed as shorts, because Spark reads 255 as the tinyint -1.
    """
    if isinstance(kind, ByteType):
        return ShortType()
    if isinstance(kind, DecimalType):
        return DecimalType(MAX_DIGITS, MAX_DIGITS - (kind.precision - kind.scale))
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, reading_type(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(reading_type(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(reading_type(kind.keyType), reading_type(kind.valueType))
    return kind


def as_declared(parsed: Column, kind: DataType) -> Column:
    """Return the parsed column in its declared type."""
    return parsed if reading_type(kind) == nullable(kind) else parsed.try_cast(nullable(kind))


def nullable(kind: DataType) -> DataType:
    """Return the type without NOT NULL, as a parser returns it."""
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, nullable(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def check_keys(schema: StructType) -> None:
    """Raise PipelineError for a map whose keys are not strings, as JSON requires."""
    for field in schema.fields:
        for kind in _maps(field.dataType):
            if not isinstance(kind.keyType, StringType):
                raise PipelineError(
                    f"field {field.name!r} has a {kind.simpleString()}, but keys are strings in JSON",
                    hint=f"declare {MapType(StringType(), kind.valueType).simpleString()}, "
                    "and cast the keys afterwards",
                )


def _maps(kind: DataType) -> Iterator[MapType]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _maps(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _maps(kind.elementType)
    elif isinstance(kind, MapType):
        yield kind
        yield from _maps(kind.valueType)


def checks(parsed: Callable[[str], Column], schema: StructType) -> list[Check]:
    """Return the checks of all fields. ``parsed`` returns the parsed column of a field."""
    all_checks = []
    for field in schema.fields:
        column = parsed(field.name)
        if not field.nullable:
            all_checks.append(Check(column.isNotNull(), f"field {field.name!r} is missing or null"))
        if (inner := _present(column, field.dataType)) is not None:
            all_checks.append(Check(inner, f"a part of field {field.name!r} is missing or null"))
        if (within := fits(column, field.dataType)) is not None:
            all_checks.append(Check(within, does_not_fit(field)))
    return all_checks


def does_not_fit(field: StructField) -> str:
    """Return the simple reason for a value that does not fit its type exactly."""
    return f"field {field.name!r} does not fit {field.dataType.simpleString()}"


def _present(column: Column, kind: DataType) -> Column | None:
    """Return whether no NOT NULL part of a column is null."""
    if isinstance(kind, StructType):
        parts = []
        for field in kind.fields:
            inner = column.getField(field.name)
            if not field.nullable:
                parts.append(inner.isNotNull())
            if (deeper := _present(inner, field.dataType)) is not None:
                parts.append(deeper)
        return F.coalesce(_all(parts) | column.isNull(), F.lit(True)) if parts else None
    if isinstance(kind, ArrayType):
        return _each(column, kind.elementType, kind.containsNull)
    if isinstance(kind, MapType):
        return _each(F.map_values(column), kind.valueType, kind.valueContainsNull)
    return None


def _each(elements: Column, kind: DataType, may_be_null: bool) -> Column | None:
    if may_be_null and _present(F.lit(None), kind) is None:
        return None

    def fine(element: Column) -> Column:
        deeper = _present(element, kind)
        parts = ([] if may_be_null else [element.isNotNull()]) + (
            [] if deeper is None else [deeper]
        )
        return _all(parts)

    return F.coalesce(F.forall(elements, fine), F.lit(True))


def fits(column: Column, kind: DataType) -> Column | None:
    """Return whether the numbers and times of a column are in range. Null counts as fine."""
    return every(column, kind, _within)


def _within(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, ByteType):
        return column.between(F.lit(-128), F.lit(127))
    if isinstance(kind, DecimalType):
        exact = column == column.try_cast(kind)
        return (
            None
            if reading_type(kind) == kind
            else F.when(column.isNotNull(), F.coalesce(exact, F.lit(False)))
        )
    if isinstance(kind, TimestampType | TimestampNTZType):
        return column.between(F.lit(FIRST_TIME).cast(kind), F.lit(LAST_TIME).cast(kind))
    if isinstance(kind, DateType):
        return column.between(F.lit(FIRST_TIME[:10]).cast(kind), F.lit(LAST_TIME[:10]).cast(kind))
    return None


def every(
    column: Column, kind: DataType, fine: Callable[[Column, DataType], Column | None]
) -> Column | None:
    """Return whether all parts of a column are fine, or None if no part needs a check.

    ``fine`` returns the check of a part, or None if its type needs none. Null counts as fine.
    """
    if (check := fine(column, kind)) is not None:
        return check
    if isinstance(kind, StructType):
        inside = [every(column.getField(field.name), field.dataType, fine) for field in kind.fields]
        parts = [F.coalesce(part, F.lit(True)) for part in inside if part is not None]
        return _all(parts) if parts else None
    if isinstance(kind, ArrayType):
        return _all_fine(column, kind.elementType, fine)
    if isinstance(kind, MapType):
        return _all_fine(F.map_values(column), kind.valueType, fine)
    return None


def _all_fine(
    elements: Column, kind: DataType, fine: Callable[[Column, DataType], Column | None]
) -> Column | None:
    if every(F.lit(None), kind, fine) is None:
        return None
    return F.forall(elements, lambda element: F.coalesce(every(element, kind, fine), F.lit(True)))  # type: ignore[arg-type]


def _all(parts: list[Column]) -> Column:
    return reduce(lambda left, other: left & other, parts)
