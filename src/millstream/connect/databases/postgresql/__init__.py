"""PostgreSQL through psycopg.

Rows are written by COPY. The progress row is locked while a batch is written.
"""

from __future__ import annotations

from millstream.connect.databases.database import Database
from millstream.connect.databases.postgresql.catalog import PostgresqlCatalog
from millstream.connect.databases.postgresql.column_types import PostgresqlTypes
from millstream.connect.databases.postgresql.connection import PostgresqlConnection
from millstream.connect.databases.postgresql.reader import PostgresqlReader
from millstream.connect.databases.postgresql.writer import PostgresqlWriter


def database(url: str) -> Database:
    """Return the database of a URL, not opened yet."""
    connection = PostgresqlConnection(url)
    catalog = PostgresqlCatalog(connection)
    return Database(
        connection,
        PostgresqlTypes(),
        catalog,
        PostgresqlWriter(connection),
        PostgresqlReader(connection, catalog),
    )
