"""Reads rows from PostgreSQL, and finds out which changes are still open."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millstream.connect.databases.database import TEXT, TIME, Moment, Position, RowReader, chunked
from millstream.connect.databases.postgresql.catalog import PostgresqlCatalog
from millstream.connect.databases.postgresql.connection import PostgresqlConnection
from millstream.connect.databases.postgresql.statements import quoted, quoted_list, quoted_table

# Transactions that may write to the table. Our own count only once they have written, that is once
# they have a transaction id.
_OTHERS = """pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    AND (application_name <> 'millstream' OR backend_xid IS NOT NULL)"""


class PostgresqlReader(RowReader):
    """Positions are texts, cast to the type of their column in every comparison."""

    def __init__(self, connection: PostgresqlConnection, catalog: PostgresqlCatalog) -> None:
        self._connection = connection
        self._catalog = catalog

    def oldest_open_change(self, table: str, by: str) -> Moment:
        """Return the oldest open transaction id, and for a time column also the oldest start.

        A transaction gets an id with its first write, but now() is the time at which it began. It
        may only have read so far. If a table is read by a time, no transaction that began earlier
        may be open.
        """
        query = "SELECT txid_snapshot_xmin(txid_current_snapshot()), NULL"
        columns = self._catalog.columns(table) or ()
        if any(column.name == by and column.family == TIME for column in columns):
            query = (
                "SELECT txid_snapshot_xmin(txid_current_snapshot()), "
                f"min({_microseconds('xact_start')}) FROM {_OTHERS}"
            )
        number, started = self._row(query)
        return int(number), sys.maxsize if started is None else int(started)

    def next_change(self) -> Moment:
        number, now = self._row(
            f"SELECT txid_snapshot_xmax(txid_current_snapshot()), {_microseconds('clock_timestamp()')}"
        )
        return int(number), int(now)

    def describe_oldest_change(self) -> str:
        shown = self._connection.shown
        row = self._row(f"""
            SELECT pid, application_name, usename, state,
              date_trunc('second', clock_timestamp() - xact_start)::text
            FROM {_OTHERS} ORDER BY xact_start LIMIT 1""")
        # A prepared transaction, or one that this role may not see.
        if row is None:
            return f"a transaction of {shown}"
        pid, application, user, state, age = row
        client = f"{application or 'no application name'}, user {user}, {state} for {age}"
        return f"the transaction of process {pid} ({client}) of {shown}"

    def last_position(self, table: str, order: Sequence[str]) -> Position | None:
        row = self._row(
            f"SELECT {_as_text(order)} FROM {quoted_table(table)} AS found "
            f"WHERE {quoted(order[0])} IS NOT NULL ORDER BY {_descending(order)} LIMIT 1"
        )
        return None if row is None else tuple(row)

    def position_after(
        self, table: str, order: Sequence[str], start: Position | None, end: Position, rows: int
    ) -> Position | None:
        where, values = self._between(table, order, start, end)
        names = quoted_list(order)
        some = f"SELECT {names} FROM {quoted_table(table)} WHERE {where} ORDER BY {names} LIMIT %s"
        row = self._row(
            f"SELECT {_as_text(order)} FROM ({some}) AS found ORDER BY {_descending(order)} LIMIT 1",
            (*values, rows),
        )
        return None if row is None else tuple(row)

    def rows(
        self,
        table: str,
        columns: Mapping[str, str],
        order: Sequence[str],
        start: Position | None,
        end: Position,
    ) -> Iterator[list[bytes]]:
        where, values = self._between(table, order, start, end)
        texts = {
            column.name for column in self._catalog.columns(table) or () if column.family == TEXT
        }
        selected = [
            f"{_json_value(spark_type, quoted(name), is_text=name in texts)} AS {quoted(name)}"
            for name, spark_type in columns.items()
        ]
        query = (
            f"SELECT row_to_json(one)::text FROM (SELECT {', '.join(selected)} "
            f"FROM {quoted_table(table)} WHERE {where} ORDER BY {quoted_list(order)}) AS one"
        )
        connection = self._connection
        with (
            connection.errors(),
            connection.session.transaction(),
            connection.session.cursor("millstream") as cursor,
        ):
            cursor.itersize = 5_000
            cursor.execute(query, values)
            yield from chunked(cursor, lambda row: row[0].encode())

    def has_null(self, table: str, column: str, within: tuple[str, Any, Any] | None = None) -> bool:
        where, values = f"{quoted(column)} IS NULL", list[Any]()
        if within is not None:
            by, *values = within
            sql_type = self._sql_types(table)[by]
            where += f" AND {quoted(by)} BETWEEN %s::{sql_type} AND %s::{sql_type}"
        return (
            self._row(f"SELECT 1 FROM {quoted_table(table)} WHERE {where} LIMIT 1", values)
            is not None
        )

    def _between(
        self, table: str, order: Sequence[str], start: Position | None, end: Position
    ) -> tuple[str, tuple[Any, ...]]:
        sql_types = self._sql_types(table)
        marks = ", ".join(f"%s::{sql_types[column]}" for column in order)
        names = quoted_list(order)
        where = f"({names}) <= ({marks})"
        if start is None:
            return where, end
        return f"{where} AND ({names}) > ({marks})", (*end, *start)

    def _sql_types(self, table: str) -> dict[str, str]:
        return {column.name: column.sql_type for column in self._catalog.columns(table) or ()}

    def _row(self, query: str, values: Sequence[Any] = ()) -> Any:
        with self._connection.errors():
            return self._connection.execute(query, values).fetchone()


def _as_text(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)}::text" for name in names)


def _descending(order: Sequence[str]) -> str:
    """Qualify the names: without a table they would mean the texts that are selected."""
    return ", ".join(f"found.{quoted(name)} DESC" for name in order)


def _microseconds(time: str) -> str:
    return f"(extract(epoch FROM {time}) * 1000000)::bigint"


def _json_value(spark_type: str, column: str, *, is_text: bool = False) -> str:
    """Return the expression that makes a column JSON which a Spark type can read."""
    # Numbers, arrays and JSON as PostgreSQL writes them; Spark would format them differently.
    if spark_type == "string" and not is_text:
        return (
            f"CASE json_typeof(to_json({column})) WHEN 'string' THEN to_json({column}) "
            f"WHEN 'null' THEN NULL ELSE to_json(to_json({column})::text) END"
        )
    # encode() breaks lines after 76 characters
    if spark_type == "binary":
        return f"translate(encode({column}, 'base64'), E'\\n', '')"
    # Spark would round; a text makes the row a dead letter.
    if decimal := re.match(r"decimal\(\d+,(\d+)\)", spark_type):
        return (
            f"CASE WHEN {column}::numeric = round({column}::numeric, {decimal[1]}) "
            f"THEN to_json({column}) ELSE to_json({column}::text || ' has more digits') END"
        )
    # Spark would ignore anything after the date.
    if spark_type in ("date", "timestamp", "timestamp_ntz"):
        return (
            f"CASE WHEN {column}::text LIKE '%% BC' "
            f"THEN to_json('not a time of Spark: ' || {column}::text) ELSE to_json({column}) END"
        )
    return column
