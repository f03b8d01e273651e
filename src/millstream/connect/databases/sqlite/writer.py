"""Writes rows into SQLite, and the progress beside them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from millstream.connect.databases.database import (
    PROGRESS,
    PROGRESS_FIELDS,
    Change,
    Progress,
    RowFault,
    RowWriter,
)
from millstream.connect.databases.sqlite.connection import ROW_FAULTS, SqliteConnection
from millstream.connect.databases.sqlite.statements import quoted, quoted_list
from millstream.pipelines.errors import PipelineError

PROGRESS_TABLE = f"""
CREATE TABLE IF NOT EXISTS {PROGRESS} (
    writer TEXT NOT NULL, target TEXT NOT NULL, query TEXT NOT NULL, batch INTEGER NOT NULL,
    offsets TEXT NOT NULL, row_count INTEGER NOT NULL, refused TEXT NOT NULL, PRIMARY KEY (writer, target)
)"""
_DEFERRED = re.compile(r"\bINITIALLY\s+DEFERRED\b", re.I)


class SqliteWriter(RowWriter):
    """The lock of a transaction covers the whole file, and so the progress."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def create_progress_table(self, table: str) -> None:
        with self._connection.errors():
            self._connection.session.execute(PROGRESS_TABLE)

    def lock_progress(self, writer: str, table: str) -> Progress | None:
        with self._connection.errors():
            row = self._connection.session.execute(
                f"SELECT {PROGRESS_FIELDS} FROM {PROGRESS} WHERE writer = ? AND target = ?",
                (writer, table),
            ).fetchone()
        return None if row is None else Progress(*row)

    def record_progress(self, writer: str, table: str, progress: Progress) -> None:
        with self._connection.errors():
            self._connection.session.execute(
                f"INSERT OR REPLACE INTO {PROGRESS} VALUES (?, ?, ?, ?, ?, ?, ?)",
                (writer, table, *progress),
            )

    def put(
        self, table: str, columns: Sequence[str], key: Sequence[str], changes: Sequence[Change]
    ) -> None:
        upsert, delete = _statements(table, columns, key)
        indexes = [list(columns).index(column) for column in key]
        with self._connection.errors():
            session = self._connection.session
            broken_before = self._broken_references(table)
            session.execute("SAVEPOINT part")
            try:
                for deleted, rows in _runs(changes):
                    if deleted:
                        session.executemany(
                            delete, [tuple(row[i] for i in indexes) for row in rows]
                        )
                    else:
                        session.executemany(upsert, rows)
                if broken := self._broken_references(table) - broken_before:
                    raise sqlite3.IntegrityError(
                        f"FOREIGN KEY constraint failed: no such row in {min(broken)[2]}"
                    )
            except ROW_FAULTS as fault:
                if not session.in_transaction:
                    raise PipelineError(
                        f"table {table} of {self._connection.shown} ended the transaction of a "
                        f"batch: {fault}",
                        hint="a trigger that rejects one row must use RAISE(ABORT, ...), "
                        "not RAISE(ROLLBACK, ...)",
                    ) from None
                session.execute("ROLLBACK TO part")
                raise RowFault(f"{fault}") from None
            finally:
                if session.in_transaction:
                    session.execute("RELEASE part")

    def _broken_references(self, table: str) -> set[tuple[Any, ...]]:
        """Return the rows that break a deferred foreign key.

        SQLite checks those at commit, where one row would fail the whole batch.
        """
        session = self._connection.session
        definition = session.execute(
            "SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (table,)
        ).fetchone()
        if not definition or not _DEFERRED.search(definition[0] or ""):
            return set()
        return set(session.execute(f"PRAGMA foreign_key_check({quoted(table)})").fetchall())


def _statements(table: str, columns: Sequence[str], key: Sequence[str]) -> tuple[str, str]:
    """Return the statement that upserts a row, and the one that deletes the row of a key."""
    marks = ", ".join("?" for _ in columns)
    upsert = f"INSERT INTO {quoted(table)} ({quoted_list(columns)}) VALUES ({marks})"
    if key:
        assignments = [
            f"{quoted(column)} = excluded.{quoted(column)}"
            for column in columns
            if column not in key
        ]
        action = f"UPDATE SET {', '.join(assignments)}" if assignments else "NOTHING"
        upsert += f" ON CONFLICT ({quoted_list(key)}) DO {action}"
    match = " AND ".join(f"{quoted(column)} = ?" for column in key)
    return upsert, f"DELETE FROM {quoted(table)} WHERE {match}"


def _runs(changes: Sequence[Change]) -> Iterator[tuple[bool, list[tuple[Any, ...]]]]:
    """Group consecutive upserts and consecutive deletes, with values as SQLite stores them."""
    run: list[tuple[Any, ...]] = []
    deleted = False
    for change in changes:
        if change.deleted != deleted and run:
            yield deleted, run
            run = []
        deleted = change.deleted
        run.append(tuple(map(_stored, change.values)))
    if run:
        yield deleted, run


def _stored(value: Any) -> Any:
    """Return a value as SQLite stores it.

    Times are texts of a fixed width, which sort and which SQLite's functions read. Decimals are
    texts too.
    """
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
