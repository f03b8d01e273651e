"""One Spark session and one PostgreSQL for all tests of connectors: both take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_world import Shop

from spark import quick_jvm
from support import postgres


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    made = quick_jvm.shared_session()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    postgres.needed()
    pytest.importorskip("psycopg", reason='needs pip install "millstream[connect]"')
    with postgres.server() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Shop(tmp_path / "shop.db")
    server: postgres.Postgres = request.getfixturevalue("postgres_server")
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return Shop(server)
