"""Reads rows from SQLite, whose values need not be of the declared type."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millstream.connect.databases.database import (
    BINARY,
    BOOLEAN,
    NUMBER,
    OTHER,
    TEXT,
    Moment,
    Position,
    RowReader,
    chunked,
)
from millstream.connect.databases.sqlite.catalog import SqliteCatalog
from millstream.connect.databases.sqlite.connection import SqliteConnection
from millstream.connect.databases.sqlite.statements import quoted, quoted_list
from millstream.pipelines.errors import PipelineError

LONE_SURROGATE = "\ud800"
"""Not valid in any text, so the reader of a text rejects a value that begins with it."""
# The typeof() of a family's values, if the family is stored in one way only.
_STORED_AS = {NUMBER: NUMBER, BOOLEAN: NUMBER, TEXT: "text", BINARY: "blob"}


class SqliteReader(RowReader):
    """One writer at a time: numbers that are taken at an insert are committed in order."""

    def __init__(self, connection: SqliteConnection, catalog: SqliteCatalog) -> None:
        self._connection = connection
        self._catalog = catalog

    def oldest_open_change(self, table: str, by: str) -> Moment:
        return ()

    def next_change(self) -> Moment:
        return ()

    def last_position(self, table: str, order: Sequence[str]) -> Position | None:
        self._check_stored_types(table, order[0])
        return self._position(
            f"SELECT {quoted_list(order)} FROM {quoted(table)} WHERE {quoted(order[0])} IS NOT NULL "
            f"ORDER BY {_descending(order)} LIMIT 1"
        )

    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        where, values = _between(order, start, end)
        names = quoted_list(order)
        some = f"SELECT {names} FROM {quoted(table)} WHERE {where} ORDER BY {names} LIMIT ?"
        return self._position(
            f"SELECT {names} FROM ({some}) ORDER BY {_descending(order)} LIMIT 1", (*values, rows)
        )

    def rows(
        self,
        table: str,
        columns: Mapping[str, str],
        order: Sequence[str],
        start: Position | None,
        end: Position,
    ) -> Iterator[list[bytes]]:
        where, values = _between(order, start, end)
        spark_types = list(columns.items())

        def convert(row: Sequence[Any]) -> bytes:
            values = zip(spark_types, row, strict=True)
            return json.dumps({name: _json(value, kind) for (name, kind), value in values}).encode()

        with self._connection.errors():
            cursor = self._connection.session.execute(
                f"SELECT {quoted_list(list(columns))} FROM {quoted(table)} WHERE {where} "
                f"ORDER BY {quoted_list(order)}",
                values,
            )
            yield from chunked(cursor, convert)

    def has_null(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        where, values = f"{quoted(column)} IS NULL", list[Any]()
        if within is not None:
            by, *values = within
            where += f" AND {quoted(by)} BETWEEN ? AND ?"
        query = f"SELECT 1 FROM {quoted(table)} WHERE {where} LIMIT 1"
        with self._connection.errors():
            return self._connection.session.execute(query, values).fetchone() is not None

    def _position(self, query: str, values: Sequence[Any] = ()) -> Position | None:
        with self._connection.errors():
            row = self._connection.session.execute(query, values).fetchone()
        return None if row is None else tuple(row)

    def _check_stored_types(self, table: str, column: str) -> None:
        """Raise if a column mixes numbers, texts and bytes.

        SQLite sorts numbers before texts before bytes, whatever is declared, so rows of another
        type than the rest would be skipped.
        """
        families = {known.name: known.family for known in self._catalog.columns(table) or ()}
        expected = _STORED_AS.get(families.get(column, OTHER))
        name = quoted(column)
        query = f"SELECT {name}, typeof({name}) FROM {quoted(table)} WHERE {name} IS NOT NULL ORDER BY {name}"
        with self._connection.errors():
            execute = self._connection.session.execute
            ends = [
                execute(f"{query} {direction} LIMIT 1").fetchone() for direction in ("ASC", "DESC")
            ]
        for value, stored_type in filter(None, ends):
            stored = NUMBER if stored_type in ("integer", "real") else stored_type
            expected = expected or stored
            if stored != expected:
                raise PipelineError(
                    f"table {table} of {self._connection.shown} has {value!r} in {column}, by which "
                    f"it is read: {stored} among values that are {expected}, which SQLite does not "
                    "sort among them",
                    hint="correct that row, or read by another column",
                )


def _descending(order: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)} DESC" for name in order)


def _between(
    order: Sequence[str], start: Position | None, end: Position
) -> tuple[str, tuple[Any, ...]]:
    marks = ", ".join("?" for _ in order)
    names = quoted_list(order)
    where = f"({names}) <= ({marks})"
    if start is None:
        return f"{where} AND {quoted(order[0])} IS NOT NULL", end
    return f"{where} AND ({names}) > ({marks})", (*end, *start)


def _json(value: Any, spark_type: str) -> Any:
    """Return a value as JSON; one that is not of the Spark type becomes JSON that is rejected."""
    if isinstance(value, bytes):
        is_binary = spark_type == "binary"
        return base64.b64encode(value).decode() if is_binary else LONE_SURROGATE + repr(value)
    # A text is not bytes, even if it looks like base64.
    if spark_type == "binary" and value is not None:
        return {"value": value}
    if spark_type == "string" and isinstance(value, int | float):
        return str(value)
    if spark_type == "boolean" and value in (0, 1):
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
