"""The records of the broker demo, and the check that each is read once, in order and unchanged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.client.record import Record

CUSTOMERS = 97
PRODUCTS = ("coffee", "bread", "apples", "flour", "honey", "olive oil")
Headers = list[tuple[str, bytes | str | None]]


class Orders:
    """Orders of 97 customers, the same in every iteration. The key is the customer."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.checksum = sum(zlib.crc32(value) for _, value, _ in self)

    def __iter__(self) -> Iterator[tuple[bytes, bytes, Headers]]:
        for number in range(self.count):
            product = PRODUCTS[number % len(PRODUCTS)]
            value = (
                f'{{"order": {number}, "customer": {number % CUSTOMERS}, "product": "{product}", '
                f'"amount": {number * 7919 % 100_000 / 100:.2f}, "currency": "EUR", "express": {str(number % 5 == 0).lower()}}}'
            )
            yield b"customer-%d" % (number % CUSTOMERS), value.encode(), [("order", str(number))]


class OrderCheck:
    """Checks records in the order they were read.

    The next order of each key is known, so gaps and duplicates are noticed.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.records = self.doubled = self.changed = 0
        self._gaps = 0
        self._checksum = 0
        self._next = {
            b"customer-%d" % number: number for number in range(min(CUSTOMERS, orders.count))
        }

    def add(self, record: Record) -> None:
        """Compare a record with the next order of its key."""
        self.records += 1
        self._checksum += zlib.crc32(record.value or b"")
        number = int(record.headers[0][1] or b"-1") if record.headers else -1
        expected = self._next.get(record.key or b"", -1)
        if number < 0 or expected < 0 or (number - expected) % CUSTOMERS:
            self.changed += 1
        elif number < expected:
            self.doubled += 1
        else:
            self._gaps += (number - expected) // CUSTOMERS
            self._next[record.key or b""] = number + CUSTOMERS

    @property
    def lost(self) -> int:
        """The number of skipped orders, plus those missing at the end of each key."""
        return self._gaps + sum(
            len(range(number, self.orders.count, CUSTOMERS)) for number in self._next.values()
        )

    @property
    def ok(self) -> bool:
        return (
            not (self.lost or self.doubled or self.changed)
            and self.records == self.orders.count
            and self._checksum == self.orders.checksum
        )

    def complaint(self) -> str:
        """Return a description of the errors, or an empty string."""
        if self.ok:
            return ""
        return (
            f"{self.lost:,} lost, {self.doubled:,} duplicates, {self.changed:,} changed, "
            f"checksum {'correct' if self._checksum == self.orders.checksum else 'wrong'}"
        )
