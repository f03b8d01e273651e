"""What is open in each connector of ``test_connectors_under_fire``, and who is killed there besides drivers: connections, and the database itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from fire_world import Driver, Fire, Staged, Transactions

from millstream.cli.local_broker import LocalBroker
from support.postgres import Postgres

CONNECTIONS = (
    "SELECT pid, xact_start, backend_xid FROM pg_stat_activity WHERE application_name = 'millstream'"
)


class SqliteBatch:
    """A transaction that has begun to write: its journal is there. One batch is one number."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> set[str]:
        if not Path(f"{self._path}-journal").exists():
            return set()
        with contextlib.suppress(sqlite3.Error):
            connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=0)
            try:
                found = connection.execute("SELECT max(batch) FROM millstream_progress").fetchone()[0]
            finally:
                connection.close()
            return {f"sqlite after {found}"}
        return set()


class PostgresBatch:
    """Connections of the flows that have written in a transaction which is open."""

    def __init__(self, server: Postgres) -> None:
        self._server = server

    def connections(self) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self._server.url, autocommit=True, connect_timeout=2) as connection:
                return connection.execute(CONNECTIONS).fetchall()
        except psycopg.Error:
            return []

    def __call__(self) -> set[str]:
        return {f"postgresql {pid} {xid}" for pid, _, xid in self.connections() if xid is not None}


class Open:
    """Everything that is open now: the first word of each says in which connector."""

    def __init__(self, parts: dict[str, Callable[[], set[str]]]) -> None:
        self._parts = parts

    def __call__(self) -> set[str]:
        return {f"{name}: {one}" for name, part in self._parts.items() for one in part()}

    def close(self) -> None:
        for part in self._parts.values():
            if isinstance(part, Transactions | Staged):
                part.close()


class ConnectorFire(Fire):
    """The kills of ``Fire``, and connections to the database, and the database; counted for each connector that they hit."""

    def __init__(
        self,
        driver: Driver,
        broker: LocalBroker,
        is_open: Open,
        seed: int,
        timeout_s: float,
        server: Postgres,
    ) -> None:
        super().__init__(driver, broker, is_open, seed, timeout_s)  # type: ignore[arg-type]
        self._server = server
        self._backends = PostgresBatch(server)
        self.hit_connectors: Counter[str] = Counter()

    def deck(self) -> list[str]:
        return ["driver"] * 5 + ["connection"] * 4 + ["tasks"] * 2 + ["database", "broker_kill"]

    def _count(self, kind: str, found: set[str]) -> None:
        self.hit_connectors.update(one.partition(":")[0] for one in found - self._struck)
        super()._count(kind, found)

    def _connection(self) -> None:
        """The process of a connection, which is how PostgreSQL loses one; the server starts over its others then."""
        found = self.is_open()
        backends = [one for one in self._backends.connections() if one[2] is not None]
        if backends:
            pid = self.dice.choice(backends)[0]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if self.dice.random() < 0.3 else signal.SIGTERM)
                self._count("connection", {one for one in found if f"postgresql {pid} " in one})

    def _database(self) -> None:
        found = {one for one in self.is_open() if one.startswith("postgresql")}
        self._server.kill()
        self._count("database", found)
        time.sleep(self.dice.uniform(0.0, 4.0))
        self._server.start()
