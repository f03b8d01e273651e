"""SQL beyond its document: guessed, replaced and rejected entries; names, formats, and changing
flows.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import ClientError
from millstream.local.broker import LocalBroker
from millstream.pipelines.runner import Run, RunOptions
from millstream.sql.catalog import CatalogTopic
from millstream.sql.declared import pipeline_of
from millstream.sql.engine import Engine
from millstream.sql.errors import SqlError
from millstream.sql.live import SCREEN_ROWS, Live
from millstream.sql.results import Confirmation, Details, Listing, LiveRows, Plan, Rows
from support.spark.pipeline_world import create, received, records, send, wait_until

pytestmark = pytest.mark.timeout(600)


class World:
    """A catalog and topics that no other test uses."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.name = spark, bootstrap, name
        self.checkpoint = str(directory / "checkpoints")
        self.catalog = CatalogTopic(bootstrap, f"{name}-catalog")
        self.confirmed: list[str] = []
        self.engine = Engine(
            self.catalog,
            lambda: spark,
            checkpoint=self.checkpoint,
            confirm=lambda source, guess: self.confirmed.append(source.statement()),
        )

    def __call__(self, text: str) -> Any:
        """Run a statement; $ stands for the prefix of topic names."""
        return self.engine.execute(text.replace("$", self.name))

    def rows(self, text: str) -> list[tuple[str | None, ...]]:
        result = self(text)
        assert isinstance(result, Rows)
        return result.cells()

    def rejected(self, text: str) -> tuple[str, str]:
        """Return the error message, and the marked part of the statement."""
        with pytest.raises(ClientError) as raised:
            result = self(text)
            if isinstance(result, Rows):
                result.cells()
        error = raised.value
        marked = ""
        if isinstance(error, SqlError) and error.span is not None:
            marked = error.text[error.span.start : error.span.end]
        return str(error).replace(self.name, "$"), marked


@pytest.fixture
def sql(spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path) -> World:
    return World(spark, shared_broker.bootstrap, topic_name[-40:].lstrip("-"), tmp_path)


def test_columns_are_guessed_confirmed_and_used(sql: World) -> None:
    create(sql.bootstrap, f"{sql.name}-in", partitions=1)
    assert sql.rejected("CREATE STREAM e WITH (topic = '$-in')") == (
        "topic $-in is empty: there is nothing to guess columns from; declare them: CREATE STREAM e (id STRING, ...)",
        "",
    )
    send(
        sql.bootstrap,
        f"{sql.name}-in",
        [{"id": 1, "at": "2026-01-01T00:00:00Z", "tags": ["a"]}, {"id": 2}],
    )
    assert sql("CREATE STREAM Guessed WITH (topic = '$-in', meta = true)") == Confirmation(
        "stream Guessed created"
    )
    assert sql.confirmed == [
        f"CREATE STREAM Guessed (\n  id BIGINT,\n  at TIMESTAMP,\n  tags ARRAY<STRING>\n) "
        f"WITH (topic = '{sql.name}-in', value = json, meta = true);"
    ]
    assert sql.rows("SELECT ID, tags, _offset FROM guessed ORDER BY id") == [
        ("1", "[a]", "0"),
        ("2", None, "1"),
    ]
    assert sql("CREATE STREAM IF NOT EXISTS guessed WITH (topic = 'x')") == Confirmation(
        "stream Guessed already exists"
    )
    assert sql.rejected("CREATE TABLE guessed WITH (topic = 'x')")[0].startswith(
        "stream Guessed already exists"
    )
    # It is text from now on, in every session.
    assert (
        sql("CREATE OR REPLACE STREAM guessed WITH (topic = '$-in', value = string)").text
        == "stream guessed created"
    )
    assert sql.rows("SELECT value FROM guessed WHERE offset = 1") == [('{"id": 2}',)]
    assert sql("DROP STREAM guessed").text == f"stream guessed dropped; topic {sql.name}-in stays"
    assert sql.rejected("SELECT * FROM guessed")[0].startswith(
        "there is no stream or table 'guessed'"
    )
    assert sql("DROP STREAM IF EXISTS guessed") == Confirmation("there is no stream guessed")


def test_rows_are_written_as_declared(sql: World) -> None:
    sql(
        "CREATE TABLE t (k STRING, n INT, d DATE) WITH (topic = '$-t', key = k, value = avro, partitions = 1)"
    )
    assert sql(
        "INSERT INTO t VALUES ('a', 1, '2026-01-01'), ('b', 2, NULL), ('a', 3, NULL)"
    ).text == ("3 rows inserted into t")
    sql("INSERT INTO t (n, k) VALUES (4, 'c')")
    assert sql.rows("SELECT * FROM t ORDER BY k") == [
        ("a", "3", None),
        ("b", "2", None),
        ("c", "4", None),
    ]
    assert [key for key, _ in records(sql.bootstrap, f"{sql.name}-t")] == [b"a", b"b", b"a", b"c"]
    with Admin(sql.bootstrap) as admin:
        settings = {
            setting.name: setting.value
            for setting in admin.configs.describe("topic", f"{sql.name}-t")
        }
    assert settings["cleanup.policy"] == "compact"
    assert sql.rejected("INSERT INTO t VALUES (1, 2)") == (
        "expected 3 values (k, n, d), got 2",
        "",
    )
    assert sql.rejected("INSERT INTO t VALUES ('z', 1, NULL), (NULL, 2, NULL)")[0] == (
        "t is a table, and 1 of 2 rows have no key: k is null; nothing was inserted"
    )
    assert sql.rejected("INSERT INTO t (x) VALUES (1)")[0].startswith("t has no column 'x'")
    assert sql.rejected("INSERT INTO t VALUES ('a', 'many', NULL)")[0].startswith(
        "The value 'many' of the type \"STRING\" cannot be cast"
    )


def test_mistakes_are_reported_in_one_line_with_their_position(sql: World) -> None:
    sql("CREATE STREAM s (id STRING, n INT) WITH (topic = '$-s', partitions = 1)")
    sql("CREATE TABLE t (id STRING) WITH (topic = '$-t', partitions = 1)")
    create(sql.bootstrap, f"{sql.name}-plain")
    mistakes = {
        "SELECT id FROM s GROUP BY n": (
            'The non-aggregating expression "id" is based on columns',
            "id",
        ),
        "SELECT 1 +\n  FROM s WHERE": ("Syntax error at or near", ""),
        "SELECT nosuch(1)": ("Cannot resolve routine `nosuch`", "nosuch(1)"),
        "SELECT 1/0": ("Division by zero", "1/0"),
        "SELECT * FROM `$-plain`": (
            "there is no stream or table '$-plain'; the topic is not declared yet",
            "`$-plain`",
        ),
        "SELECT * FROM t EMIT CHANGES": ("the query reads only tables", ""),
        "INSERT INTO t SELECT id FROM s": ("rows of table t have no key", ""),
        "INSERT INTO s SELECT id FROM s": (
            "s has 2 columns (id, n), and the query returns 1 (id)",
            "",
        ),
        "INSERT INTO s SELECT id, id FROM s": (
            "id is string, and the column n is int; convert it: CAST",
            "",
        ),
        "INSERT INTO s SELECT 'a', 1": ("flow s.1 reads only tables", ""),
        "CREATE STREAM a (x STRNG) WITH (topic = '$-s')": (
            'Unsupported data type "STRNG"',
            "STRNG",
        ),
        "CREATE STREAM a (x INT) WITH (topic = '$-s', wotermark = 1)": (
            "there is no option 'wotermark'; did you mean 'watermark'?",
            "",
        ),
        "CREATE STREAM a (x INT) WITH (topic = '$-s', watermark = 'x 1 minute')": (
            "the watermark of stream a is on x, which is a int",
            "",
        ),
        "CREATE STREAM a (x INT) WITH (topic = '$-s', value = jsn)": (
            "value format 'jsn' does not exist; did you mean 'json'?",
            "",
        ),
        "CREATE STREAM a (x INT) WITH (topic = '$-none')": ("topic '$-none' does not exist", ""),
        "CREATE STREAM a (x INT) WITH (topic = '$-s', key = y)": (
            "the key 'y' is not a column",
            "",
        ),
        "CREATE STREAM `a-b` (x INT) WITH (topic = '$-s')": (
            "'a-b' cannot be a name; use letters, digits and underscores: a_b WITH",
            "",
        ),
        "DROP FLOW nosuch": ("there is no flow 'nosuch'", ""),
        "DROP TABLE s": ("s is a stream, not a table; DROP STREAM s", ""),
        "DROP STREAM IF EXISTS t": ("t is a table, not a stream; DROP TABLE t", ""),
        "CREATE STREAM a (x INT) WITH (topic = '$-new', partitions = 1, watermark = 'y 1 minute')": (
            "the watermark of stream a is on 'y', which is not a column",
            "",
        ),
    }
    for statement, (message, marked) in mistakes.items():
        error, part = sql.rejected(statement)
        assert error.startswith(message), statement
        assert "\n" not in error
        assert part.replace(sql.name, "$") == marked or not marked, statement
    assert sorted(sql.catalog.read().sources) == ["s", "t"] and not sql.catalog.read().all_flows
    with Admin(sql.bootstrap) as admin:
        assert f"{sql.name}-new" not in admin.topics.names()


def test_source_of_a_flow_is_not_replaced_and_statements_are_idempotent(sql: World) -> None:
    sql("CREATE STREAM s (id STRING, n INT) WITH (topic = '$-s', partitions = 1)")
    filled = (
        "CREATE STREAM few WITH (topic = '$-few', partitions = 1) AS SELECT id FROM s WHERE n < 3"
    )
    assert sql(filled).text.startswith("stream few created; flow few stored")
    assert sql(filled) == Confirmation("stream few and flow few already exist")
    assert sql.rejected(filled.replace("n < 3", "n < 4"))[0].startswith("stream few already exists")
    assert sql.rejected("CREATE OR REPLACE STREAM s (id INT) WITH (topic = '$-s')") == (
        "flow few reads s with its current declaration; DROP FLOW few first",
        "",
    )


class Runner:
    """``millstream sql run`` in a thread, which follows the catalog."""

    def __init__(self, sql: World) -> None:
        self.sql = sql
        self.run = Run(
            self._pipeline(), sql.spark, RunOptions(checkpoint=sql.checkpoint, independent=True)
        )
        self.look = threading.Event()
        self.error: BaseException | None = None
        self.ok: bool | None = None
        self._thread = threading.Thread(target=self._go)

    def _pipeline(self) -> Any:
        return pipeline_of(
            self.sql.catalog.read(), self.sql.bootstrap, name=self.sql.engine.pipeline
        )

    def _go(self) -> None:
        try:
            self.ok = self.run.run(self._each)
        except BaseException as error:
            self.error = error

    def _each(self) -> None:
        if self.look.is_set():
            self.look.clear()
            self.run.change(self._pipeline())

    def __enter__(self) -> Runner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run.stop()
        self._thread.join(300)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.mark.long
def test_flows_come_and_go_while_the_runner_runs(sql: World) -> None:
    sql(
        "CREATE STREAM s (id STRING, n INT) WITH (topic = '$-s', partitions = 1, dead_letters = false)"
    )
    sql("CREATE STREAM odd (id STRING, n INT) WITH (topic = '$-odd', partitions = 1)")
    sql("INSERT INTO s VALUES ('a', 1), ('b', 2)")
    with Runner(sql) as runner:
        assert sql("INSERT INTO odd SELECT id, n FROM s WHERE n % 2 = 1").text.startswith(
            "flow odd stored"
        )
        runner.look.set()
        wait_until(lambda: received(sql.bootstrap, f"{sql.name}-odd") == [{"id": "a", "n": 1}])
        assert sql.rejected("CREATE OR REPLACE STREAM odd (id INT) WITH (topic = '$-odd')") == (
            "flow odd writes odd with its current declaration; DROP FLOW odd first",
            "",
        )
        shown = sql("SHOW FLOWS")
        assert isinstance(shown, Listing) and [row[:3] for row in shown.rows] == [
            ("odd", "odd", "append")
        ]
        sql("CREATE STREAM even WITH (topic = '$-even') AS SELECT id FROM s WHERE n % 2 = 0")
        runner.look.set()
        wait_until(lambda: received(sql.bootstrap, f"{sql.name}-even") == [{"id": "b"}])
        assert sql("DROP FLOW odd").text == "flow odd dropped; its output stays"
        runner.look.set()
        wait_until(lambda: "odd.1" not in runner.run.supervisor.flows)
        sql("INSERT INTO s VALUES ('c', 3), ('d', 4)")
        wait_until(lambda: len(received(sql.bootstrap, f"{sql.name}-even")) == 2)
        assert received(sql.bootstrap, f"{sql.name}-odd") == [{"id": "a", "n": 1}]
    assert runner.ok
    assert [row[3] for row in sql("SHOW FLOWS").rows] == ["stopped"]
    # Another flow with the same name starts from the beginning.
    sql("INSERT INTO odd SELECT id, 10 * n FROM s WHERE n % 2 = 1")
    assert Run(
        runner._pipeline(),
        sql.spark,
        RunOptions(once=True, checkpoint=sql.checkpoint, independent=True),
    ).run()
    assert [row["n"] for row in received(sql.bootstrap, f"{sql.name}-odd")] == [1, 10, 30]
    details = sql("DESCRIBE FLOW odd")
    assert isinstance(details, Details)
    assert (details.facts["state"], details.facts["lag"]) == ("done", 0)
    assert details.facts["group"] == f"{sql.engine.pipeline}.odd.2"
    assert received(sql.bootstrap, f"{sql.name}-even") == [{"id": "b"}, {"id": "d"}]


def test_live_screen_shows_the_whole_result_and_cleans_up(sql: World) -> None:
    sql("CREATE STREAM s (id STRING, n INT) WITH (topic = '$-s', partitions = 1)")
    sql("INSERT INTO s VALUES ('a', 1), ('b', 2), ('a', 3)")
    live_rows = sql("SELECT id, sum(n) AS n FROM s GROUP BY id EMIT CHANGES")
    assert isinstance(live_rows, LiveRows) and (live_rows.mode, live_rows.whole_mode) == (
        "update",
        "complete",
    )
    screens: list[list[Any]] = []
    wholes: set[bool] = set()

    def show(rows: list[Any], whole: bool) -> None:
        screens.append(sorted(rows))
        wholes.add(whole)
        if len(screens) == 1:
            sql("INSERT INTO s VALUES ('c', 7)")

    Live(live_rows, sql.bootstrap).screen(
        show, stopped=lambda: [("a", "4"), ("b", "2"), ("c", "7")] in screens
    )
    assert screens[0] == [("a", "4"), ("b", "2")] and wholes == {True}
    with Admin(sql.bootstrap) as admin:
        assert not [
            name for name in admin.groups.names() if name.startswith(f"{sql.engine.pipeline}.live-")
        ]
    plan = sql("EXPLAIN SELECT count(*) FROM s")
    assert isinstance(plan, Plan) and plan.text.startswith("== Physical Plan ==")
    assert max(map(len, plan.text.splitlines())) <= 160
    live = sql("EXPLAIN SELECT id, sum(n) AS n FROM s GROUP BY id EMIT CHANGES")
    assert live.text.startswith("== Optimized Logical Plan ==\n~Aggregate [id")
    sql("CREATE TABLE per WITH (topic = '$-per', key = id, partitions = 1) AS SELECT id, n FROM s")
    assert sql("EXPLAIN FLOW per").text.startswith("== Optimized Logical Plan ==\n")


def test_live_result_may_exceed_the_screen_and_the_limit(sql: World) -> None:
    """All partitions are computed, whatever is shown: otherwise the state of some is never
    committed.
    """
    sql("CREATE STREAM s (id STRING) WITH (topic = '$-s', partitions = 1)")
    send(
        sql.bootstrap, f"{sql.name}-s", [{"id": f"k{number}"} for number in range(SCREEN_ROWS * 3)]
    )
    counted = "SELECT id, count(*) AS n FROM s GROUP BY id EMIT CHANGES"
    screens: list[list[Any]] = []

    def show(rows: list[Any], whole: bool) -> None:
        screens.append(rows)
        if len(screens) == 1:
            sql("INSERT INTO s VALUES ('k0')")

    Live(sql(counted), sql.bootstrap).screen(show, stopped=lambda: len(screens) > 1)
    assert [len(rows) for rows in screens] == [SCREEN_ROWS, SCREEN_ROWS]
    shown: list[Any] = []
    wholes: set[bool] = set()

    def few(rows: list[Any], whole: bool) -> None:
        shown.extend(rows)
        wholes.add(whole)

    Live(sql(f"{counted} LIMIT 3"), sql.bootstrap).screen(few, stopped=lambda: False)
    assert len(shown) == 3 and wholes == {False}


def test_names_that_need_quotes_are_guessed_declared_and_written(sql: World) -> None:
    create(sql.bootstrap, f"{sql.name}-in", partitions=1)
    row = {"a b": 1, "a.b": "x", "c`d": {"größe": 2, "x y": [{"z`z": 3}]}, "select": "y"}
    keyless = {"a b": 2}
    send(sql.bootstrap, f"{sql.name}-in", [row, keyless])
    sql("CREATE STREAM `select` WITH (topic = '$-in')")
    (statement,) = sql.confirmed
    assert "`c``d` STRUCT<`größe`: BIGINT, `x y`: ARRAY<STRUCT<`z``z`: BIGINT>>>" in statement
    columns = statement[statement.index("(") : statement.index(" WITH")]
    assert sql(f"CREATE STREAM again {columns} WITH (topic = '$-in')") == Confirmation(
        "stream again created"
    )
    assert sql.rows("SELECT `a b`, `a.b`, `c``d`.`x y`[0].`z``z`, `select` FROM again") == [
        ("1", "x", "3", "y"),
        ("2", None, None, None),
    ]
    sql(
        "CREATE TABLE copy WITH (key = (`a.b`, `c``d`), topic = '$-out', partitions = 1) AS SELECT * FROM `select`"
    )
    assert sql("DESCRIBE copy").facts["key"] == ("a.b", "c`d")
    sql(
        "CREATE TABLE per WITH (key = `a.b`, topic = '$-per', partitions = 1) AS "
        "SELECT `a.b`, count(*) AS n FROM `select` GROUP BY `a.b`"
    )
    pipeline = pipeline_of(sql.catalog.read(), sql.bootstrap, name=sql.engine.pipeline)
    assert Run(
        pipeline, sql.spark, RunOptions(once=True, checkpoint=sql.checkpoint, independent=True)
    ).run()
    assert received(sql.bootstrap, f"{sql.name}-out") == [row, keyless]
    assert received(sql.bootstrap, f"{sql.name}-per") == [{"a.b": "x", "n": 1}]
    with Consumer(sql.bootstrap, f"{sql.name}-in.dlq", until_end=True) as consumer:
        (letter,) = consumer
    assert (letter.key, letter.value) == (None, b'{"n":1}')
    assert dict(letter.headers) == {
        "dlq.reason": b"a.b is null, and a compacted topic needs keys",
        "dlq.source": f"topic {sql.name}-per".encode(),
        "dlq.pipeline": sql.engine.pipeline.encode(),
        "dlq.flow": b"per.1",
    }
