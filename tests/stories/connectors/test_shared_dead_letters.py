"""Several readers of one topic share its dead-letter topic: a bad record goes back once, and
tombstones are no letters.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow.dataset

from millstream.client.admin.client import Admin
from millstream.client.consumer import consume
from millstream.client.dead_letters.letters import DeadLetter, dead_letter, summary
from millstream.client.dead_letters.redrive import RedriveRequest, Target, execute
from millstream.connect.addresses import parse_address
from millstream.connect.build import ConnectOptions, connection
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, parquet
from support.spark.pipeline_world import create, run_once, send, send_keyed

pytestmark = pytest.mark.timeout(600)

SCHEMA = "id int, name string"


class Readers:
    """Connectors from one topic to Parquet, Delta and a table with a key."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.directory = directory
        self._spark = spark

    def connector(self, target: str, **options: Any) -> Pipeline:
        connect_options = ConnectOptions(
            self.bootstrap, f"{self.topic}-{len(target)}", schema=SCHEMA, **options
        )
        return connection(
            parse_address(f"topic:{self.topic}"), parse_address(target), connect_options
        )

    def run(self, **options: Any) -> None:
        for target in (f"parquet:{self.directory}/lake", f"delta:{self.directory}/delta-lake"):
            self.once(self.connector(target, **options))
        self.once(
            self.connector(f"sqlite:///{self.directory}/shop-of-orders.db#orders", key=("id",))
        )

    def once(self, pipeline: Pipeline) -> None:
        run_once(pipeline, self._spark, self.directory / "checkpoints")

    def letters(self) -> list[DeadLetter]:
        return [dead_letter(one) for one in consume(self.bootstrap, f"{self.topic}.dlq")]

    def table(self) -> list[Any]:
        with sqlite3.connect(self.directory / "shop-of-orders.db") as database:
            return database.execute("SELECT id, name FROM orders ORDER BY id").fetchall()

    def parquet(self, name: str = "lake") -> list[dict[str, Any]]:
        return pyarrow.dataset.dataset(self.directory / name).to_table().to_pylist()


@pytest.fixture
def readers(spark: Any, shared_broker: LocalBroker, topic_name: str, tmp_path: Path) -> Readers:
    pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    create(shared_broker.bootstrap, topic_name, partitions=1)
    return Readers(spark, shared_broker.bootstrap, topic_name, tmp_path)


def test_bad_record_that_three_connectors_refuse_goes_back_once(readers: Readers) -> None:
    send_keyed(readers.bootstrap, readers.topic, {"1": {"id": 1, "name": "ann"}})
    send(readers.bootstrap, readers.topic, [b"oops"])
    readers.run()
    found = readers.letters()
    assert [one.record.value for one in found] == [b"oops"] * 3
    assert len({one.pipeline for one in found}) == 3 and len({one.identity for one in found}) == 1
    request = RedriveRequest(f"{readers.topic}.dlq")
    with Admin(readers.bootstrap) as admin:
        done = execute(admin, request)
        assert (done.sent, done.repeated) == ({Target(readers.topic, 0): 1}, 2)
        assert summary(admin, request.topic).left == 0
        assert [one.value for one in consume(readers.bootstrap, readers.topic)][1:] == [
            b"oops",
            b"oops",
        ]
        # It is still bad: three letters about the record that was sent back, which is another one.
        readers.run()
        assert [one.redriven for one in readers.letters()] == [0, 0, 0, 1, 1, 1]
        assert execute(admin, request).count == 1


def test_tombstone_is_no_letter_and_a_redrive_deletes_no_live_row(readers: Readers) -> None:
    rows = {str(number): {"id": number, "name": f"n{number}"} for number in range(3)}
    send_keyed(readers.bootstrap, readers.topic, rows)
    send_keyed(readers.bootstrap, readers.topic, {"0": None, "1": None})
    strict = Pipeline(f"{readers.topic}-strict", bootstrap=readers.bootstrap)
    strict.stream("orders", topic=readers.topic, schema=SCHEMA, tombstones="error")
    strict.sql("stored", "SELECT * FROM orders", to=parquet(str(readers.directory / "strict")))
    readers.run()
    assert readers.table() == [(2, "n2")]
    assert len(readers.parquet()) == 3
    with Admin(readers.bootstrap) as admin:
        assert summary(admin, f"{readers.topic}.dlq").records == 0
        # A reader that declares them errors has letters. One of the keys is written again.
        readers.once(strict)
        assert [(one.record.key, one.reason) for one in readers.letters()] == [
            (b"0", "the value is null"),
            (b"1", "the value is null"),
        ]
        send_keyed(readers.bootstrap, readers.topic, {"1": {"id": 1, "name": "again"}})
        done = execute(admin, RedriveRequest(f"{readers.topic}.dlq"))
        assert (done.count, done.newer, done.examples[0].key) == (1, 1, b"1")
    readers.run()
    assert readers.table() == [(1, "again"), (2, "n2")]


def test_value_that_is_null_without_a_key_is_a_letter(readers: Readers) -> None:
    send(readers.bootstrap, readers.topic, [None])
    readers.once(readers.connector(f"parquet:{readers.directory}/lake"))
    assert [one.reason for one in readers.letters()] == ["the value is null"]


def test_tombstones_can_be_kept_in_parquet_and_delta(readers: Readers) -> None:
    send_keyed(readers.bootstrap, readers.topic, {"0": {"id": 0, "name": "n0"}, "1": None})
    readers.run(tombstones="keep")
    expected = [
        {"id": 0, "name": "n0", "_deleted": False, "_key": b"0"},
        {"id": None, "name": None, "_deleted": True, "_key": b"1"},
    ]
    from deltalake import DeltaTable

    stored = DeltaTable(str(readers.directory / "delta-lake")).to_pyarrow_table().to_pylist()
    for found in (readers.parquet(), stored):
        assert sorted(found, key=str) == sorted(expected, key=str)
