"""Scripts are cut at their semicolons, statements read, and mistakes told with their place."""

from __future__ import annotations

import pytest

from millstream.sql.errors import Span, SqlError, mark
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
from millstream.sql.tokens import Piece, split, statements_of


@pytest.mark.parametrize(
    ("script", "pieces", "rest"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT ';' AS a; SELECT", ["SELECT ';' AS a"], " SELECT"),
        (
            "SELECT `a;b`, \"c;d\" -- e;\n, 'it''s;' /* f; */ ;",
            ["SELECT `a;b`, \"c;d\" -- e;\n, 'it''s;'"],
            "",
        ),
        (";; ;", [], ""),
        ("SELECT 'open; ", [], "SELECT 'open; "),
        ("SELECT 1; /* open; ", ["SELECT 1"], " /* open; "),
        ("SELECT 1; -- nothing\n", ["SELECT 1"], ""),
    ],
)
def test_only_semicolons_outside_texts_and_comments_end_a_statement(
    script: str, pieces: list[str], rest: str
) -> None:
    found, left = split(script)
    assert [" ".join(one.text.split()).replace(" /* f; */", "") for one in found] == [
        " ".join(one.split()) for one in pieces
    ]
    assert left == rest


def test_the_last_statement_of_a_script_needs_no_semicolon_and_each_knows_its_line() -> None:
    script = "-- the first\nSELECT 1;\n\nSELECT\n2 -- two\n"
    assert statements_of(script) == [Piece("SELECT 1", 2), Piece("SELECT\n2 -- two", 4)]
    assert statements_of("-- nothing\n ;\n") == []


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
        ("INSERT INTO a (`b c`, d) VALUES (1, 2)", InsertValues("a", "VALUES (1, 2)", ("b c", "d"))),
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
def test_statements_are_read(text: str, statement: Statement) -> None:
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("SELCT 1", "'SELCT' begins no statement; did you mean 'SELECT'?", "SELCT"),
        ("SHOW TABELS", "TABLES, STREAMS, TOPICS or FLOWS is expected", "TABELS"),
        (
            "CREATE STREAM big-orders",
            "'big' is not the whole name; put one with dashes or dots between `backticks`",
            "-",
        ),
        ("CREATE TABLE a WITH (topic 'b')", "'=' is expected", "'b'"),
        ("CREATE TABLE a WITH (topic = b, topic = c)", "topic is given twice", "="),
        ("CREATE TABLE a (b STRING", "this is never closed", "("),
        ("SELECT 'abc", "this is never closed", "'"),
        ("DROP TABLE a b", "'b' is not expected here", "b"),
        ("DROP TABLE", "the name of the table is expected; quote odd names with `backticks`", ""),
        ("INSERT INTO a SELECT * FROM b EMIT CHANGES LIMIT 3", "a flow has no end, so it takes no LIMIT", ""),
        ("INSERT INTO a SELECT * FROM b LIMIT 3", "a flow has no end, so it takes no LIMIT", ""),
        (
            "INSERT INTO a (b) SELECT 1",
            "a list of columns goes with VALUES only; name the columns in the SELECT with AS",
            "",
        ),
        ("CREATE STREAM a (b INT) AS SELECT 1", "columns come from the query; leave out (b INT)", ""),
        ("EMIT CHANGES", "'EMIT' begins no statement", "EMIT"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, message: str, marked: str) -> None:
    with pytest.raises(SqlError) as told:
        parse(text)
    assert str(told.value).startswith(message)
    assert told.value.span is not None
    assert text[told.value.span.start : told.value.span.end] == marked


def test_the_mark_is_below_the_right_line() -> None:
    text = "SELECT a,\n\tb FROM c"
    assert mark(text, Span(11, 12)) == "  \tb FROM c\n  \t^"
    assert mark(text, Span(len(text), len(text) + 1)) == "  \tb FROM c\n  \t        ^"
    assert mark(text, Span(7, 15)) == "  SELECT a,\n         ^^"
