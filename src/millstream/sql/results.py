"""What a statement gives back; the command line decides how it looks."""

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
class Told:
    """Something was done; ``warnings`` are for the person."""

    text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """Rows of what is declared."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Details:
    """All about one thing."""

    facts: dict[str, object]
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Plan:
    """How Spark carries a query out."""

    text: str


@dataclass(frozen=True)
class Rows:
    """A query over what is there now; nothing has been computed yet."""

    frame: DataFrame
    query: str

    @property
    def columns(self) -> list[str]:
        return self.frame.columns

    def cells(self, most: int | None = None) -> list[Cells]:
        """The rows as texts, at most so many."""
        shown = as_cells(self.frame)
        with self._told():
            return [tuple(one) for one in (shown if most is None else shown.limit(most)).collect()]

    def objects(self) -> Iterator[str]:
        """The rows as JSON objects."""
        with self._told():
            for one in as_objects(self.frame).toLocalIterator(prefetchPartitions=True):
                yield one[0]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong only when a query runs, in one line."""
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            raise from_spark(error, self.query) from None


@dataclass(frozen=True)
class LiveRows:
    """A query over what is there and what is still to come."""

    frame: DataFrame
    query: str
    mode: Mode
    """How rows come when they are printed one after the other."""
    whole_mode: Mode
    """And when the whole result is on a screen: complete where the query aggregates."""
    limit: int | None = None
    groups: tuple[str, ...] = field(default=())
    """Consumer groups that only this query needs."""


Outcome = Told | Listing | Details | Plan | Rows | LiveRows


def as_cells(frame: DataFrame) -> DataFrame:
    """Every column as Spark writes it as text; bytes that are no text as hexadecimal digits."""
    unnamed, names = _unnamed(frame)
    return unnamed.select(*[_cell(unnamed, name) for name in names])


def as_objects(frame: DataFrame) -> DataFrame:
    """One column, a JSON object for each row; columns that share a name are numbered."""
    from pyspark.sql import functions as F

    unnamed, names = _unnamed(frame)
    fields = [F.col(one).alias(shown) for one, shown in zip(names, unique(frame.columns), strict=True)]
    return unnamed.select(F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}))


def unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _unnamed(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """A query may give several columns of one name."""
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
