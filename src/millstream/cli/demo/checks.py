"""The final checks of the demo: results in topics and files against the generator's counts."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple


class Check(NamedTuple):
    """The result of a check: its name, the finding, and whether it passed."""

    name: str
    finding: str
    ok: bool


def check_everything(bootstrap: str, archive: Path, books: dict[str, Any]) -> list[Check]:
    return [
        check_paid(_values(bootstrap, "paid-orders"), books),
        check_revenue(_values(bootstrap, "revenue-by-minute"), books),
        check_archive(_archived(archive), books),
        check_dead_letters(
            {topic: len(_values(bootstrap, f"{topic}.dlq")) for topic in books["broken"]}, books
        ),
    ]


def check_paid(values: list[bytes], books: dict[str, Any]) -> Check:
    ids = Counter(json.loads(value)["id"] for value in values)
    doubled = sum(count - 1 for count in ids.values())
    finding = (
        f"{len(ids):,} paid orders in the topic, {books['paid']:,} generated, {doubled} duplicates"
    )
    return Check("orders", finding, len(ids) == books["paid"] and not doubled)


def check_revenue(values: list[bytes], books: dict[str, Any]) -> Check:
    """Compare the last sum of each minute and country, as update mode emits growing sums."""
    latest = {(row["minute"], row["country"]): row for row in map(_row, values)}
    cents: Counter[str] = Counter()
    for (_minute, country), row in latest.items():
        cents[country] += int(Decimal(str(row["revenue"])) * 100)
    total, expected = sum(cents.values()), sum(books["cents"].values())
    finding = f"revenue in the topic {total / 100:,.2f}, generated {expected / 100:,.2f}, by minute and country"
    return Check("revenue", finding, dict(cents) == books["cents"])


def _row(value: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(value, parse_float=Decimal)
    return row


def check_archive(ids: list[str], books: dict[str, Any]) -> Check:
    doubled = len(ids) - len(set(ids))
    finding = f"{len(ids):,} rows in Parquet, read with pyarrow, {doubled} duplicates"
    return Check("archive", finding, len(ids) == books["paid"] and not doubled)


def check_dead_letters(counts: dict[str, int], books: dict[str, Any]) -> Check:
    count, expected = sum(counts.values()), sum(books["broken"].values())
    finding = f"{count:,} dead letters, {expected:,} records were invalid on purpose"
    return Check("letters", finding, counts == books["broken"])


def _values(bootstrap: str, topic: str) -> list[bytes]:
    from millstream.client import Consumer, UnknownTopic

    try:
        with Consumer(bootstrap, topic, until_end=True) as consumer:
            return [record.value or b"" for record in consumer]
    except UnknownTopic:
        return []


def _archived(directory: Path) -> list[str]:
    import pyarrow.dataset

    if not directory.is_dir():
        return []
    table = pyarrow.dataset.dataset(str(directory), format="parquet", partitioning="hive").to_table(
        ["id"]
    )
    return [str(id) for id in table.column("id").to_pylist()]
