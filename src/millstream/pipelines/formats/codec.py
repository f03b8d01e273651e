"""Decodes and encodes the values of topics, for the declarations of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import PipelineError, SourceLine
from millstream.pipelines.formats.registry import (
    ERROR,
    HEADERS,
    RECORD,
    RECORD_COLUMNS,
    Tombstones,
    ValueFormat,
    decode_records,
    quoted,
    text_or_bytes,
    value_format,
)
from millstream.pipelines.run.failures import explain
from millstream.pipelines.targets import TopicTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

DELETED = "_deleted"
"""Whether a record had no value, in rows that keep such records."""
META = ("key", "topic", "partition", "offset", "timestamp")
DERIVED = frozenset({"avro"})
"""Formats whose own schema is derived from the columns, unless it is declared."""
READ_BY_COLUMNS = frozenset({"json", "avro"})
"""Formats that are read with the columns that were written. Others have their own schema."""
# Columns of a record that rows may set. The declaration sets the topic.
PASSED_ON = ("key", "value", "headers", "timestamp")
HEADERS_TYPE = RECORD_COLUMNS["headers"]
MAPS_OF_HEADERS = frozenset(f"map<string,{kind}>" for kind in ("string", "binary"))
LISTS_OF_HEADERS = frozenset(
    f"array<struct<key:string,value:{kind}>>" for kind in ("string", "binary")
)


def format_of(
    value: str, schema: Any, options: Mapping[str, Any], place: SourceLine
) -> ValueFormat:
    """Return the format of a declaration. Errors name its line."""
    with errors_at(place):
        return value_format(value, schema, **options)


def decoded(
    raw: DataFrame,
    value: str,
    schema: Any,
    options: Mapping[str, Any],
    *,
    meta: bool,
    place: SourceLine,
    tombstones: Tombstones | None = None,
    observe: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:
    """Return the rows that parse. ``observe`` also sees the others, which become dead letters."""
    from pyspark.sql import functions as F

    with errors_at(place):
        rows = observe(decode_records(format_of(value, schema, options, place), raw, tombstones))
    if tombstones == "keep":
        rows = rows.withColumn(DELETED, F.col(f"{RECORD}.value").isNull())
    return parsed(rows, meta=meta)


def parsed(rows: DataFrame, *, meta: bool) -> DataFrame:
    """Return the rows without an error, with columns for their position if ``meta`` is set."""
    from pyspark.sql import functions as F

    rows = rows.where(f"{ERROR} IS NULL")
    if meta:
        rows = rows.select("*", *[F.col(f"{RECORD}.{name}").alias(f"_{name}") for name in META])
    return rows.drop(ERROR, RECORD)


def encoded(
    rows: DataFrame,
    targets: Sequence[TopicTarget],
    schema: StructType,
    place: SourceLine,
    each: Callable[[DataFrame, TopicTarget], DataFrame] | None = None,
) -> DataFrame:
    """Return rows as records of all topics together, for one transaction.

    ``schema`` is that of the flow, by which its readers decode. The schema of a batch may have
    other nullable columns. ``each`` is applied to the records of every topic.
    """
    parts = [_records(rows, target, schema, place) for target in targets]
    if each is not None:
        parts = [each(records, target) for records, target in zip(parts, targets, strict=True)]
    return reduce(
        lambda records, other: records.unionByName(other, allowMissingColumns=True), parts
    )


def written_schema(rows: StructType, target: TopicTarget) -> StructType:
    """Return the columns of a topic's values: those of the rows, without header columns."""
    from pyspark.sql.types import StructType

    header_only = set(target.header_columns) - set(target.key)
    return StructType([field for field in rows.fields if field.name not in header_only])


def _records(
    rows: DataFrame, target: TopicTarget, schema: StructType, place: SourceLine
) -> DataFrame:
    from pyspark.sql import functions as F

    derived = written_schema(schema, target) if target.value in DERIVED else None
    declared = derived if target.schema is None else target.schema
    with errors_at(place):
        written = _with_headers(rows, target)
        records = format_of(target.value, declared, target.options, place).encode(
            written, key=target.key or None
        )
    kept = [F.col(name) for name in PASSED_ON if name in records.columns]
    return records.select(*kept, F.lit(target.topic).alias("topic"))


def _with_headers(rows: DataFrame, target: TopicTarget) -> DataFrame:
    """Replace the header columns of rows by one column with all headers of a record."""
    if not target.headers:
        return rows
    from pyspark.sql import functions as F

    named = target.headers
    column = _all_headers(rows, named) if isinstance(named, str) else _named_headers(rows, named)
    kept = written_schema(rows.schema, target).names
    return rows.select(
        *[F.col(quoted(name)) for name in kept], column.cast(HEADERS_TYPE).alias(HEADERS)
    )


def _all_headers(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    kind = rows.schema[name].dataType
    if kind.simpleString() in MAPS_OF_HEADERS:
        return F.map_entries(F.col(quoted(name)))
    if kind.simpleString() in LISTS_OF_HEADERS:
        return F.col(quoted(name))
    raise PipelineError(
        f"the column {name!r} cannot hold the headers: it is {kind.simpleString()}",
        hint="use a map, an array of structs with key and value, or headers={'name': 'column'}",
    )


def _named_headers(rows: DataFrame, named: Mapping[str, str]) -> Column:
    """Return a header for each column that is not null."""
    from pyspark.sql import functions as F

    headers = [
        F.struct(F.lit(name).alias("key"), text_or_bytes(rows, column).alias("value"))
        for name, column in named.items()
    ]
    return F.filter(F.array(*headers), lambda header: header.getField("value").isNotNull())


@contextmanager
def errors_at(place: SourceLine) -> Iterator[None]:
    """Add the line of a declaration to errors about it, including those that Spark finds."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PipelineError as error:
        if error.place is not None:
            raise
        raise PipelineError(error.message, hint=error.hint, place=place) from None
    except PySparkException as error:
        raise PipelineError(explain(error, None).reason, place=place) from error
