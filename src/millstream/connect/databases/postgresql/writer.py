"""Writes rows into PostgreSQL by COPY, and the progress beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.connect.databases.database import (
    PROGRESS,
    PROGRESS_FIELDS,
    Change,
    Progress,
    RowFault,
    RowWriter,
)
from millstream.connect.databases.postgresql.connection import PostgresqlConnection
from millstream.connect.databases.postgresql.statements import (
    quoted,
    quoted_list,
    quoted_table,
    unescaped,
)

STAGE = "millstream_stage"
PROGRESS_COLUMNS = """
    writer text, target text, query text, batch bigint, offsets text, row_count bigint, refused text,
    PRIMARY KEY (writer, target)"""


class PostgresqlWriter(RowWriter):
    """Changes by key are staged in a temporary table and merged from there."""

    def __init__(self, connection: PostgresqlConnection) -> None:
        self._connection = connection

    def create_progress_table(self, table: str) -> None:
        progress = _progress_table(table)
        execute = self._connection.execute
        with self._connection.errors():
            if execute("SELECT to_regclass(%s)", (unescaped(progress),)).fetchone()[0] is None:
                with self._connection.session.transaction():
                    # Two flows that create the table concurrently would conflict in the catalog.
                    execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (progress,))
                    execute(f"CREATE TABLE IF NOT EXISTS {progress} ({PROGRESS_COLUMNS})")

    def lock_progress(self, writer: str, table: str) -> Progress | None:
        progress = _progress_table(table)
        with self._connection.errors():
            self._connection.execute(
                f"INSERT INTO {progress} (writer, target) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (writer, table),
            )
            row = self._connection.execute(
                f"SELECT {PROGRESS_FIELDS} FROM {progress} WHERE writer = %s AND target = %s FOR UPDATE",
                (writer, table),
            ).fetchone()
        return None if row is None or row[1] is None else Progress(*row)

    def record_progress(self, writer: str, table: str, progress: Progress) -> None:
        with self._connection.errors():
            self._connection.execute(
                f"UPDATE {_progress_table(table)} SET query = %s, batch = %s, offsets = %s, "
                "row_count = %s, refused = %s WHERE writer = %s AND target = %s",
                (*progress, writer, table),
            )

    def put(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> None:
        """With a key, write only the last change of each: it would overwrite the others."""
        connection = self._connection
        try:
            with connection.errors(), connection.session.transaction(), connection.row_faults():
                if key:
                    self._merge(table, columns, key, changes)
                else:
                    self._copy(quoted_table(table), columns, [change.values for change in changes])
        # psycopg cannot encode a value
        except (ValueError, OverflowError) as error:
            raise RowFault(str(error)) from None

    def _merge(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> None:
        indexes = [list(columns).index(column) for column in key]
        last = {tuple(change.values[i] for i in indexes): change for change in changes}
        upserts = [change.values for change in last.values() if not change.deleted]
        deletes = [values for values, change in last.items() if change.deleted]
        if upserts:
            self._upsert(quoted_table(table), columns, key, upserts)
        if deletes:
            match = " AND ".join(f"{quoted(column)} = %s" for column in key)
            with self._connection.session.cursor() as cursor:
                cursor.executemany(f"DELETE FROM {quoted_table(table)} WHERE {match}", deletes)

    def _upsert(
        self,
        target: str,
        columns: Sequence[str],
        key: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        names = quoted_list(columns)
        self._connection.execute(
            f"CREATE TEMP TABLE {STAGE} ON COMMIT DROP AS SELECT {names} FROM {target} WITH NO DATA"
        )
        self._copy(STAGE, columns, rows)
        assignments = [
            f"{quoted(column)} = EXCLUDED.{quoted(column)}"
            for column in columns
            if column not in key
        ]
        action = f"UPDATE SET {', '.join(assignments)}" if assignments else "NOTHING"
        self._connection.execute(
            f"INSERT INTO {target} ({names}) SELECT {names} FROM {STAGE} "
            f"ON CONFLICT ({quoted_list(key)}) DO {action}"
        )
        self._connection.execute(f"DROP TABLE {STAGE}")

    def _copy(self, target: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        # COPY has no placeholders, so psycopg leaves % alone.
        query = unescaped(f"COPY {target} ({quoted_list(columns)}) FROM STDIN")
        with self._connection.session.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)


def _progress_table(table: str) -> str:
    """Return the progress table in the schema of a table."""
    schema, dot, _ = table.rpartition(".")
    return f"{quoted(schema)}.{PROGRESS}" if dot else PROGRESS
