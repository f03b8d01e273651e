"""Tables of SQLite and PostgreSQL without Spark: rejected rows, keys, locked
progress, positions.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from decimal import Decimal
from pathlib import Path

import pytest

from millstream.connect.databases.database import Change, Database, Progress, connect
from millstream.connect.databases.snapshot_horizon import SnapshotHorizon
from millstream.connect.databases.sqlite import connection
from millstream.connect.databases.table import table
from millstream.pipelines.errors import PipelineError, Unavailable
from support.connect.store_world import Shop
from support.postgres import Postgres

COLUMNS = ["id", "name", "n"]
PROGRESS = Progress("query", 3, "offsets", 5, "[]")


@pytest.fixture
def db(shop: Shop):
    shop.execute(
        "CREATE TABLE things (id INTEGER PRIMARY KEY, name VARCHAR(100) NOT NULL, n INTEGER CHECK (n < 100))"
    )
    db = connect(shop.url)
    db.connection.open()
    db.writer.create_progress_table("things")
    yield db
    db.connection.close()


def put(db: Database, *rows: tuple, key: tuple[str, ...] = ()) -> list[tuple[tuple, str]]:
    changes = [Change(row[:3], len(row) > 3) for row in rows]
    with db.connection.transaction():
        return [
            (change.values, reason)
            for change, reason in db.writer.apply("things", COLUMNS, key, changes)
        ]


def test_rejected_rows_are_found_among_many(db: Database, shop: Shop) -> None:
    rows = [(i, f"name {i}", i % 50) for i in range(500)]
    rows[77] = (77, None, 1)
    rows[300] = (300, "too much", 100)
    rows[301] = (5, "taken", 1)
    refused = put(db, *rows)
    assert [values[0] for values, _ in refused] == [77, 300, 5]
    assert all("things" in reason or "constraint" in reason.lower() for _, reason in refused)
    assert shop.execute("SELECT count(*), min(n), max(n) FROM things") == [(497, 0, 49)]
    assert shop.execute("SELECT name FROM things WHERE id = 5") == [("name 5",)]


def test_last_change_of_a_key_wins_also_around_a_rejected_row(db: Database, shop: Shop) -> None:
    refused = put(
        db,
        (1, "first", 1),
        (2, "two", 2),
        (1, "second", 2),
        (3, "three", 3),
        (3, "gone", 3, True),
        (4, "gone", 3, True),
        (4, "four", 4),
        (2, None, 9),
        key=("id",),
    )
    assert [values for values, _ in refused] == [(2, None, 9)]
    assert shop.execute("SELECT * FROM things ORDER BY id") == [
        (1, "second", 2),
        (2, "two", 2),
        (4, "four", 4),
    ]


def test_progress_commits_with_the_rows_or_not_at_all(db: Database, shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), db.connection.transaction():
        assert db.writer.lock_progress("p.flow", "things") is None
        assert list(db.writer.apply("things", COLUMNS, (), [Change((1, "one", 1))])) == []
        db.writer.record_progress("p.flow", "things", PROGRESS)
        raise ZeroDivisionError
    assert shop.execute("SELECT count(*) FROM things") == [(0,)]
    with db.connection.transaction():
        assert db.writer.lock_progress("p.flow", "things") is None
        db.writer.record_progress("p.flow", "things", PROGRESS)
    with db.connection.transaction():
        assert db.writer.lock_progress("p.flow", "things") == PROGRESS
        assert db.writer.lock_progress("p.flow", "others") is None


def test_second_writer_waits_for_the_first(db: Database, shop: Shop) -> None:
    seen: list[Progress | None] = []

    def second() -> None:
        other = connect(shop.url)
        with other.connection.transaction():
            seen.append(other.writer.lock_progress("p.flow", "things"))
        other.connection.close()

    thread = threading.Thread(target=second)
    with db.connection.transaction():
        db.writer.lock_progress("p.flow", "things")
        thread.start()
        db.writer.record_progress("p.flow", "things", PROGRESS)
    thread.join(60)
    assert seen == [PROGRESS]


def test_rows_with_equal_values_are_read_by_position(db: Database, shop: Shop) -> None:
    put(db, *[(i, "x", i // 3) for i in range(1, 8)])  # n: 0 0 1 1 1 2 2
    order, kinds = ("n", "id"), {"id": "bigint", "n": "bigint"}
    end = db.reader.last_position("things", order)
    assert end is not None and [str(value) for value in end] == ["2", "7"]
    start, batches = None, []
    while (at := db.reader.position_after("things", order, start, end, 2)) is not None:
        batches.append(
            [
                json.loads(row)["id"]
                for rows in db.reader.rows("things", kinds, order, start, at)
                for row in rows
            ]
        )
        start = at
    assert batches == [[1, 2], [3, 4], [5, 6], [7]]
    assert not db.reader.has_null("things", "n")


def test_columns_have_spark_types_and_keys_are_found(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE kinds (a BIGINT, b VARCHAR(9) NOT NULL, c NUMERIC(9,2), d BOOLEAN, e TIMESTAMP, f DATE, PRIMARY KEY (b, a))"
    )
    db = connect(shop.url)
    columns = db.catalog.columns("kinds")
    assert columns is not None
    times = "timestamp" if shop.kind == "sqlite" else "timestamp_ntz"
    assert [db.types.read_type(column) for column in columns] == [
        "bigint",
        "string",
        "decimal(9,2)",
        "boolean",
        times,
        "date",
    ]
    assert db.catalog.unique_keys("kinds")[0] == ("b", "a")
    assert [column.name for column in columns if column.required][-1] == "b"
    assert db.catalog.columns("nothing") is None
    db.connection.close()
    assert table(shop.url, "kinds", by="e").order() == ("e", "b", "a")
    with pytest.raises(PipelineError, match="has no column 'when'"):
        table(shop.url, "kinds", by="when").order()


def test_columns_and_tables_may_have_any_name(shop: Shop) -> None:
    names = ["a b", "a.b", "c`d", 'e"f', "select", "100 %", "100 %d"]
    columns = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" INTEGER' for name in names)
    for place in ("odd", "half %"):
        shop.execute(f'CREATE TABLE "{place}" ({columns}, PRIMARY KEY ("a b", "100 %"))')
        db = connect(shop.url)
        db.writer.create_progress_table(place)
        assert [column.name for column in db.catalog.columns(place) or ()] == names
        assert db.catalog.unique_keys(place)[0] == ("a b", "100 %")
        rows = [tuple(range(i, i + len(names))) for i in range(3)]
        key = ("a b", "100 %")
        with db.connection.transaction():
            changes = [
                *map(Change, rows),
                Change(rows[0], deleted=True),
                Change((1, 7, 7, 7, 7, 6, 7)),
            ]
            assert not list(db.writer.apply(place, names, key, changes))
            db.writer.record_progress("p.flow", place, PROGRESS)
        end = db.reader.last_position(place, key)
        assert end is not None and db.reader.position_after(place, key, None, end, 1) is not None
        kinds = dict.fromkeys(names, "bigint")
        read = [
            json.loads(row) for rows in db.reader.rows(place, kinds, key, None, end) for row in rows
        ]
        assert [list(row) for row in read] == [names, names]
        assert [list(row.values()) for row in read] == [[1, 7, 7, 7, 7, 6, 7], list(rows[2])]
        assert not db.reader.has_null(place, "100 %d")
        db.connection.close()


def test_values_are_stored_unchanged(shop: Shop) -> None:
    shop.execute("CREATE TABLE kinds (a VARCHAR(20), b NUMERIC(30,2))")
    db = connect(shop.url)
    with db.connection.transaction():
        assert not list(
            db.writer.apply(
                "kinds",
                ["a", "b"],
                (),
                [Change(("\\N\t\n'\"é", Decimal("1.10"))), Change((None, None))],
            )
        )
    stored = shop.execute("SELECT a, b FROM kinds")
    assert (
        stored[0][0] == "\\N\t\n'\"é" and float(stored[0][1]) == 1.1 and stored[1] == (None, None)
    )
    db.connection.close()


def test_unreachable_or_locked_database_is_unavailable(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shop.kind == "postgresql":
        with pytest.raises(Unavailable, match="cannot be used now") as raised:
            connect(f"postgresql://tester:secret@/postgres?host={tmp_path}").connection.open()
        assert "secret" not in str(raised.value)
        return
    monkeypatch.setattr(connection, "BUSY_S", 0.01)
    db = connect(shop.url)
    with sqlite3.connect(tmp_path / "shop.db") as other:
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(Unavailable, match="cannot be used now: database is locked"),
            db.connection.transaction(),
        ):
            pass
    db.connection.close()


def test_missing_table_fails_at_once(shop: Shop) -> None:
    db = connect(shop.url)
    with pytest.raises(PipelineError, match="nothing"):
        db.reader.last_position("nothing", ("id",))
    db.connection.close()


@pytest.mark.parametrize(
    ("user", "database", "message"),
    [
        (
            "guarded:wrong",
            "postgres",
            'password authentication failed for user "guarded"; passwords belong',
        ),
        ("guarded", "postgres", "no password supplied; passwords belong"),
        ("tester", "shpo", 'database "shpo" does not exist; create the database first'),
        ("nobody", "postgres", 'role "nobody" does not exist'),
    ],
)
def test_permanent_rejection_of_a_server_fails_at_once_in_one_line(
    postgres_server: Postgres, user: str, database: str, message: str
) -> None:
    postgres_server.execute("DROP ROLE IF EXISTS guarded")
    postgres_server.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    url = f"postgresql://{user}@/{database}?host={postgres_server.directory}"
    with pytest.raises(PipelineError) as raised:
        connect(url).connection.open()
    line = str(raised.value)
    assert f"cannot be used: {message}" in line and line.startswith(
        f"postgresql://{user.partition(':')[0]}@/"
    )
    assert "\n" not in line and "wrong" not in line


def test_missing_schema_fails_at_once(postgres_server: Postgres) -> None:
    db = connect(postgres_server.url)
    with pytest.raises(
        PipelineError, match=r'schema "sales" does not exist.*; create the schema first'
    ):
        db.writer.create_progress_table("sales.orders")
    db.connection.close()


def test_unusable_sqlite_file_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("this is no database\n" * 100)
    for name, message in {
        "no/such/shop.db": f"directory {tmp_path}/no/such does not exist; create it first",
        ".": "it is a directory",
        "notes.txt": "file is not a database",
    }.items():
        with pytest.raises(PipelineError) as raised:
            connect(f"sqlite:///{tmp_path}/{name}").writer.create_progress_table("orders")
        assert f"sqlite:///{tmp_path}/{name} cannot be used: {message}" in str(raised.value)
    source = table(f"sqlite:///{tmp_path}/shpo.db", "orders", by="id")
    with pytest.raises(PipelineError, match=r"shpo\.db does not exist; create it first"):
        source.read_schema()
    assert not (tmp_path / "shpo.db").exists()


def test_position_is_readable_after_lag_and_end_of_open_changes() -> None:
    horizon = SnapshotHorizon(lag_ms=1000)
    horizon.see((5,), 0, next_change=(10, 7))
    horizon.see((5,), 500, next_change=(11, 7))
    horizon.see((8,), 600, next_change=(12, 7))
    assert horizon.advance(900, oldest_open_change=(12, 7)) is None
    assert horizon.advance(1000, oldest_open_change=(9, 7)) is None
    assert horizon.advance(1000, oldest_open_change=(10, 6)) is None
    assert horizon.advance(1000, oldest_open_change=(10, 7)) == (5,)
    assert horizon.advance(1600, oldest_open_change=(11, 7)) == (5,)
    assert horizon.advance(1600, oldest_open_change=(12, 7)) == (8,) == horizon.newest
