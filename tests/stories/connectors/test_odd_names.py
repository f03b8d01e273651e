"""Columns whose names need quoting arrive everywhere: blanks, dots, backticks and words of SQL, at
the top and inside others.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from millstream.connect import delta, table
from millstream.connect.addresses import parse_address
from millstream.connect.build import ConnectOptions, connection
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, topic
from support.spark.pipeline_world import create, records, run_once, send_keyed

pytestmark = pytest.mark.timeout(600)

SCHEMA = (
    "`a b` int NOT NULL, `a.b` string, `c``d` string, `select` struct<`x y`: int, `z``.z`: int>"
)
ROW = {"a b": 1, "a.b": "x y", "c`d": "back", "select": {"x y": 2, "z`.z": 3}}


@pytest.fixture
def lake(
    spark: Any,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A topic of two records and a removal, as tables of SQLite and Delta."""
    monkeypatch.chdir(tmp_path)
    topic_name = f"{topic_name}-odd"
    create(shared_broker.bootstrap, topic_name, partitions=1)
    gone = ROW | {"a b": 2}
    keyed = {json.dumps({"a b": one["a b"], "a.b": one["a.b"]}): one for one in (ROW, gone)}
    send_keyed(shared_broker.bootstrap, topic_name, keyed)
    send_keyed(shared_broker.bootstrap, topic_name, {json.dumps({"a b": 2, "a.b": "x y"}): None})
    options = ConnectOptions(shared_broker.bootstrap, schema=SCHEMA, key=("a b", "a.b"))
    made = connection(
        parse_address(f"topic:{topic_name}"), parse_address("sqlite:///shop.db#odd"), options
    )
    made.stream("kept", topic=topic_name, schema=SCHEMA, tombstones="drop", dead_letters=False)
    made.sql("stored", "SELECT * FROM kept WHERE `a b` = 1", to=delta("lake", by=("c`d", "a.b")))
    run_once(made, spark, tmp_path / "checkpoints")
    return tmp_path


def test_a_topic_becomes_tables_and_one_of_them_a_topic_again(
    spark: Any, lake: Path, shared_broker: LocalBroker, topic_name: str
) -> None:
    deltalake = pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    assert deltalake.DeltaTable("lake").to_pyarrow_table().to_pylist() == [ROW]
    with sqlite3.connect("shop.db") as connection:
        (found,) = connection.execute('SELECT "a b", "a.b", "c`d", "select" FROM odd').fetchall()
    assert found[:3] == (1, "x y", "back") and json.loads(found[3]) == ROW["select"]

    back = Pipeline(f"{topic_name}-back", bootstrap=shared_broker.bootstrap)
    back.stream("odd", table("sqlite:///shop.db", "odd", by="a b"), dead_letters=False)
    back.sql(
        "sent", "SELECT * FROM odd", to=topic(f"{topic_name}-out", key=["a.b", "c`d"], partitions=1)
    )
    run_once(back, spark, lake / "checkpoints")
    ((key, value),) = records(shared_broker.bootstrap, f"{topic_name}-out")
    assert json.loads(key or b"") == {"a.b": "x y", "c`d": "back"}
    sent = json.loads(value)
    assert {name: sent[name] for name in ("a b", "a.b", "c`d")} == {
        name: ROW[name] for name in ("a b", "a.b", "c`d")
    }
