"""Tables of SQLite and PostgreSQL without Spark: rows refused one by one, keys, progress that nobody else can move, reading bit by bit."""

from __future__ import annotations

import json
import threading
from decimal import Decimal

import pytest
from store_world import Shop

from millstream.connect.databases import Change, Database, Progress, connect
from millstream.connect.settling import Settling
from millstream.connect.table import table
from millstream.pipelines.errors import PipelineError, Unavailable

COLUMNS = ["id", "name", "n"]
PROGRESS = Progress("query", 3, "offsets", 5, "[]")


@pytest.fixture
def db(shop: Shop):
    shop.execute(
        "CREATE TABLE things (id INTEGER PRIMARY KEY, name VARCHAR(100) NOT NULL, n INTEGER CHECK (n < 100))"
    )
    made = connect(shop.url)
    made.open()
    made.prepare("things")
    yield made
    made.close()


def put(db: Database, *rows: tuple, key: tuple[str, ...] = ()) -> list[tuple[tuple, str]]:
    changes = [Change(row[:3], len(row) > 3) for row in rows]
    with db.transaction():
        return [(one.values, reason) for one, reason in db.apply("things", COLUMNS, key, changes)]


def test_rows_that_the_database_refuses_are_found_among_many(db: Database, shop: Shop) -> None:
    rows = [(i, f"name {i}", i % 50) for i in range(500)]
    rows[77] = (77, None, 1)
    rows[300] = (300, "too much", 100)
    rows[301] = (5, "taken", 1)
    refused = put(db, *rows)
    assert [one[0][0] for one in refused] == [77, 300, 5]
    assert all("things" in reason or "constraint" in reason.lower() for _, reason in refused)
    assert shop.execute("SELECT count(*), min(n), max(n) FROM things") == [(497, 0, 49)]
    assert shop.execute("SELECT name FROM things WHERE id = 5") == [("name 5",)]


def test_by_key_the_last_change_counts_also_around_one_that_is_refused(db: Database, shop: Shop) -> None:
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


def test_progress_is_committed_with_the_rows_or_not_at_all(db: Database, shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction():
        assert db.locked_progress("p.flow", "things") is None
        assert list(db.apply("things", COLUMNS, (), [Change((1, "one", 1))])) == []
        db.record("p.flow", "things", PROGRESS)
        raise ZeroDivisionError
    assert shop.execute("SELECT count(*) FROM things") == [(0,)]
    with db.transaction():
        assert db.locked_progress("p.flow", "things") is None
        db.record("p.flow", "things", PROGRESS)
    with db.transaction():
        assert db.locked_progress("p.flow", "things") == PROGRESS
        assert db.locked_progress("p.flow", "others") is None


def test_of_two_writers_one_waits_for_the_other(db: Database, shop: Shop) -> None:
    seen: list[Progress | None] = []

    def second() -> None:
        other = connect(shop.url)
        with other.transaction():
            seen.append(other.locked_progress("p.flow", "things"))
        other.close()

    thread = threading.Thread(target=second)
    with db.transaction():
        db.locked_progress("p.flow", "things")
        thread.start()
        db.record("p.flow", "things", PROGRESS)
    thread.join(60)
    assert seen == [PROGRESS]


def test_reading_goes_by_position_through_rows_of_the_same_value(db: Database, shop: Shop) -> None:
    put(db, *[(i, "x", i // 3) for i in range(1, 8)])  # n: 0 0 1 1 1 2 2
    order, kinds = ("n", "id"), {"id": "bigint", "n": "bigint"}
    end = db.newest("things", order)
    assert end is not None and [str(one) for one in end] == ["2", "7"]
    start, found = None, []
    while (at := db.position_after("things", order, start, end, 2)) is not None:
        found.append(
            [json.loads(one)["id"] for rows in db.rows("things", kinds, order, start, at) for one in rows]
        )
        start = at
    assert found == [[1, 2], [3, 4], [5, 6], [7]]
    assert not db.any_without("things", "n")


def test_columns_become_types_of_spark_and_keys_are_known(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE kinds (a BIGINT, b VARCHAR(9) NOT NULL, c NUMERIC(9,2), d BOOLEAN, e TIMESTAMP, f DATE, PRIMARY KEY (b, a))"
    )
    db = connect(shop.url)
    found = db.columns("kinds")
    assert found is not None
    times = "timestamp" if shop.kind == "sqlite" else "timestamp_ntz"
    assert [db.spark_type(one) for one in found] == [
        "bigint",
        "string",
        "decimal(9,2)",
        "boolean",
        times,
        "date",
    ]
    assert db.unique_keys("kinds")[0] == ("b", "a")
    assert [one.name for one in found if one.required][-1] == "b"
    assert db.columns("nothing") is None
    db.close()
    assert table(shop.url, "kinds", by="e").order() == ("e", "b", "a")
    with pytest.raises(PipelineError, match="has no column 'when'"):
        table(shop.url, "kinds", by="when").order()


def test_values_arrive_as_they_were(shop: Shop) -> None:
    shop.execute("CREATE TABLE kinds (a VARCHAR(20), b NUMERIC(30,2))")
    db = connect(shop.url)
    with db.transaction():
        assert not list(
            db.apply(
                "kinds", ["a", "b"], (), [Change(("\\N\t\n'\"é", Decimal("1.10"))), Change((None, None))]
            )
        )
    found = shop.execute("SELECT a, b FROM kinds")
    assert found[0][0] == "\\N\t\n'\"é" and float(found[0][1]) == 1.1 and found[1] == (None, None)
    db.close()


def test_what_cannot_be_reached_is_waited_for_and_what_is_wrong_is_not(tmp_path, shop: Shop) -> None:
    away = f"sqlite:///{tmp_path}/no/such/shop.db"
    if shop.kind == "postgresql":
        away = f"postgresql://tester:secret@/postgres?host={tmp_path}"
    with pytest.raises(Unavailable, match="cannot be used now") as told:
        connect(away).open()
    assert "secret" not in str(told.value)
    db = connect(shop.url)
    with pytest.raises(PipelineError):
        db.newest("nothing", ("id",))
    db.close()


def test_a_position_is_settled_when_it_is_old_enough_and_earlier_changes_have_ended() -> None:
    waiting = Settling(lag_ms=1000)
    waiting.see((5,), 0, next_change=10)
    waiting.see((5,), 500, next_change=11)
    waiting.see((8,), 600, next_change=12)
    assert waiting.settle(900, horizon=12) is None
    assert waiting.settle(1000, horizon=9) is None
    assert waiting.settle(1000, horizon=10) == (5,)
    assert waiting.settle(1600, horizon=11) == (5,)
    assert waiting.settle(1600, horizon=12) == (8,) == waiting.newest
