"""Values of topics to columns and back: the bridge from declarations to ``formats``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import PipelineError, Place
from millstream.pipelines.formats import ERROR, RECORD, ValueFormat, value_format
from millstream.pipelines.targets import TopicTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

META = ("key", "topic", "partition", "offset", "timestamp")
# What rows may say about the record they become; where it goes is said by the declaration.
DERIVED = frozenset({"avro"})
"""Formats whose own schema comes from the columns, unless one is given."""
PASSED_ON = ("key", "value", "headers", "timestamp")


def format_of(value: str, schema: Any, options: Mapping[str, Any], place: Place) -> ValueFormat:
    """The format of a declaration; what is wrong with it is told by its line."""
    with _told_by(place):
        return value_format(value, schema, **options)


def decoded(
    raw: DataFrame, value: str, schema: Any, options: Mapping[str, Any], *, meta: bool, place: Place
) -> DataFrame:
    """The rows that parse. Those that do not go to the dead letters, by a query of their own."""
    from pyspark.sql import functions as F

    with _told_by(place):
        rows = format_of(value, schema, options, place).decode(raw).where(f"{ERROR} IS NULL")
    if meta:
        rows = rows.select("*", *[F.col(f"{RECORD}.{name}").alias(f"_{name}") for name in META])
    return rows.drop(ERROR, RECORD)


def encoded(rows: DataFrame, targets: Sequence[TopicTarget], schema: StructType, place: Place) -> DataFrame:
    """Rows as records of all topics together, so that one transaction holds them.

    ``schema`` is that of the flow, by which its readers decode: what Spark makes of a batch may differ in what can be null.
    """
    parts = [_records(rows, target, schema, place) for target in targets]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _records(rows: DataFrame, target: TopicTarget, schema: StructType, place: Place) -> DataFrame:
    from pyspark.sql import functions as F

    derived = schema if target.value in DERIVED else None
    given = derived if target.schema is None else target.schema
    with _told_by(place):
        made = format_of(target.value, given, target.options, place).encode(rows, key=target.key or None)
    kept = [F.col(name) for name in PASSED_ON if name in made.columns]
    return made.select(*kept, F.lit(target.topic).alias("topic"))


@contextmanager
def _told_by(place: Place) -> Iterator[None]:
    try:
        yield
    except PipelineError as error:
        if error.place is not None:
            raise
        raise PipelineError(error.message, hint=error.hint, place=place) from None
