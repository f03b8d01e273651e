"""Stores while whoever writes to them is killed: SQLite, PostgreSQL (its connections and the server
too) and Delta, with a driver that starts in a moment.

Every kill finds a batch open, another one each time: ``MILLSTREAM_FIRE_KILLS`` (20) says how many.
Then every row is there once, as plain readers see it, and every refused row was told once. The same
with Spark in front is ``test_connectors_under_fire``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
pytest.importorskip("psycopg", reason='needs pip install "millstream[connect]"')

import deltalake

from chaos.connector_world import PostgresBatch, SlowReader, SqliteBatch
from chaos.fire_world import Staged
from chaos.store_driver import REFUSED, ROWS, WRITER
from support import postgres

KILLS = int(os.environ.get("MILLSTREAM_FIRE_KILLS", "20"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
# More than kills: each hits a batch of its own, and some batches pass between them.
BATCHES = 6 * KILLS
KEYS = 3 * ROWS
PATIENCE_S = 300.0
LOOK_S = 0.002
SQLITE = "CREATE TABLE target (n INTEGER NOT NULL CHECK (n <> 7), k INTEGER)"
POSTGRES = """
CREATE TABLE target (n integer CHECK (n <> 7), k integer PRIMARY KEY);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION slow()
"""


class Writer:
    """``store_driver`` in a process of its own."""

    def __init__(self, directory: Path, kind: str, place: str) -> None:
        self._words = [kind, place, str(directory / "checkpoint"), str(BATCHES), str(KEYS)]
        self._log = directory / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        script = Path(__file__).with_name("store_driver.py")
        self.starts += 1
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *self._words], stdout=output, stderr=output
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.running:
            self.send(signal.SIGKILL)
            self.wait()

    def told(self) -> str:
        return self._log.read_text()[-2000:]


class Kills:
    """Kills that hit an open batch, by who was killed."""

    def __init__(
        self,
        writer: Writer,
        is_open: Callable[[], set[str]],
        others: dict[str, Callable[[set[str]], bool]],
    ) -> None:
        self.writer, self._is_open, self._others = writer, is_open, others
        self._dice = random.Random(SEED)
        self._struck: set[str] = set()
        self.hits: Counter[str] = Counter()

    def until(self, enough: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S * 4
        while self.hits.total() < enough:
            assert time.monotonic() < deadline_s, (
                f"{self.hits} after {self.writer.starts} starts\n{self.writer.told()}"
            )
            self._strike()
        if self.writer.running:
            code = self.writer.wait()
        else:
            self.writer.start()
            code = self.writer.wait()
        assert code == 0, self.writer.told()
        print(
            f"\nseed {SEED}: {dict(self.hits)} of kills hit an open batch, {self.writer.starts} drivers, {BATCHES} batches"
        )

    def _strike(self) -> None:
        if not self.writer.running:
            self.writer.start()
        self._lie_in_wait()
        kind = self._dice.choice(["driver", *self._others])
        if kind != "driver":
            found = self._is_open() - self._struck
            if found and self._others[kind](found):
                self._count(kind, found)
            return
        self.writer.send(signal.SIGSTOP)
        found = self._is_open() - self._struck
        self.writer.send(signal.SIGKILL)
        self.writer.wait()
        self._count(kind, found)

    def _lie_in_wait(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._is_open() - self._struck:
            assert self.writer.running, (
                f"all batches are written after {self.hits}\n{self.writer.told()}"
            )
            assert time.monotonic() < deadline_s, self.writer.told()
            time.sleep(LOOK_S)
        time.sleep(self._dice.uniform(0.0, 0.15))

    def _count(self, kind: str, found: set[str]) -> None:
        self.hits[kind] += bool(found)
        self._struck |= found


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[[str, str], Writer]]:
    made: list[Writer] = []

    def start(kind: str, place: str) -> Writer:
        made.append(Writer(tmp_path, kind, place))
        return made[-1]

    yield start
    for one in made:
        one.end()


def refused(directory: Path) -> list[dict[str, int]]:
    """What was told of refused rows, batch by batch; a batch that was run again told the same
    again.
    """
    return [
        json.loads(one)
        for number in range(BATCHES)
        for one in json.loads((directory / f"refused-{number}").read_text())
    ]


NUMBERS = range(BATCHES * ROWS)


@pytest.mark.timeout(0)
def test_every_row_is_in_sqlite_once(written: Callable[[str, str], Writer], tmp_path: Path) -> None:
    path = tmp_path / "target.db"
    with sqlite3.connect(path) as connection:
        connection.execute(SQLITE)
    with SlowReader(path):
        Kills(written("sqlite", f"sqlite:///{path}"), SqliteBatch(path), {}).until(KILLS)
    with sqlite3.connect(path) as connection:
        assert [n for (n,) in connection.execute("SELECT n FROM target ORDER BY n")] == [
            n for n in NUMBERS if n != REFUSED
        ]
    assert [one["n"] for one in refused(tmp_path)] == [REFUSED]


@pytest.mark.timeout(0)
def test_every_row_is_in_postgresql_once(
    written: Callable[[str, str], Writer], tmp_path: Path
) -> None:
    postgres.needed()
    with postgres.server() as server:
        for statement in POSTGRES.split(";\n"):
            server.execute(statement)
        batch = PostgresBatch(server)

        def connection(found: set[str]) -> bool:
            pid = int(next(iter(found)).split()[0])
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                return False
            return True

        def database(found: set[str]) -> bool:
            server.kill()
            server.start()
            return True

        kills = Kills(
            written("postgresql", server.url),
            batch,
            {"connection": connection, "database": database},
        )
        kills.until(KILLS)
        latest = {n % KEYS: n for n in NUMBERS if n != REFUSED}
        assert dict(server.execute("SELECT k, n FROM target")) == latest
        rows = server.execute("SELECT batch, row_count FROM millstream_progress")
        assert rows == [(BATCHES - 1, ROWS)]
    assert [one["n"] for one in refused(tmp_path)] == [REFUSED]


@pytest.mark.timeout(0)
def test_every_row_is_in_delta_once(written: Callable[[str, str], Writer], tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    Kills(written("delta", str(lake)), Staged(lake / "_millstream" / WRITER), {}).until(KILLS)
    found = deltalake.DeltaTable(str(lake))
    assert sorted(found.to_pyarrow_table(columns=["n"])["n"].to_pylist()) == list(NUMBERS)
    assert len(found.file_uris()) == len(list(lake.glob("k=*/*.parquet"))), (
        "files that nobody counts"
    )
    assert found.transaction_version(f"millstream.{WRITER}") == BATCHES - 1
