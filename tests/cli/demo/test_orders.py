"""The check of the demo must see what it claims to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.cli.demo.orders import CUSTOMERS, OrderCheck, Orders
from millstream.client.record import Record

ORDERS = Orders(500)


def records() -> list[Record]:
    made = []
    for offset, (key, value, headers) in enumerate(ORDERS):
        encoded = tuple((name, str(number).encode()) for name, number in headers)
        made.append(Record("orders", 0, offset, 0, "create", key, value, encoded))
    return made


def checked(read: list[Record]) -> OrderCheck:
    check = OrderCheck(ORDERS)
    for record in read:
        check.add(record)
    return check


def test_all_orders_once_and_in_order_are_right():
    check = checked(records())
    assert (check.ok, check.records, check.lost, check.doubled, check.changed) == (
        True,
        500,
        0,
        0,
        0,
    )


def test_the_order_between_keys_does_not_matter():
    by_key = sorted(records(), key=lambda record: record.key or b"")
    assert checked(by_key).ok


@pytest.mark.parametrize(
    ("damage", "lost", "doubled", "changed"),
    [
        (lambda read: read[:100] + read[101:], 1, 0, 0),
        (lambda read: read[:-2], 2, 0, 0),
        (lambda read: [], 500, 0, 0),
        (lambda read: [*read[:100], read[99], *read[100:]], 0, 1, 0),
        (lambda read: [read[0]._replace(headers=()), *read[1:]], 1, 0, 1),
        (lambda read: [read[0]._replace(key=b"customer-1"), *read[1:]], 1, 0, 1),
        (lambda read: [read[0]._replace(value=b"{}"), *read[1:]], 0, 0, 0),
        (
            lambda read: [read[CUSTOMERS], *read[1:CUSTOMERS], read[0], *read[CUSTOMERS + 1 :]],
            1,
            1,
            0,
        ),
    ],
    ids=["gap", "cut", "empty", "doubled", "header", "key", "value", "swapped"],
)
def test_damage_is_seen(
    damage: Callable[[list[Record]], list[Record]], lost: int, doubled: int, changed: int
):
    check = checked(damage(records()))
    assert not check.ok
    assert (check.lost, check.doubled, check.changed) == (lost, doubled, changed)
    assert check.complaint()
