"""The tables of a SQLite file: their columns and unique keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.connect.databases.database import Catalog, Column
from millstream.connect.databases.sqlite.column_types import declared_type, family_of_sql
from millstream.connect.databases.sqlite.connection import SqliteConnection
from millstream.connect.databases.sqlite.statements import quoted, quoted_list

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class SqliteCatalog(Catalog):
    """Reads the table and index pragmas."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def columns(self, table: str) -> list[Column] | None:
        # Opening a missing file would create it.
        if not self._connection.exists:
            return None
        with self._connection.errors():
            rows = self._connection.session.execute(
                f"PRAGMA table_xinfo({quoted(table)})"
            ).fetchall()
        # Columns of a row: cid, name, type, notnull, default, pk, hidden. An INTEGER PRIMARY KEY
        # gets its numbers automatically.
        primary = [(name, sql_type) for _, name, sql_type, _, _, pk, _ in rows if pk]
        rowid = primary[0][0] if len(primary) == 1 and primary[0][1].upper() == "INTEGER" else None
        return [
            Column(
                name,
                sql_type,
                family_of_sql(sql_type),
                required=bool(notnull) and default is None and name != rowid,
                nullable=not notnull and name != rowid,
            )
            for _, name, sql_type, notnull, default, _, hidden in rows
            if not hidden
        ] or None

    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        execute = self._connection.session.execute
        with self._connection.errors():
            columns = execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            # (place in the primary key, name)
            in_primary = sorted((column[5], column[1]) for column in columns if column[5])
            keys = [tuple(name for _, name in in_primary)] if in_primary else []
            for _, index, unique, _, partial in execute(f"PRAGMA index_list({quoted(table)})"):
                if unique and not partial:
                    parts = execute(f"PRAGMA index_info({quoted(index)})").fetchall()
                    keys.append(tuple(name for _, _, name in parts))
        # Expressions have no name.
        return [key for key in keys if all(key)]

    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None:
        columns = [
            f"{quoted(field.name)} {declared_type(field.dataType)}" for field in schema.fields
        ]
        if key:
            columns.append(f"PRIMARY KEY ({quoted_list(key)})")
        with self._connection.errors():
            self._connection.session.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)})")
