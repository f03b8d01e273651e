"""Fixtures of the connector tests: an empty database of each kind.

All tests share one PostgreSQL server, because it takes seconds to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import postgres
from support.connect.store_world import Shop


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    postgres.needed()
    pytest.importorskip("psycopg", reason='needs pip install "millstream[connect]"')
    with postgres.server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Shop(tmp_path / "shop.db")
    server: postgres.Postgres = request.getfixturevalue("postgres_server")
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return Shop(server)
