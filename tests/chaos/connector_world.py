"""What is open in each connector of ``test_connectors_under_fire``, and who is killed there besides
drivers: connections, and the database itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from chaos.fire_world import LOOK_S, Driver, Fire, Staged, Transactions
from millstream.local.broker import LocalBroker
from support.postgres import Postgres

CONNECTIONS = "SELECT pid, backend_xid FROM pg_stat_activity WHERE application_name = 'millstream'"
NONCE = slice(12, 16)
PATIENCE_S = 120.0


class SqliteBatch:
    """A transaction that has begun to write: its journal is there, with a number in its head that
    is another one each time.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Path(f"{path}-journal")

    def __call__(self) -> set[str]:
        try:
            with self._journal.open("rb") as file:
                head = file.read(NONCE.stop)
        except FileNotFoundError:
            return set()
        return {head[NONCE].hex()} if len(head) == NONCE.stop else set()


class SlowReader:
    """Holds SQLite's lock for readers for a second, again and again: commits have to wait, as they
    do where others read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> SlowReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        while not self._ended.wait(0.3):
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM target").fetchone()
                self._ended.wait(1.0)
                connection.execute("COMMIT")
        connection.close()


class PostgresBatch:
    """Connections of the flows that have written in a transaction which is open."""

    def __init__(self, server: Postgres) -> None:
        self._server = server

    def connections(self) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(
                self._server.url, autocommit=True, connect_timeout=2
            ) as connection:
                return connection.execute(CONNECTIONS).fetchall()
        except psycopg.Error:
            return []

    def __call__(self) -> set[str]:
        return {f"{pid} {xid}" for pid, xid in self.connections() if xid is not None}


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


# Who is killed for the sake of each connector. SQLite and Delta have no connection: the driver is
# all there is between them and the rows.
VICTIMS = {
    "sqlite": ("driver",),
    "delta": ("driver", "driver", "tasks"),
    "postgresql": ("connection", "connection", "database", "driver"),
    "files": ("driver", "tasks", "broker_kill"),
    "table": ("connection", "driver", "tasks", "broker_kill"),
}
# How long after a batch was opened: transactions of the topics are over soon.
AIM_S = {"files": 0.05, "table": 0.05}
# A driver takes long to come back, the longer the more it runs: it has the flows of these few
# connectors, and its death hits all if that can be.
FLOWS = {name: f"{'from' if name in ('files', 'table') else 'to'}_{name}" for name in VICTIMS}
TOGETHER = 2
LONGER_S = 3.0
# How far the others may be ahead of one before its turn comes.
AHEAD = 2


class ConnectorFire(Fire):
    """Kills for the sake of the connector that was hit least, while its batch is open; they count
    for all that they hit.
    """

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
        self._aim = self._victim = ""
        self._flows: list[str] = []
        self.hit_connectors: Counter[str] = Counter()

    def _start_driver(self) -> None:
        by_need = sorted(VICTIMS, key=lambda one: (self.hit_connectors[one], self.dice.random()))
        self._flows = by_need[:TOGETHER]
        self.driver.start(*(word for one in self._flows for word in ("--only", FLOWS[one])))

    def _next(self) -> str:
        self._aim = min(self._flows, key=lambda one: (self.hit_connectors[one], self.dice.random()))
        behind = self.hit_connectors[self._aim] - min(self.hit_connectors[one] for one in VICTIMS)
        self._victim = "driver" if behind >= AHEAD else self.dice.choice(VICTIMS[self._aim])
        return self._victim

    def _lie_in_wait(self) -> None:
        began_s = time.monotonic()
        first_s: float | None = None
        while True:
            now_s = time.monotonic()
            if not self.driver.running or now_s > began_s + PATIENCE_S:
                return
            found = {one.partition(":")[0] for one in self.is_open() - self._struck}
            if found and first_s is None:
                first_s = now_s
            together = TOGETHER - int((now_s - (first_s or now_s)) / LONGER_S)
            if self._aim in found and (self._victim != "driver" or len(found) >= together):
                break
            time.sleep(LOOK_S)
        time.sleep(self.dice.uniform(0.0, min(AIM_S.get(one, 0.3) for one in found)))

    def _count(self, kind: str, found: set[str]) -> None:
        self.hit_connectors.update({one.partition(":")[0] for one in found - self._struck})
        super()._count(kind, found)

    def _connection(self) -> None:
        """The process of a connection, which is how PostgreSQL loses one: by itself, or so that the
        server starts all others over.
        """
        found = self.is_open()
        writing = self._aim == "postgresql"
        backends = [
            pid for pid, xid in self._backends.connections() if writing == (xid is not None)
        ]
        if not backends:
            return
        pid = self.dice.choice(backends)
        mine = {
            one
            for one in found
            if one.startswith("table:" if not writing else f"postgresql: {pid} ")
        }
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if self.dice.random() < 0.3 else signal.SIGTERM)
            self._count("connection", mine)

    def _database(self) -> None:
        found = {one for one in self.is_open() if one.startswith("postgresql:")}
        self._server.kill()
        self._count("database", found)
        time.sleep(self.dice.uniform(0.0, 4.0))
        self._server.start()
