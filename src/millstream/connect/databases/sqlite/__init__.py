"""SQLite: one file, one writer at a time.

A commit syncs the file. Numbers that are taken at an insert are committed in their order.
"""

from __future__ import annotations

from millstream.connect.databases.database import Database
from millstream.connect.databases.sqlite.catalog import SqliteCatalog
from millstream.connect.databases.sqlite.column_types import SqliteTypes
from millstream.connect.databases.sqlite.connection import SqliteConnection
from millstream.connect.databases.sqlite.reader import SqliteReader
from millstream.connect.databases.sqlite.writer import SqliteWriter


def database(url: str) -> Database:
    """Return the database of a URL, not opened yet."""
    connection = SqliteConnection(url)
    catalog = SqliteCatalog(connection)
    return Database(
        connection,
        SqliteTypes(connection.shown),
        catalog,
        SqliteWriter(connection),
        SqliteReader(connection, catalog),
    )
