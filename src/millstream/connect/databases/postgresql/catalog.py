"""The tables of a PostgreSQL database: their columns and unique keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.connect.databases.database import Catalog, Column
from millstream.connect.databases.postgresql.column_types import declared_type, family_of_sql
from millstream.connect.databases.postgresql.connection import PostgresqlConnection
from millstream.connect.databases.postgresql.statements import (
    quoted,
    quoted_list,
    quoted_table,
    unescaped,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod),
      attnotnull AND NOT atthasdef AND attidentity = '', NOT attnotnull
    FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
      AND attgenerated = '' ORDER BY attnum"""
_UNIQUE_KEYS = """
    SELECT array_agg(attname::text ORDER BY ord)
    FROM pg_index, unnest(indkey) WITH ORDINALITY AS k(num, ord), pg_attribute
    WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indexprs IS NULL
      AND attrelid = indrelid AND attnum = k.num
    GROUP BY indexrelid, indisprimary ORDER BY indisprimary DESC"""


class PostgresqlCatalog(Catalog):
    """Reads pg_attribute and pg_index."""

    def __init__(self, connection: PostgresqlConnection) -> None:
        self._connection = connection

    def columns(self, table: str) -> list[Column] | None:
        with self._connection.errors():
            rows = self._connection.execute(_COLUMNS, (unescaped(quoted_table(table)),)).fetchall()
        return [
            Column(name, sql_type, family_of_sql(sql_type), *flags)
            for name, sql_type, *flags in rows
        ] or None

    def unique_keys(self, table: str) -> list[tuple[str, ...]]:
        with self._connection.errors():
            rows = self._connection.execute(
                _UNIQUE_KEYS, (unescaped(quoted_table(table)),)
            ).fetchall()
        return [tuple(row[0]) for row in rows]

    def create(self, table: str, schema: StructType, key: Sequence[str]) -> None:
        columns = [
            f"{quoted(field.name)} {declared_type(field.dataType)}" for field in schema.fields
        ]
        if key:
            columns.append(f"PRIMARY KEY ({quoted_list(key)})")
        with self._connection.errors():
            self._connection.execute(f"CREATE TABLE {quoted_table(table)} ({', '.join(columns)})")
