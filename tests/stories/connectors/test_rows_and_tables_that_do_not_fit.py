"""One row does not stop a flow, no digit is lost on the way, and a table that was changed meanwhile
is told: real databases and files, no Spark.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import DecimalType, StructType

from millstream.connect import delta
from millstream.connect.databases.database import Change, connect
from millstream.connect.databases.table import table
from millstream.connect.databases.table_sink import TableSink
from millstream.connect.databases.table_source import TableReader
from millstream.connect.delta.sink import DeltaSink
from millstream.pipelines.errors import PipelineError
from support.connect.store_world import Shop
from support.postgres import Postgres


def refused(
    shop: Shop, columns: list[str], rows: list[tuple], key: tuple[str, ...] = ()
) -> list[tuple]:
    """The rows that the table ``t`` does not take, in a transaction that is committed."""
    db = connect(shop.url)
    try:
        with db.connection.transaction():
            changes = list(map(Change, rows))
            return [change.values for change, _ in db.writer.apply("t", columns, key, changes)]
    finally:
        db.connection.close()


@pytest.fixture
def pg(postgres_server: Postgres) -> Shop:
    postgres_server.execute("DROP SCHEMA public CASCADE")
    postgres_server.execute("CREATE SCHEMA public")
    return Shop(postgres_server)


def test_bytes_and_numbers_of_postgresql_are_read_whole(pg: Shop) -> None:
    long = bytes(range(256))
    pg.execute("CREATE TABLE t (id integer PRIMARY KEY, b bytea, n numeric, d date)")
    pg.execute("INSERT INTO t VALUES (1, %s, 12345678901234567.123456789, '2026-03-15')", long)
    db = connect(pg.url)
    kinds = {column.name: db.types.read_type(column) for column in db.catalog.columns("t") or ()}
    assert kinds == {"id": "int", "b": "binary", "n": "decimal(38,18)", "d": "date"}
    pg.execute(
        "INSERT INTO t (id, n, d) VALUES (2, 1.12345678901234567891, '0044-03-15 BC'), (3, NULL, NULL)"
    )
    ((row, rounded, empty),) = db.reader.rows("t", kinds, ("id",), None, ("3",))
    db.connection.close()
    assert json.loads(rounded)["n"] == "1.12345678901234567891 has more digits"
    assert (
        json.loads(rounded)["d"] == "not a time of Spark: 0044-03-15 BC"
        and json.loads(row)["d"] == "2026-03-15"
    )
    assert json.loads(empty) == {"id": 3, "b": None, "n": None, "d": None}
    assert (
        base64.b64decode(json.loads(row)["b"], validate=True) == long
        and b'"n":12345678901234567.123456789' in row
    )


def test_postgresql_whatever_a_row_is_refused_for_the_others_are_stored(pg: Shop) -> None:
    pg.execute("CREATE TABLE t (id integer, name text PRIMARY KEY)")
    pg.execute(
        "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.id = 3 THEN RAISE 'no threes' USING ERRCODE = 'ZZ123'; END IF; RETURN NEW; END $$"
    )
    pg.execute("CREATE TRIGGER guarded BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION guard()")
    pg.execute(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    pg.execute("ALTER TABLE t ALTER COLUMN name TYPE text COLLATE loose")
    long = "".join(base64.b85encode(str(i * i).encode()).decode() for i in range(9000))
    rows = [(1, "one"), (2, "two"), (3, "three"), (4, long), (5, "ONE"), (6, "six")]
    assert refused(pg, ["id", "name"], rows, ("name",)) == [(3, "three"), (4, long)]
    assert pg.execute("SELECT id FROM t ORDER BY id") == [(2,), (5,), (6,)]


def test_sqlite_foreign_keys_that_wait_for_the_commit_refuse_single_rows(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    shop.execute("INSERT INTO parents VALUES (1)")
    shop.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"
    )
    shop.execute("INSERT INTO t VALUES (0, 99)")  # foreign keys are off where nobody turns them on
    assert refused(shop, ["id", "parent"], [(1, 1), (2, 7), (3, None)], ("id",)) == [(2, 7)]
    assert shop.execute("SELECT id FROM t ORDER BY id") == [(0,), (1,), (3,)]


def test_sqlite_a_trigger_that_ends_the_transaction_is_told(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    shop.execute(
        "CREATE TRIGGER g BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'no twos'); END"
    )
    with pytest.raises(
        PipelineError, match=r"no twos; a trigger that rejects one row must use RAISE\(ABORT"
    ):
        refused(shop, ["id"], [(1,), (2,)])
    assert shop.execute("SELECT * FROM t") == []


def test_sqlite_decimals_are_not_put_where_they_would_be_rounded(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (price DECIMAL(30,2), text TEXT)")
    db = connect(shop.url)
    price, text = db.catalog.columns("t") or ()
    db.connection.close()
    assert db.types.accepts(price, DecimalType(15, 2)) and db.types.accepts(
        text, DecimalType(30, 2)
    )
    with pytest.raises(PipelineError, match=r"keeps 15 digits.*declare the column TEXT"):
        db.types.accepts(price, DecimalType(16, 2))


def test_the_letter_of_a_removal_is_a_removal_and_has_no_key_where_there_was_none(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    sink = TableSink(table(shop.url, "t", key="id", deletes="gone"), "w.f")
    sink.open()
    changes = [Change((None, None), deleted=True), Change((None, "x")), Change((1, None))]
    with sink._db.connection.transaction():
        found = sink._put(["id", "name"], changes)
    sink.close()
    assert [one[:2] for one in found] == [
        (None, None),
        (None, '{"id": null, "name": "x"}'),
        ("1", '{"id": 1, "name": null}'),
    ]


def test_looking_for_a_database_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/typo.db"
    given = {
        "url": url,
        "table": "t",
        "order": ["id"],
        "columns": {},
        "rows": 1,
        "lag_ms": 0,
        "poll_ms": 1,
    }
    with pytest.raises(PipelineError, match=r"table t of \S+typo\.db does not exist"):
        TableReader(given).latestOffset({"after": None}, ReadMaxRows(1))
    assert connect(url).catalog.columns("t") is None and not (tmp_path / "typo.db").exists()


def test_only_the_columns_that_differ_are_named(spark: object, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, at TIMESTAMP, n BLOB, more TEXT)"
    )
    sink = TableSink(table(shop.url, "t"), "w.f")
    with pytest.raises(PipelineError) as told:
        sink._check(StructType.fromDDL("id int, name string, at timestamp, n bigint"))
    assert "different columns: 'n' is BLOB there and bigint here; change" in str(told.value)
    sink.close()


# ---------------------------------------------------------------- Delta


def test_a_delta_table_that_was_altered_after_a_batch_was_decided_can_be_opened_again(
    tmp_path: Path,
) -> None:
    deltalake = pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    root = tmp_path / "lake"
    deltalake.write_deltalake(str(root), pa.table({"n": [1]}))
    sink = DeltaSink(delta(str(root)), "w.f")
    staging = sink.hidden / "staging-0-abc"
    staging.mkdir(parents=True)
    for number in range(2):
        pyarrow.parquet.write_table(pa.table({"n": [2]}), staging / f"part-{number}.parquet")
    (staging / "part-0.parquet").rename(
        root / "part-00000-x.parquet"
    )  # the crash came between two moves
    fields = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]
    moves = [
        [f"staging-0-abc/part-{number}.parquet", f"part-0000{number}-x.parquet"]
        for number in range(2)
    ]
    plan = {"query": "q", "batch": 0, "offsets": "o", "rows": 2, "moves": moves}
    plan["schema"] = {"type": "struct", "fields": fields}
    (sink.hidden / "pending.json").write_text(json.dumps(plan))
    found = deltalake.DeltaTable(str(root))
    found.alter.add_columns([deltalake.schema.Field("m", "string")])

    sink.open()
    sink.close()
    assert not list(sink.hidden.glob("staging-*")) and not (sink.hidden / "pending.json").exists()
    assert len(list(root.glob("*.parquet"))) == 1
    with pytest.raises(PipelineError, match=r"'m' \(string\) is only there"):
        sink._check(deltalake.DeltaTable(str(root)), plan["schema"])


def test_a_delta_table_with_generated_columns_is_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')
    metadata = {"delta.generationExpression": "n + 1"}
    fields = [deltalake.Field("n", "long"), deltalake.Field("m", "long", metadata=metadata)]
    deltalake.DeltaTable.create(str(tmp_path), deltalake.Schema(fields))
    sink = DeltaSink(delta(str(tmp_path)), "w.f")
    ours = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in "nm"]
    with pytest.raises(
        PipelineError, match=r"has delta\.generationExpression, which this writer does not support"
    ):
        sink._check(deltalake.DeltaTable(str(tmp_path)), {"type": "struct", "fields": ours})
