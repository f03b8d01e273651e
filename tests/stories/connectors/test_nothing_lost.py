"""Rows that could be lost without a word: hidden directories, keys without a value, values of
another type, another order than before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql.streaming.datasource import ReadMaxRows

from millstream.connect import delta
from millstream.connect.databases import table_source
from millstream.connect.databases.table import table
from millstream.connect.databases.table_source import TableReader
from millstream.pipelines import parquet
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.parquet_sink import staged_files
from support.connect.store_world import Shop
from support.postgres import Postgres


def test_directories_that_readers_skip_are_refused_and_staged_files_are_all_found(
    tmp_path: Path,
) -> None:
    pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    for target in (parquet, delta):
        with pytest.raises(
            PipelineError, match=r"by '_day': Parquet readers skip.*rename the column"
        ):
            target(str(tmp_path / "lake"), by=["n", "_day"])
    for name in ("_day=1/part-0.parquet", "part-1.parquet", "_temporary/0/part-2.parquet"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({"n": [1, 2]}), path)
    found = [(str(path.relative_to(tmp_path)), rows) for path, rows in staged_files(tmp_path)]
    assert found == [("_day=1/part-0.parquet", 2), ("part-1.parquet", 2)]


def reader(shop: Shop, *, rows: int = 100, id: str = "bigint", **given: Any) -> TableReader:
    """What Spark is given to read the table ``t``."""
    declared = table(shop.url, "t", **given)
    columns = {"id": id, "n": "bigint"}
    order = list(declared.order())
    told = {"url": declared.url, "table": "t", "order": order, "columns": columns, "rows": rows}
    return TableReader(told | {"lag_ms": 0, "poll_ms": 1})


def read(made: TableReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The next batch as Spark asks for it, with its offset kept as text in between."""
    end = json.loads(json.dumps(made.latestOffset(start, ReadMaxRows(100))))
    batches = [batch for part in made.partitions(start, end) for batch in made.read(part)]
    return end, [
        json.loads(value)["id"] for batch in batches for value in batch["value"].to_pylist()
    ]


def test_positions_are_numbers_where_the_columns_are(shop: Shop) -> None:
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    for i in range(7, 12):
        shop.execute("INSERT INTO t VALUES (%s, %s)", i, i)
    made = reader(shop, rows=4, by="n")
    end, found = read(made, made.initialOffset())
    assert found == [7, 8, 9, 10]
    assert read(made, end)[1] == [11]


def test_a_key_without_a_value_is_told_before_and_while_it_is_read(shop: Shop) -> None:
    kind = "INTEGER PRIMARY KEY" if shop.kind == "postgresql" else "TEXT PRIMARY KEY"
    shop.execute(f"CREATE TABLE t (id {kind}, n INTEGER NOT NULL, alias INTEGER UNIQUE)")
    assert table(shop.url, "t", by="n").order() == ("n", "id")
    shop.execute("INSERT INTO t VALUES (1, 1, 1)")
    made = reader(shop, by="n", key="alias")
    end, found = read(made, made.initialOffset())
    assert [int(one) for one in found] == [1]
    shop.execute("INSERT INTO t VALUES (2, 1, NULL), (3, 2, 3)")
    with pytest.raises(
        PipelineError, match="has rows without a value in alias, by which it is read"
    ):
        read(made, end)
    with pytest.raises(PipelineError, match="without a value in alias"):
        read(reader(shop, by="n", key="alias"), end)


def test_a_row_that_comes_without_a_place_in_the_order_is_told(shop: Shop) -> None:
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
    shop.execute("INSERT INTO t VALUES (1, 1)")
    made = reader(shop, by="n")
    end, found = read(made, made.initialOffset())
    assert found == [1]
    shop.execute("INSERT INTO t VALUES (2, NULL)")
    with pytest.raises(PipelineError, match="has rows without a value in n, by which it is read"):
        read(made, end)
    shop.execute("UPDATE t SET n = 2 WHERE id = 2")
    assert read(made, end)[1] == [2]


def test_sqlite_rows_of_another_kind_do_not_hide_the_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (id BLOB PRIMARY KEY, n INTEGER NOT NULL, at TIMESTAMP)")
    shop.execute("INSERT INTO t VALUES (x'00ff', 1, '2026-03-01'), (x'01', 1, '2026-03-02')")
    made = reader(shop, by="n", id="binary")
    end, found = read(made, made.initialOffset())
    assert found == ["AP8=", "AQ=="]
    shop.execute("INSERT INTO t VALUES (x'02', 2, '2026-03-03')")
    end, found = read(made, end)
    assert found == ["Ag=="]
    shop.execute("INSERT INTO t VALUES (x'03', 'many', 1772323200)")
    with pytest.raises(
        PipelineError, match=r"'many' in n, by which it is read: text among .* number"
    ):
        read(made, end)
    with pytest.raises(
        PipelineError, match=r"'2026-03-03' in at, by which it is read: text among .* number"
    ):
        read(reader(shop, by="at"), made.initialOffset() | {"order": ["at", "id"]})


def test_a_checkpoint_of_another_order_is_told(shop: Shop) -> None:
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    shop.execute("INSERT INTO t VALUES (1, 9), (2, 8)")
    made = reader(shop, by="id")
    end, found = read(made, made.initialOffset())
    assert found == [1, 2]
    shop.execute("INSERT INTO t VALUES (3, 1)")
    with pytest.raises(PipelineError, match="was read in the order of id, and now of n, id"):
        read(reader(shop, by="n"), end)
    before = {"after": end["after"]}  # as it was kept before the columns were
    assert read(reader(shop, by="id"), before)[1] == [3]


def test_a_time_taken_at_the_beginning_of_a_transaction_is_waited_for_and_that_is_said(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import psycopg

    monkeypatch.setattr(table_source, "SAY_AFTER_MS", 1)
    postgres_server.execute("DROP TABLE IF EXISTS t")
    postgres_server.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, n integer, at timestamptz NOT NULL DEFAULT now())"
    )
    made = reader(Shop(postgres_server), by="at")
    with psycopg.connect(postgres_server.url, application_name="slow") as late:
        late.execute("SELECT count(*) FROM t")  # it has a time now, and no number
        postgres_server.execute("INSERT INTO t (id) VALUES (2)")
        start = made.initialOffset()
        for _ in range(3):
            assert read(made, start) == (start, [])
        late.execute("INSERT INTO t (id) VALUES (1)")
        assert read(made, start) == (start, [])
    _, found = read(made, start)
    assert found == [1, 2]
    told = capfd.readouterr().err
    assert "(slow, user tester, idle in transaction for 00:00:0" in told and "is still open" in told
    postgres_server.execute("DROP TABLE t")
