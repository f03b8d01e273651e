"""What the tables of all databases have in common: columns, progress beside the rows, and rows that are refused one by one.

A ``Database`` is one connection. Its methods raise ``Unavailable`` when the database cannot be reached or is busy, so that the flow waits;
``RowFault`` when it does not take a row for what the row holds; and PipelineError for what no other try can mend.
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
# Families of types. What a database calls by another name (uuid, json, an enumeration) takes texts.
NUMBER, TEXT, BOOLEAN, TIME, BINARY, OTHER = "number", "text", "boolean", "time", "binary", "other"


class RowFault(Exception):
    """A row that the database does not take."""


@dataclass(frozen=True)
class Column:
    """A column of a table as the database has it."""

    name: str
    kind: str
    family: str
    required: bool = False
    """It has to be given: NOT NULL, and without a default."""
    nullable: bool = True


class Progress(NamedTuple):
    """The last batch of a writer in a table, and the rows of it that were refused (JSON)."""

    query: str
    batch: int
    offsets: str
    rows: int
    refused: str


class Change(NamedTuple):
    """What a row does to a table: it is put there, or the row with its key is removed."""

    values: tuple[Any, ...]
    deleted: bool = False


Moment = tuple[int, ...]
"""By which changes are ordered, in as many ways as a database has; all of them count."""
Position = tuple[Any, ...]
"""The values of the columns that order a table, by which it is read bit by bit."""


class Database(ABC):
    """One connection to one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = without_password(url)

    # ---------------------------------------------------------------- the connection

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block, or none of it."""

    # ---------------------------------------------------------------- tables

    @abstractmethod
    def columns(self, table: str) -> list[Column] | None:
        """The columns of a table; None when there is none."""

    @abstractmethod
    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        """Columns whose values together are there once, the primary key first."""

    @abstractmethod
    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None: ...

    @abstractmethod
    def spark_type(self, column: Column) -> str:
        """What Spark reads a column as."""

    def takes(self, column: Column, kind: DataType) -> bool:
        """Whether values of a type of Spark belong into a column; whether each of them fits is seen row by row."""
        family = family_of(kind)
        return family == column.family or (column.family == OTHER and family == TEXT)

    def guard(self, column: Column, kind: DataType) -> Guard | None:
        """A check of values that the column would change and not refuse; None where there are none."""
        return None

    # ---------------------------------------------------------------- writing

    @abstractmethod
    def prepare(self, table: str) -> None:
        """Make the table of progress that belongs to a table, where it is missing."""

    @abstractmethod
    def locked_progress(self, writer: str, table: str) -> Progress | None:
        """Where a writer stands; nobody else can move it until the transaction has ended."""

    @abstractmethod
    def record(self, writer: str, table: str, progress: Progress) -> None: ...

    @abstractmethod
    def put(self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]) -> None:
        """Apply changes in their order, all or none of them; RowFault where one of them is not taken."""

    def apply(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> Iterator[tuple[Change, str]]:
        """Apply changes in their order; those that are not taken come back with the reason. They are found by halving."""
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

    # ---------------------------------------------------------------- reading

    @abstractmethod
    def horizon(self, table: str, by: str) -> Moment:
        """Of all changes now under way the oldest: rows of those before it are all to be seen."""

    @abstractmethod
    def next_change(self) -> Moment:
        """A moment that every change has which begins from now on, or a later one."""

    def under_way(self) -> str:
        """The oldest change that is waited for, as users know it."""
        return ""

    @abstractmethod
    def newest(self, table: str, order: Sequence[str]) -> Position | None:
        """The position of the last row; None when there are none."""

    @abstractmethod
    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        """The position of the row so many rows after the start, or of the last one up to the end where there are fewer; None without any."""

    @abstractmethod
    def rows(
        self,
        table: str,
        columns: Mapping[str, str],
        order: Sequence[str],
        start: Position | None,
        end: Position,
    ) -> Iterator[list[bytes]]:
        """The rows after the start and up to the end in their order, as JSON, some thousand at a time."""

    @abstractmethod
    def any_without(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        """Whether some row has no value in a column; ``within`` is another column and its bounds."""


def connect(url: str) -> Database:
    """Return the database of a URL, not opened yet."""
    kind = registry.find(url)
    if kind is None:
        forms = " or ".join(kind.url_form for kind in registry.KINDS)
        raise AddressError(f"{without_password(url)!r} is not a database URL", hint=f"give {forms}")
    return kind.database(url)


def family_of(kind: DataType) -> str:
    """The family of a type of Spark; what is made of parts is written as JSON."""
    from pyspark.sql import types as T

    families: list[tuple[Any, str]] = [
        (T.BooleanType, BOOLEAN),
        (T.NumericType, NUMBER),
        ((T.DateType, T.TimestampType, T.TimestampNTZType), TIME),
        (T.BinaryType, BINARY),
    ]
    return next((family for types, family in families if isinstance(kind, types)), TEXT)


def chunked(cursor: Any, convert: Callable[[Any], bytes], size: int = 5_000) -> Iterator[list[bytes]]:
    """The rows of a cursor, some at a time."""
    while found := cursor.fetchmany(size):
        yield [convert(one) for one in found]
