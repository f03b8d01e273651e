"""The results of statements; the command line decides how they look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.pipelines.formats.registry import quoted
from millstream.sql.catalog import Column
from millstream.sql.errors import from_spark

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from millstream.pipelines.declare import Mode

Cells = tuple[str | None, ...]


@dataclass(frozen=True)
class Confirmation:
    """A statement has taken effect; ``warnings`` are for the user."""

    text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """Rows of declared entries."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Details:
    """All facts about one entry."""

    facts: dict[str, object]
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Plan:
    """How Spark runs a query."""

    text: str


@dataclass(frozen=True)
class Rows:
    """A query over current records; nothing has been computed yet."""

    frame: DataFrame
    query: str

    @property
    def columns(self) -> list[str]:
        return self.frame.columns

    def cells(self, limit: int | None = None) -> list[Cells]:
        """Return the rows as text, at most ``limit``."""
        shown = as_cells(self.frame)
        with self._sql_errors():
            return [
                tuple(row) for row in (shown if limit is None else shown.limit(limit)).collect()
            ]

    def objects(self) -> Iterator[str]:
        """Yield the rows as JSON objects."""
        with self._sql_errors():
            for row in as_objects(self.frame).toLocalIterator(prefetchPartitions=True):
                yield row[0]

    @contextmanager
    def _sql_errors(self) -> Iterator[None]:
        """Convert errors that appear only when a query runs."""
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            raise from_spark(error, self.query) from None


@dataclass(frozen=True)
class LiveRows:
    """A query over current and future records."""

    frame: DataFrame
    query: str
    mode: Mode
    """The output mode for printing rows one after the other."""
    whole_mode: Mode
    """The output mode for a screen with the whole result: complete if the query aggregates."""
    limit: int | None = None
    groups: tuple[str, ...] = field(default=())
    """Consumer groups that only this query uses."""


Outcome = Confirmation | Listing | Details | Plan | Rows | LiveRows


def as_cells(frame: DataFrame) -> DataFrame:
    """Return every column as text, as Spark writes it; bytes that are not text as hex digits."""
    unnamed, names = _unnamed(frame)
    return unnamed.select(*[_cell(unnamed, name) for name in names])


def as_objects(frame: DataFrame) -> DataFrame:
    """Return one column with a JSON object for each row; columns that share a name are numbered."""
    from pyspark.sql import functions as F

    unnamed, names = _unnamed(frame)
    labels = unique(frame.columns)
    fields = [F.col(name).alias(label) for name, label in zip(names, labels, strict=True)]
    return unnamed.select(F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}))


def unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return labels


def _unnamed(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """Rename the columns, since a query may return several with the same name."""
    names = [f"_{number}" for number in range(len(frame.columns))]
    return frame.toDF(*names), names


def _cell(frame: DataFrame, name: str) -> Expression:
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    kind = frame.schema[name].dataType.typeName()
    if kind == "binary":
        text = column.cast("string")
        return F.when(F.is_valid_utf8(text), text).otherwise(F.hex(column)).alias(name)
    if kind == "variant":
        return F.to_json(column).alias(name)
    return column.cast("string").alias(name)
