"""Statements are parsed, and mistakes are reported with their position."""

from __future__ import annotations

import pytest

from millstream.sql.errors import SqlError
from millstream.sql.statements import (
    Create,
    CreateFlow,
    Describe,
    Drop,
    Explain,
    InsertValues,
    Select,
    Show,
    Statement,
    parse,
)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("SELECT 1 -- EMIT CHANGES", Select("SELECT 1")),
        ("select * from a emit changes", Select("select * from a", live=True)),
        ("SELECT * FROM a EMIT CHANGES LIMIT 5", Select("SELECT * FROM a", live=True, limit=5)),
        ("SELECT * FROM a LIMIT 5 EMIT CHANGES", Select("SELECT * FROM a", live=True, limit=5)),
        ("SELECT * FROM a LIMIT 5", Select("SELECT * FROM a LIMIT 5")),
        ("(SELECT 1) UNION (SELECT 2)", Select("(SELECT 1) UNION (SELECT 2)")),
        ("VALUES (1)", Select("VALUES (1)")),
        ("CREATE STREAM a WITH (topic = 'a-b')", Create("stream", "a", None, {"topic": "a-b"})),
        (
            "CREATE OR REPLACE TABLE a (b STRING, c DECIMAL(12, 2)) WITH (key = (b, c), Source.maxOffsetsPerTrigger = 5)",
            Create(
                "table",
                "a",
                "b STRING, c DECIMAL(12, 2)",
                {"key": "b, c", "source.maxOffsetsPerTrigger": "5"},
                or_replace=True,
            ),
        ),
        (
            "CREATE STREAM IF NOT EXISTS a AS SELECT 'it''s' FROM b EMIT CHANGES",
            Create("stream", "a", query="SELECT 'it''s' FROM b", if_not_exists=True),
        ),
        ("INSERT INTO a SELECT * FROM b", CreateFlow("a", "a", "SELECT * FROM b")),
        (
            "INSERT INTO a WITH c AS (SELECT 1) SELECT * FROM c",
            CreateFlow("a", "a", "WITH c AS (SELECT 1) SELECT * FROM c"),
        ),
        (
            "CREATE FLOW IF NOT EXISTS f AS INSERT INTO a SELECT 1",
            CreateFlow("f", "a", "SELECT 1", if_not_exists=True),
        ),
        ("INSERT INTO a VALUES (1, 2)", InsertValues("a", "VALUES (1, 2)")),
        (
            "INSERT INTO a (`b c`, d) VALUES (1, 2)",
            InsertValues("a", "VALUES (1, 2)", ("b c", "d")),
        ),
        ("SHOW tables", Show("tables")),
        ("DESC a", Describe("a")),
        ("DESCRIBE TABLE a", Describe("a")),
        ("DESCRIBE FLOW a", Describe("a", flow=True)),
        ("EXPLAIN SELECT 1 EMIT CHANGES", Explain(Select("SELECT 1", live=True))),
        ("EXPLAIN FLOW f", Explain(flow="f")),
        ("DROP TABLE IF EXISTS a", Drop("table", "a", if_exists=True)),
        ("DROP FLOW a", Drop("flow", "a")),
    ],
)
def test_statements_are_parsed(text: str, statement: Statement) -> None:
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("SELCT 1", "no statement starts with 'SELCT'; did you mean 'SELECT'?", "SELCT"),
        ("SHOW TABELS", "TABLES, STREAMS, TOPICS or FLOWS is expected", "TABELS"),
        (
            "CREATE STREAM big-orders",
            "'big' is not the whole name; quote names with dashes or dots with `backticks`",
            "-",
        ),
        ("CREATE TABLE a WITH (topic 'b')", "'=' is expected", "'b'"),
        ("CREATE TABLE a WITH (topic = b, topic = c)", "topic is duplicated", "="),
        ("CREATE TABLE a (b STRING", "this is never closed", "("),
        ("SELECT 'abc", "this is never closed", "'"),
        ("DROP TABLE a b", "'b' is not expected here", "b"),
        (
            "DROP TABLE",
            "the name of the table is expected; quote unusual names with `backticks`",
            "",
        ),
        (
            "INSERT INTO a SELECT * FROM b EMIT CHANGES LIMIT 3",
            "a flow has no end, so LIMIT is not allowed",
            "",
        ),
        ("INSERT INTO a SELECT * FROM b LIMIT 3", "a flow has no end, so LIMIT is not allowed", ""),
        (
            "INSERT INTO a (b) SELECT 1",
            "a list of columns is allowed only with VALUES; name the columns in the SELECT with AS",
            "",
        ),
        ("CREATE STREAM a (b INT) AS SELECT 1", "columns come from the query; remove (b INT)", ""),
        ("EMIT CHANGES", "no statement starts with 'EMIT'", "EMIT"),
    ],
)
def test_mistakes_are_reported_with_their_position(text: str, message: str, marked: str) -> None:
    with pytest.raises(SqlError) as raised:
        parse(text)
    assert str(raised.value).startswith(message)
    assert raised.value.span is not None
    assert text[raised.value.span.start : raised.value.span.end] == marked
