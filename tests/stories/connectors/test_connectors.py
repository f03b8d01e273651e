"""Connectors as flows of a pipeline, with real targets and plain readers: each row once, bad rows
aside, changed schemas told.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
import pyarrow.parquet

from millstream.cli.pipeline.run import _totals
from millstream.client.consumer import Consumer
from millstream.connect import delta, files, table
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, PipelineError, topic
from millstream.pipelines.runner import Run, RunOptions
from support.connect.store_world import Shop
from support.postgres import Postgres
from support.spark.pipeline_world import (
    Background,
    create,
    received,
    run_once,
    send,
    send_keyed,
    wait_until,
)

pytestmark = pytest.mark.timeout(600)

ORDERS = "id int NOT NULL, name string, n int"


@pytest.fixture
def pipe(shared_broker: LocalBroker, topic_name: str) -> Pipeline:
    return Pipeline(topic_name, bootstrap=shared_broker.bootstrap)


def letters(bootstrap: str, name: str) -> list[tuple[Any, dict[str, str]]]:
    """Value and headers of dead letters."""
    with Consumer(bootstrap, name, until_end=True) as consumer:
        return [
            (one.value, {key: (value or b"").decode() for key, value in one.headers})
            for one in consumer
        ]


def reason_of_failure(pipe: Pipeline, spark: Any, checkpoint: Path) -> str:
    """Why a run ends at once that must not succeed."""
    events: list[dict[str, Any]] = []
    run = Run(pipe, spark, RunOptions(once=True, checkpoint=str(checkpoint)), events.append)
    try:
        assert not run.run()
    except PipelineError as error:
        return str(error)
    assert not [one for one in events if one.get("state") == "retrying"]
    return next(one["reason"] for one in events if one.get("state") == "failed")


# ---------------------------------------------------------------- databases


def test_a_topic_becomes_a_table_by_key_and_what_the_table_refuses_becomes_a_dead_letter(
    spark: Any, pipe: Pipeline, shop: Shop, topic_name: str, tmp_path: Path
) -> None:
    create(pipe.bootstrap, topic_name, partitions=1)
    shop.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, name VARCHAR(9) NOT NULL, n INTEGER DEFAULT 5)"
    )
    send_keyed(pipe.bootstrap, topic_name, {str(i): {"id": i, "name": f"n{i}"} for i in range(20)})
    send_keyed(
        pipe.bootstrap, topic_name, {"3": {"id": 3, "name": "new"}, "5": {"id": 5}, "7": None}
    )
    send(pipe.bootstrap, topic_name, [b"oops"])
    pipe.stream(
        "orders", topic=topic_name, schema="id int, name string", tombstones="keep", meta=True
    )

    @pipe.flow(to=table(shop.url, "orders", key="id", deletes="gone"))
    def stored(orders):
        return orders.selectExpr(
            "coalesce(id, cast(cast(_key AS string) AS int)) AS id", "name", "_deleted AS gone"
        )

    first = Run(pipe, spark, RunOptions(once=True, checkpoint=str(tmp_path / "checkpoints")), print)
    assert first.run()
    expected = [(i, "new" if i == 3 else f"n{i}", 5) for i in range(20) if i != 7]
    assert shop.execute("SELECT id, name, n FROM orders ORDER BY id") == expected
    found = dict(letters(pipe.bootstrap, f"{topic_name}.dlq"))
    assert {json.loads(value)["id"] for value in found if value != b"oops"} == {5} and len(
        found
    ) == 2
    assert "2 dead letters" in _totals(first)
    refused = next(headers for value, headers in found.items() if value != b"oops")
    assert "name" in refused["dlq.reason"] and refused["dlq.source"].startswith("table orders of ")
    assert (refused["dlq.pipeline"], refused["dlq.flow"]) == (topic_name, "stored")

    send_keyed(pipe.bootstrap, topic_name, {"1": {"id": 1, "name": "again"}})
    run_once(pipe, spark, tmp_path / "checkpoints")
    assert shop.execute("SELECT name FROM orders WHERE id = 1") == [("again",)]
    assert len(letters(pipe.bootstrap, f"{topic_name}.dlq")) == 2


@pytest.mark.long
def test_a_table_is_made_and_one_that_has_changed_is_told_with_both_schemas(
    spark: Any, pipe: Pipeline, shop: Shop, topic_name: str, tmp_path: Path
) -> None:
    create(pipe.bootstrap, topic_name, partitions=1)
    row = {"id": 1, "at": "2026-03-01T12:00:00.5Z", "price": "1.10", "tags": ["a"], "ok": True}
    row["part"] = {"at": "2026-03-01T12:00:00.123456Z"}
    send(pipe.bootstrap, topic_name, [row])
    schema = "id int, at timestamp, price decimal(9,2), tags array<string>, ok boolean, part struct<at: timestamp>"
    pipe.stream("orders", topic=topic_name, schema=schema, dead_letters=False)
    pipe.sql("stored", "SELECT * FROM orders", to=table(shop.url, "made"))
    run_once(pipe, spark, tmp_path / "checkpoints")
    found = [str(one) for one in shop.execute("SELECT id, at, price, tags, part FROM made")[0]]
    assert found[:3] == ["1", "2026-03-01 12:00:00.500000+00:00", "1.10"] and "a" in found[3]
    assert "12:00:00.123456Z" in found[4]

    shop.execute("ALTER TABLE made RENAME COLUMN price TO cost")
    send(pipe.bootstrap, topic_name, [row | {"id": 2}])
    told = reason_of_failure(pipe, spark, tmp_path / "checkpoints")
    assert "'price' (decimal(9,2)) is only here" in told and "'cost' (" in told
    assert "'id'" not in told and "'tags'" not in told
    shop.execute("ALTER TABLE made RENAME COLUMN cost TO price")
    run_once(pipe, spark, tmp_path / "checkpoints")
    assert shop.execute("SELECT id FROM made ORDER BY id") == [(1,), (2,)]


@pytest.mark.long
def test_a_table_becomes_a_topic_and_later_changes_follow(
    spark: Any, pipe: Pipeline, shop: Shop, topic_name: str, tmp_path: Path
) -> None:
    shop.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, name VARCHAR(9), at INTEGER NOT NULL)"
    )
    for i in range(7):
        shop.execute("INSERT INTO orders VALUES (%s, %s, %s)", i, f"n{i}", i // 3)
    if shop.kind == "sqlite":
        shop.execute("INSERT INTO orders VALUES (7, x'00ff', 9)")
    pipe.stream(
        "orders", table(shop.url, "orders", by="at", rows_per_batch=2, lag="200 ms", poll="100 ms")
    )
    pipe.sql("sent", "SELECT * FROM orders", to=topic(f"{topic_name}-out", key="id", partitions=1))
    run_once(pipe, spark, tmp_path / "checkpoints")
    first = [
        (one["id"], one["name"])
        for one in received(pipe.bootstrap, f"{topic_name}-out")
        if one["id"] < 7
    ]
    assert first == [(i, f"n{i}") for i in range(7)]

    with Background(pipe, spark, tmp_path / "checkpoints"):
        shop.execute("UPDATE orders SET name = 'new', at = 10 WHERE id = 0")
        shop.execute("INSERT INTO orders VALUES (9, 'nine', 10)")
        wait_until(lambda: len(received(pipe.bootstrap, f"{topic_name}-out")) >= len(first) + 2)
    later = received(pipe.bootstrap, f"{topic_name}-out")[-2:]
    assert [(one["id"], one["name"]) for one in later] == [(0, "new"), (9, "nine")]


@pytest.mark.long
def test_a_database_that_is_down_is_waited_for_and_that_is_said(
    spark: Any, pipe: Pipeline, postgres_server: Postgres, topic_name: str, tmp_path: Path
) -> None:
    create(pipe.bootstrap, topic_name, partitions=1)
    pipe.stream("orders", topic=topic_name, schema="id int")
    pipe.sql("stored", "SELECT * FROM orders", to=table(postgres_server.url, topic_name))
    send(pipe.bootstrap, topic_name, [{"id": 1}])
    with Background(pipe, spark, tmp_path / "checkpoints") as running:
        wait_until(lambda: running.run.progress["stored"].output_rows >= 1)
        postgres_server.kill()
        try:
            send(pipe.bootstrap, topic_name, [{"id": 2}])
            wait_until(lambda: len(waits(running)) >= 2)
        finally:
            postgres_server.start()
        wait_until(lambda: running.run.progress["stored"].output_rows >= 2)
    assert all(one["state"] == "retrying" and one["retry_in_ms"] > 0 for one in waits(running))
    assert postgres_server.execute(f'SELECT id FROM "{topic_name}" ORDER BY id') == [(1,), (2,)]
    postgres_server.execute(f'DROP TABLE "{topic_name}"')


def waits(running: Background) -> list[dict[str, Any]]:
    """What was said about a database that is down."""
    return [one for one in running.events if "cannot be used now" in one.get("reason", "")]


# ---------------------------------------------------------------- Delta


def test_a_topic_becomes_a_delta_table_and_a_changed_one_is_told_with_both_schemas(
    spark: Any, pipe: Pipeline, topic_name: str, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    lake = tmp_path / "lake"
    create(pipe.bootstrap, topic_name, partitions=2)
    rows = [
        {"id": i, "name": f"é {i}", "at": f"2026-03-0{i % 3 + 1}T12:00:00.123456Z"}
        for i in range(30)
    ]
    send(pipe.bootstrap, topic_name, rows)
    pipe.stream(
        "orders",
        topic=topic_name,
        schema="id bigint, name string, at timestamp",
        dead_letters=False,
    )
    pipe.sql("stored", "SELECT *, date(at) AS date FROM orders", to=delta(str(lake), by="date"))
    for _ in range(2):
        run_once(pipe, spark, tmp_path / "checkpoints")
    send(pipe.bootstrap, topic_name, [{"id": 30}])
    run_once(pipe, spark, tmp_path / "checkpoints")

    found = deltalake.DeltaTable(str(lake))
    read = found.to_pyarrow_table().to_pylist()
    assert sorted(one["id"] for one in read) == list(range(31))
    assert {str(one["at"]) for one in read if one["id"] == 1} == {
        "2026-03-02 12:00:00.123456+00:00"
    }
    days = found.to_pyarrow_table(filters=[("date", "=", date(2026, 3, 2))], columns=["id"])[
        "id"
    ].to_pylist()
    assert sorted(days) == list(range(1, 30, 3))
    assert found.to_pyarrow_table(filters=[("id", ">", 28)]).num_rows == 2
    assert found.metadata().partition_columns == ["date"]
    assert len(list(lake.rglob("*.parquet"))) == len(found.file_uris())
    assert (
        deltalake.DeltaTable(str(lake)).transaction_version(f"millstream.{topic_name}.stored") == 1
    )

    other = Pipeline(f"{topic_name}-2", bootstrap=pipe.bootstrap)
    other.stream("orders", topic=topic_name, schema="id bigint, at timestamp", dead_letters=False)
    other.sql("stored", "SELECT *, date(at) AS date FROM orders", to=delta(str(lake), by="date"))
    told = reason_of_failure(other, spark, tmp_path / "other")
    assert "'name' (string) is only there" in told and "'id'" not in told
    assert deltalake.DeltaTable(str(lake)).version() == found.version()


# ---------------------------------------------------------------- files


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "format", ["csv", pytest.param("json", marks=LONG), pytest.param("parquet", marks=LONG)]
)
def test_every_file_becomes_records_once_and_bad_lines_become_dead_letters(
    spark: Any, pipe: Pipeline, topic_name: str, tmp_path: Path, format: str
) -> None:
    incoming = tmp_path / "in"
    write(incoming / "old", format, range(3), bad=True)
    pipe.stream(
        "orders",
        files(str(incoming), format=format, schema=ORDERS),
        dead_letters=f"{topic_name}.dlq",
    )
    pipe.sql(
        "sent", "SELECT id, name FROM orders", to=topic(f"{topic_name}-out", key="id", partitions=1)
    )
    run_once(pipe, spark, tmp_path / "checkpoints")
    with Background(pipe, spark, tmp_path / "checkpoints"):
        write(incoming / "below" / "new", format, range(3, 6), bad=False)
        wait_until(lambda: len(received(pipe.bootstrap, f"{topic_name}-out")) >= 6)
    run_once(pipe, spark, tmp_path / "checkpoints")
    assert sorted(one["id"] for one in received(pipe.bootstrap, f"{topic_name}-out")) == list(
        range(6)
    )
    bad = letters(pipe.bootstrap, f"{topic_name}.dlq")
    reasons = sorted(headers["dlq.reason"] for _, headers in bad)
    assert all("/in/old" in headers["dlq.source"] for _, headers in bad)
    if format == "parquet":
        assert len(reasons) == 1 and "old-bad" in str(bad[0][0])
    else:
        assert len(reasons) == 2 and "NOT NULL" in "".join(reasons)


def write(path: Path, format: str, ids: Any, *, bad: bool) -> None:
    """A file of orders, moved in whole; with a line that is none and one without its id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": i, "name": f"n{i}", "n": i} for i in ids]
    aside = path.with_name(f".{path.name}")
    if format == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows).cast(pa.schema({"id": "int32", "name": "string", "n": "int32"})), aside)  # fmt: skip
        if bad:
            path.with_name(f"{path.name}-bad.parquet").write_bytes(b"PAR1 no")
    elif format == "json":
        more = ['{"id": "x"}', "", '{"name": "without"}'] if bad else []
        aside.write_text("\n".join([*map(json.dumps, rows), *more]) + "\n")
    else:
        more = ["x,bad,1", ",without,1"] if bad else []
        aside.write_text(
            "\n".join(["id,name,n", *[f"{r['id']},{r['name']},{r['n']}" for r in rows], *more])
            + "\n"
        )
    aside.rename(path.with_name(f"{path.name}.{format}"))


@pytest.mark.parametrize(
    ("format", "declared"),
    [
        ("csv", "id int, title string, n int"),
        ("csv", "id int, title string"),
        ("parquet", "id int, title string, n int"),
    ],
)
def test_files_with_other_columns_are_told_with_both_schemas(
    spark: Any, pipe: Pipeline, topic_name: str, tmp_path: Path, format: str, declared: str
) -> None:
    write(tmp_path / "in" / "one", format, range(2), bad=False)
    pipe.stream(
        "orders", files(str(tmp_path / "in"), format=format, schema=declared), dead_letters=False
    )
    pipe.sql("sent", "SELECT * FROM orders", to=topic(f"{topic_name}-out"))
    told = reason_of_failure(pipe, spark, tmp_path / "checkpoints")
    assert "name" in told and "title" in told and "one." in told
    assert "Caused by" not in told
