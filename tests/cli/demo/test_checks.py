"""The checks of the demo must see what they claim to see."""

from __future__ import annotations

import json

import pytest

from millstream.cli.demo.checks import check_archive, check_dead_letters, check_paid, check_revenue
from millstream.cli.demo.generator import Generator

BOOKS = {"paid": 2, "broken": {"orders": 1, "payments": 2}, "cents": {"AT": 350, "CH": 100}}


def rows(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


@pytest.mark.parametrize(
    ("ids", "ok"),
    [(["a", "b"], True), (["a"], False), (["a", "b", "b"], False), (["a", "b", "c"], False)],
)
def test_every_paid_order_once(ids: list[str], ok: bool):
    assert check_paid(rows(*({"id": one} for one in ids)), BOOKS).ok is ok
    assert check_archive(ids, BOOKS).ok is ok


def revenue(minute: int, country: str, amount: float) -> dict:
    return {"minute": minute, "country": country, "revenue": amount}


def test_the_last_sum_of_a_window_counts():
    told = [revenue(1, "AT", 1.5), revenue(1, "CH", 1), revenue(1, "AT", 2.5), revenue(2, "AT", 1)]
    assert check_revenue(rows(*told), BOOKS).ok
    assert not check_revenue(rows(*told[:-1]), BOOKS).ok
    assert not check_revenue(rows(*told, revenue(3, "CH", 0.01)), BOOKS).ok


def test_dead_letters_are_counted_by_topic():
    assert check_dead_letters({"orders": 1, "payments": 2}, BOOKS).ok
    assert not check_dead_letters({"orders": 2, "payments": 1}, BOOKS).ok


class Kept:
    """Takes the place of a producer."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send(self, topic: str, value: bytes, *, key: str) -> None:
        self.sent.append((topic, value))


def test_the_generator_keeps_true_books():
    kept = Kept()
    generator = Generator(kept)  # type: ignore[arg-type]
    for number in range(20_000):
        generator.order(1_700_000_000 + number / 1000)
    generator.payments(float("inf"))
    orders, payments, broken = {}, [], {"orders": 0, "payments": 0}
    for topic, value in kept.sent:
        try:
            row = json.loads(value)
            assert "not " not in (row.get("at") or row.get("paid_at"))
        except (ValueError, AssertionError):
            broken[topic] += 1
            continue
        if topic == "orders":
            orders[row["id"]] = round(row["amount"] * 100)
        else:
            payments.append(row["order_id"])
    books = generator.summary()
    assert books["broken"] == broken and min(broken.values()) > 5
    assert books["sent"] == {"orders": 20_000, "payments": len(payments) + broken["payments"]}
    assert books["paid"] == len(payments) == len(set(payments)) and set(payments) <= set(orders)
    assert sum(books["cents"].values()) == sum(orders[one] for one in payments)
