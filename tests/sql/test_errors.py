"""The mark below the wrong part of a statement."""

from __future__ import annotations

from millstream.sql.errors import Span, mark


def test_the_mark_is_below_the_right_line() -> None:
    text = "SELECT a,\n\tb FROM c"
    assert mark(text, Span(11, 12)) == "  \tb FROM c\n  \t^"
    assert mark(text, Span(len(text), len(text) + 1)) == "  \tb FROM c\n  \t        ^"
    assert mark(text, Span(7, 15)) == "  SELECT a,\n         ^^"
