"""The databases of the connector tests: a URL, and a plain connection to check the rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from support.postgres import Postgres


class Shop:
    """A database: ``url`` for a flow, ``execute`` for the test."""

    def __init__(self, place: Path | Postgres) -> None:
        self._place = place
        self.url = place.url if isinstance(place, Postgres) else f"sqlite:///{place}"
        self.kind = "postgresql" if isinstance(place, Postgres) else "sqlite"

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if isinstance(self._place, Postgres):
            return self._place.execute(query, *values)
        connection = sqlite3.connect(self._place, timeout=30)
        try:
            with connection:
                return connection.execute(query.replace("%s", "?"), values).fetchall()
        finally:
            connection.close()
