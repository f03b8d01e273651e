"""Formats that Python reads and writes, a batch of values at a time, with Arrow arrays.

A subclass has two picklable functions. One makes a mapping of a value, the other makes bytes of a
mapping. An exception for one value is the error of that record, and does not affect others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millstream.pipelines.formats.arrow_functions import arrow_column
from millstream.pipelines.formats.json_checks import nullable
from millstream.pipelines.formats.registry import (
    ERROR,
    HEADERS,
    RECORD,
    Key,
    Tombstones,
    ValueFormat,
    key_column,
    record_struct,
    sent_headers,
    value_fields,
    with_tombstones,
    without_dropped,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Row = Mapping[str, Any]
Read = Callable[[bytes], Row]
Write = Callable[[Row], bytes]
PARSED = "_parsed"
NOTHING: Row = {}


class ArrowFormat(ValueFormat):
    """A format whose subclass has ``schema``, ``reader`` and ``writer``."""

    @abstractmethod
    def reader(self) -> Read: ...

    @abstractmethod
    def writer(self, rows: StructType) -> Write: ...

    def decode(self, records: DataFrame, *, tombstones: Tombstones = "error") -> DataFrame:
        fields = nullable(self.schema)
        assert isinstance(fields, StructType)
        kind = StructType([*fields.fields, StructField(ERROR, StringType())])
        parse = partial(parsed, read=self.reader(), kind=arrow_type(kind))

        def parse_values(values: Any) -> Any:
            return parse(values)

        rows = records.select(
            record_struct(records), arrow_column(parse_values, kind, F.col("value")).alias(PARSED)
        )
        columns = [F.col(PARSED).getField(name).alias(name) for name in fields.names]
        error = with_tombstones(F.col(PARSED).getField(ERROR), tombstones).alias(ERROR)
        return without_dropped(rows.select(*columns, error, RECORD), tombstones)

    def encode(self, rows: DataFrame, *, key: Key = None) -> DataFrame:
        write = self.writer(rows.drop(HEADERS).schema)

        def write_rows(values: Any) -> Any:
            return written(values, write)

        value = arrow_column(write_rows, "binary", value_fields(rows)).alias("value")
        return rows.select(key_column(rows, key), value, *sent_headers(rows))


def arrow_type(kind: StructType) -> pa.StructType:
    """Return the Arrow type that Spark expects for its type."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    return pyarrow.struct(list(to_arrow_schema(kind, timezone="UTC")))


def parsed(values: pa.Array, *, read: Read, kind: pa.StructType) -> pa.StructArray:
    """Return values as a struct with a field for the error; null for null values."""
    import pyarrow

    rows: list[Row] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        row, error = (NOTHING, None) if value is None else _read(read, value)
        rows.append(row)
        errors.append(error)
    fields = [field for field in kind if field.name != ERROR]
    columns = [_column(rows, errors, field) for field in fields]
    columns.append(pyarrow.array(errors, pyarrow.string()))
    return pyarrow.StructArray.from_arrays(
        columns, fields=[*fields, pyarrow.field(ERROR, pyarrow.string())]
    )


def _read(read: Read, value: bytes) -> tuple[Row, str | None]:
    """Return a row, or the error of this value, whatever the parser raises."""
    try:
        return read(value), None
    except Exception as error:
        return NOTHING, reason_of(error)


def reason_of(error: Exception) -> str:
    words = " ".join(str(error).split())
    return (
        words if isinstance(error, Unreadable) else f"{type(error).__name__}: {words}".rstrip(": ")
    )


class Unreadable(ValueError):
    """An error whose text needs no class name."""


def _column(rows: list[Row], errors: list[str | None], field: pa.Field) -> pa.Array:
    """Convert a column at once; if that fails, value by value, to find the bad rows."""
    import pyarrow

    name, kind = field.name, field.type
    values = [row.get(name) for row in rows]
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        pass
    for index, value in enumerate(values):
        try:
            pyarrow.array([value], kind)
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            errors[index] = (
                errors[index] or f"field {name!r} does not fit {kind}: {reason_of(error)}"
            )
            values[index] = None
    return pyarrow.array(values, kind)


def written(rows: pa.Array, write: Write) -> pa.Array:
    """Return rows as values. An error fails the query, because it is a bug of the program."""
    import pyarrow

    return pyarrow.array(
        [write(row) for row in rows.to_pylist(maps_as_pydicts="strict")], pyarrow.binary()
    )


def check_columns(
    format: str, rows: Sequence[str], known: Sequence[str], needed: Sequence[str]
) -> None:
    """Raise PipelineError for a column without a field, or a required field without a column."""
    from millstream.pipelines.errors import PipelineError, nearest

    for name in rows:
        if name not in known:
            raise PipelineError(
                f"the {format} schema has no field for column {name!r}", hint=nearest(name, known)
            )
    for name in needed:
        if name not in rows:
            raise PipelineError(
                f"the {format} schema needs a column {name!r}",
                hint=f"the rows have {', '.join(rows)}",
            )
