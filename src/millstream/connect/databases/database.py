"""The interface of a database: columns, progress stored beside the rows, and bisection of batches.

A ``Database`` is one connection and the objects that work through it. Their methods raise

- ``Unavailable`` if the database is unreachable or busy, and the flow retries;
- ``RowFault`` if the database rejects a row because of its values;
- ``PipelineError`` for anything that a retry cannot fix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.connect.addresses import AddressError, without_password
from millstream.connect.databases import registry

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from millstream.connect.databases.column_guards import Guard

PROGRESS = "millstream_progress"
PROGRESS_FIELDS = "query, batch, offsets, row_count, refused"
# Families of types. Any other type (uuid, json, an enumeration) accepts texts.
NUMBER, TEXT, BOOLEAN, TIME, BINARY, OTHER = "number", "text", "boolean", "time", "binary", "other"


class RowFault(Exception):
    """A row that the database rejects."""


@dataclass(frozen=True)
class Column:
    """A column of a table as the database declares it."""

    name: str
    sql_type: str
    family: str
    required: bool = False
    """NOT NULL without a default, so every row needs a value."""
    nullable: bool = True


class Progress(NamedTuple):
    """The last batch of a writer in a table, and its rejected rows (JSON)."""

    query: str
    batch: int
    offsets: str
    rows: int
    refused: str


class Change(NamedTuple):
    """An upsert of a row, or the deletion of the row with its key."""

    values: tuple[Any, ...]
    deleted: bool = False


Moment = tuple[int, ...]
"""A point in the order of changes, on each clock that the database has. All clocks count."""
Position = tuple[Any, ...]
"""The values of the columns that order a table. A table is read from position to position."""


class Connection(ABC):
    """A connection that opens on first use."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = without_password(url)

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the block as a whole, or roll it back."""


class ColumnTypes(ABC):
    """The correspondence between Spark's types and those of a database. Pure."""

    @abstractmethod
    def read_type(self, column: Column) -> str:
        """Return the Spark type that a column is read as."""

    def accepts(self, column: Column, spark_type: DataType) -> bool:
        """Return whether a column can store a Spark type; single values may still not fit."""
        family = family_of(spark_type)
        return family == column.family or (column.family == OTHER and family == TEXT)

    def guard(self, column: Column, spark_type: DataType) -> Guard | None:
        """Return a check for values that the column would change silently, or None."""
        return None


class Catalog(ABC):
    """The tables of a database."""

    @abstractmethod
    def columns(self, table: str) -> list[Column] | None:
        """Return the columns of a table, or None if it does not exist."""

    @abstractmethod
    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        """Return the column lists of the unique indexes, the primary key first."""

    @abstractmethod
    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None: ...


class RowWriter(ABC):
    """Writes rows, and the progress that commits with them."""

    @abstractmethod
    def create_progress_table(self, table: str) -> None:
        """Create the progress table that belongs to a table if it does not exist."""

    @abstractmethod
    def lock_progress(self, writer: str, table: str) -> Progress | None:
        """Return the progress of a writer, locked until the transaction ends."""

    @abstractmethod
    def record_progress(self, writer: str, table: str, progress: Progress) -> None: ...

    @abstractmethod
    def put(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> None:
        """Apply changes in order, all or none; raise RowFault if one of them is rejected."""

    def apply(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> Iterator[tuple[Change, str]]:
        """Apply changes in order, and yield rejected ones with the reason. Bisects to find them."""
        if not changes:
            return
        try:
            self.put(table, columns, key, changes)
        except RowFault as fault:
            if len(changes) == 1:
                yield changes[0], str(fault)
                return
            middle = len(changes) // 2
            yield from self.apply(table, columns, key, changes[:middle])
            yield from self.apply(table, columns, key, changes[middle:])


class RowReader(ABC):
    """Reads a table from position to position, in the order of some columns."""

    @abstractmethod
    def oldest_open_change(self, table: str, by: str) -> Moment:
        """Return the oldest change in progress; rows of all earlier changes are visible."""

    @abstractmethod
    def next_change(self) -> Moment:
        """Return the earliest moment that a change starting from now on can have."""

    def describe_oldest_change(self) -> str:
        """Return the oldest open change in words that an operator can act on."""
        return ""

    @abstractmethod
    def last_position(self, table: str, order: Sequence[str]) -> Position | None:
        """Return the position of the last row, or None if the table is empty."""

    @abstractmethod
    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        """Return the position ``rows`` rows after start, or of the last row up to end.

        None if no row lies between start and end.
        """

    @abstractmethod
    def rows(
        self,
        table: str,
        columns: Mapping[str, str],
        order: Sequence[str],
        start: Position | None,
        end: Position,
    ) -> Iterator[list[bytes]]:
        """Yield the rows after start and up to end in order, as JSON, some thousands at a time."""

    @abstractmethod
    def has_null(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        """Return whether a column has a NULL; ``within`` is another column and its bounds."""


@dataclass(frozen=True)
class Database:
    """One connection to one database, and the objects that work through it."""

    connection: Connection
    types: ColumnTypes
    catalog: Catalog
    writer: RowWriter
    reader: RowReader


def connect(url: str) -> Database:
    """Return the database of a URL, not opened yet."""
    kind = registry.find(url)
    if kind is None:
        forms = " or ".join(kind.url_form for kind in registry.KINDS)
        raise AddressError(f"{without_password(url)!r} is not a database URL", hint=f"give {forms}")
    return kind.database(url)


def family_of(spark_type: DataType) -> str:
    """Return the family of a Spark type. Structs, arrays and maps are written as JSON text."""
    from pyspark.sql import types as T

    families: list[tuple[Any, str]] = [
        (T.BooleanType, BOOLEAN),
        (T.NumericType, NUMBER),
        ((T.DateType, T.TimestampType, T.TimestampNTZType), TIME),
        (T.BinaryType, BINARY),
    ]
    return next((family for types, family in families if isinstance(spark_type, types)), TEXT)


def chunked(
    cursor: Any, convert: Callable[[Any], bytes], size: int = 5_000
) -> Iterator[list[bytes]]:
    """Yield the rows of a cursor in chunks."""
    while rows := cursor.fetchmany(size):
        yield [convert(row) for row in rows]
