"""The tables that a query names."""

from __future__ import annotations

import pytest

from millstream.pipelines.sql_names import tables_named


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM orders WHERE amount > 10000", ("orders",)),
        ("select a.x from orders a join `page-views` b on a.id = b.id", ("orders", "page-views")),
        (
            "SELECT * FROM orders o, payments AS p, customers WHERE o.id = p.id",
            ("orders", "payments", "customers"),
        ),
        (
            "WITH big AS (SELECT * FROM orders), x AS (SELECT * FROM big) SELECT * FROM x JOIN big",
            ("orders",),
        ),
        (
            "SELECT * FROM (SELECT id FROM orders) LEFT JOIN customers USING (id)",
            ("orders", "customers"),
        ),
        (
            "SELECT 'from nowhere', \"join me\" FROM orders -- from comments\n /* from c */",
            ("orders",),
        ),
        ("SELECT extract(YEAR FROM at), trim(BOTH 'x' FROM name) FROM orders", ("orders",)),
        ("SELECT * FROM orders WHERE a IS DISTINCT FROM b", ("orders",)),
        ("SELECT * FROM range(10) JOIN orders", ("orders",)),
        ("SELECT id FROM orders UNION ALL SELECT id FROM refunds", ("orders", "refunds")),
        ("SELECT window.start, count(*) FROM orders GROUP BY window(at, '1 minute')", ("orders",)),
    ],
)
def test_tables_of_a_query(query: str, names: tuple[str, ...]) -> None:
    assert tables_named(query) == names
