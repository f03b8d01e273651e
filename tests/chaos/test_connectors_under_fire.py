"""Connectors while drivers, connections, the database, workers and the broker are killed: every row
once, as plain readers see it (``make fire``).

One pipeline has a flow for each connector, and a kill counts for every connector whose batch it
found open. It goes on until each has been hit often enough. ``MILLSTREAM_FIRE_ROWS`` says how many
rows each connector moves (60000), ``MILLSTREAM_FIRE_KILLS`` how many kills have to hit an open
batch of each (20), ``MILLSTREAM_KILL_SEED`` who and when.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
pytest.importorskip("psycopg", reason='needs pip install "millstream[connect]"')

import deltalake

from chaos.connector_world import (
    VICTIMS,
    ConnectorFire,
    Open,
    PostgresBatch,
    SlowReader,
    SqliteBatch,
)
from chaos.fire_world import Driver, Staged, Transactions
from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.local.broker import LocalBroker
from support import postgres

KILLS = int(os.environ.get("MILLSTREAM_FIRE_KILLS", "20"))
ROWS = int(os.environ.get("MILLSTREAM_FIRE_ROWS", "60000"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
PATIENCE_S = 1800.0
TIMEOUT_S = 25
# Enough batches for every kill to hit one of its own, in each connector.
BATCH = max(ROWS // 120, 1)
SINK = {
    "batchBytes": "2000",
    "driverBytes": "0",
    "batchAttempts": "10",
    "transactionTimeoutMs": str(TIMEOUT_S * 1000),
}
DECLARED = """
from millstream.connect import delta, files, table
from millstream.pipelines import Pipeline, topic

pipe = Pipeline("fire", retries=1000, trigger="300 ms", options={sink!r})
pipe.stream("numbers", schema="n int NOT NULL, k int NOT NULL", source={{"maxOffsetsPerTrigger": {batch}}})
pipe.stream("dropped", files({files!r}, format="csv", schema="n int NOT NULL", files_per_batch={per_batch}))
pipe.stream("stored", table({postgres!r}, "source", by="n", rows_per_batch={batch}, lag="0 s"), dead_letters=False)

pipe.sql("to_sqlite", "SELECT n, k FROM numbers", to=table({sqlite!r}, "target"))
pipe.sql("to_postgresql", "SELECT n, k FROM numbers", to=table({postgres!r}, "target", key="k"), mode="update")
pipe.sql("to_delta", "SELECT n, n % 3 AS third FROM numbers", to=delta({delta!r}, by="third"))
pipe.sql("from_files", "SELECT * FROM dropped", to=topic("from-files", partitions=2))
pipe.sql("from_table", "SELECT n FROM stored", to=topic("from-table", partitions=2))
"""
SQLITE = """
CREATE TABLE target (n INTEGER NOT NULL CHECK (n <> 7), k INTEGER);
"""
# Each row takes a little, so that transactions are open for a good part of the time.
POSTGRES = """
CREATE TABLE target (n integer CHECK (n <> 7), k integer PRIMARY KEY);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.003); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION slow();
CREATE TABLE source (n integer PRIMARY KEY);
"""


@pytest.fixture
def server() -> Iterator[postgres.Postgres]:
    postgres.needed()
    with postgres.server() as made:
        for statement in POSTGRES.split(";\n"):
            made.execute(statement)
        made.execute(f"INSERT INTO source SELECT * FROM generate_series(0, {ROWS - 1})")
        yield made


@pytest.fixture
def own(broker: Callable[..., LocalBroker]) -> LocalBroker:
    """Every number once; every key k has several of them, of which the greatest comes last."""
    made = broker({"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1})
    with Admin(made.bootstrap) as admin:
        admin.topics.create("numbers", partitions=2)
    with Producer(made.bootstrap, options={"linger.ms": 20}) as producer:
        for n in range(ROWS):
            k = n % (ROWS // 4)
            producer.send("numbers", b'{"n":%d,"k":%d}' % (n, k), partition=k % 2)
            if n % 1000 == 0:
                producer.poll()
    return made


@pytest.fixture
def driver(own: LocalBroker, server: postgres.Postgres, tmp_path: Path) -> Iterator[Driver]:
    for number in range(0, ROWS, BATCH):
        path = tmp_path / "incoming" / f"{number:08d}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "n\n"
            + "".join(f"{n}\n" for n in range(number, min(number + BATCH, ROWS)))
            + "oops\n" * (number == 0)
        )
    connection = sqlite3.connect(tmp_path / "target.db")
    connection.executescript(SQLITE)
    connection.close()
    made = Driver(tmp_path / "fire.py", own.bootstrap)
    made.masters = ("local[2]",)
    made.file.write_text(
        DECLARED.format(
            sink=SINK,
            batch=BATCH,
            files=str(tmp_path / "incoming"),
            per_batch=1,
            postgres=server.url,
            sqlite=f"sqlite:///{tmp_path / 'target.db'}",
            delta=str(tmp_path / "lake"),
        )
    )
    yield made
    made.end()


@pytest.mark.timeout(0)
def test_every_row_is_there_once(
    own: LocalBroker, server: postgres.Postgres, driver: Driver, tmp_path: Path
) -> None:
    is_open = Open(
        {
            "sqlite": SqliteBatch(tmp_path / "target.db"),
            "postgresql": PostgresBatch(server),
            "delta": Staged(tmp_path / "lake" / "_millstream" / "fire.to_delta"),
            "files": Transactions(own.bootstrap, ["fire.from_files"]),
            "table": Transactions(own.bootstrap, ["fire.from_table"]),
        }
    )
    fire = ConnectorFire(driver, own, is_open, SEED, TIMEOUT_S, server)
    with SlowReader(tmp_path / "target.db"):
        burn(fire)

    numbers = list(range(ROWS))
    kept = [n for n in numbers if n != 7]
    with sqlite3.connect(tmp_path / "target.db") as connection:
        assert [n for (n,) in connection.execute("SELECT n FROM target ORDER BY n")] == kept
    latest = {n % (ROWS // 4): n for n in kept}
    assert dict(server.execute("SELECT k, n FROM target")) == latest
    lake = deltalake.DeltaTable(str(tmp_path / "lake"))
    assert sorted(lake.to_pyarrow_table(columns=["n"])["n"].to_pylist()) == numbers
    assert len(lake.file_uris()) == len(list((tmp_path / "lake").glob("third=*/*.parquet")))
    for name in ("from-files", "from-table"):
        assert sorted(one["n"] for one in committed(own.bootstrap, name)) == numbers, name
    # What each database refuses, and the line that is no number: each once.
    assert [one["n"] for one in committed(own.bootstrap, "numbers.dlq")] == [7, 7]
    assert letters(own.bootstrap, "dropped.dlq") == [b"oops"]


def burn(fire: ConnectorFire) -> None:
    """Until every connector was hit often enough, then in peace to the end of the input."""
    began_s = time.monotonic()
    print(f"\nMILLSTREAM_KILL_SEED={SEED}, {ROWS} rows for each connector", flush=True)
    while min(fire.hit_connectors[one] for one in VICTIMS) < KILLS:
        assert fire.kills.total() < 12 * KILLS, f"too few kills hit an open batch\n{told(fire)}"
        fire.round()
        print(dict(fire.hit_connectors), flush=True)
    fire.stop_driver()
    took_s = time.monotonic() - began_s
    calm = fire.driver.file.read_text().replace(f": {BATCH}", f": {20 * BATCH}")
    calm = calm.replace(f"rows_per_batch={BATCH}", f"rows_per_batch={20 * BATCH}")
    fire.driver.file.write_text(calm.replace("files_per_batch=1", "files_per_batch=20"))
    fire.driver.start("--once", master="local[2]")
    assert fire.driver.wait(PATIENCE_S) == 0, fire.driver.tail()
    print(
        f"{told(fire)}\n{took_s:.0f} s under fire, {time.monotonic() - began_s:.0f} s in all",
        flush=True,
    )


def told(fire: ConnectorFire) -> str:
    return f"{fire.report()}\nkills that hit an open batch: {dict(fire.hit_connectors)}"


def letters(bootstrap: str, topic: str) -> list[bytes | None]:
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return [one.value for batch in consumer.batches(max_records=20_000) for one in batch]


def committed(bootstrap: str, topic: str) -> Iterator[dict[str, int]]:
    for value in letters(bootstrap, topic):
        yield json.loads(value or b"")
