"""Scripts are split at their semicolons."""

from __future__ import annotations

import pytest

from millstream.sql.tokens import ScriptStatement, split, statements_of


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
def test_only_semicolons_outside_quotes_and_comments_end_a_statement(
    script: str, pieces: list[str], rest: str
) -> None:
    statements, left = split(script)
    assert [
        " ".join(statement.text.split()).replace(" /* f; */", "") for statement in statements
    ] == [" ".join(piece.split()) for piece in pieces]
    assert left == rest


def test_last_statement_needs_no_semicolon_and_each_has_its_line() -> None:
    script = "-- the first\nSELECT 1;\n\nSELECT\n2 -- two\n"
    assert statements_of(script) == [
        ScriptStatement("SELECT 1", 2),
        ScriptStatement("SELECT\n2 -- two", 4),
    ]
    assert statements_of("-- nothing\n ;\n") == []
