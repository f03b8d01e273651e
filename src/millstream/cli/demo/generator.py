"""The process that generates orders and payments for the demo, and counts the expected results.

Some orders are never paid, and one in a thousand records is invalid on purpose. The summary is
counted while sending and never read back from the broker.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream.client import Producer

COUNTRIES = ("AT", "CH", "DE", "FR", "IT", "NL")
CUSTOMERS = 60
PAID = 0.92
BROKEN = 0.001
_SEED = 20_26


def customers() -> Iterator[tuple[str, str]]:
    """Yield name and country of every customer."""
    for number in range(CUSTOMERS):
        yield f"customer-{number}", COUNTRIES[number % len(COUNTRIES)]


def iso(at_s: float) -> str:
    return (
        datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class Generator:
    """Sends the records and counts the expected results."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._dice = random.Random(_SEED)
        # Payments to send: time, order, country, cents.
        self._due: list[tuple[float, str, str, int]] = []
        self._country = dict(customers())
        self._orders = 0
        self.sent: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.paid = 0
        self.cents: Counter[str] = Counter()

    def order(self, at_s: float) -> None:
        self._orders += 1
        customer = f"customer-{self._dice.randrange(CUSTOMERS)}"
        cents = self._dice.randrange(100, 50_000)
        name = f"order-{self._orders}"
        value = json.dumps(
            {"id": name, "customer": customer, "amount": cents / 100, "at": iso(at_s)}
        )
        if self._send("orders", name, value) and self._dice.random() < PAID:
            delay_s = self._dice.random() * 2
            heapq.heappush(self._due, (at_s + delay_s, name, self._country[customer], cents))

    def payments(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            at_s, order, country, cents = heapq.heappop(self._due)
            value = json.dumps({"order_id": order, "paid_at": iso(at_s)})
            if self._send("payments", order, value):
                self.paid += 1
                self.cents[country] += cents

    def _send(self, topic: str, key: str, value: str) -> bool:
        """Send a record. Return False if it was made invalid on purpose."""
        self.sent[topic] += 1
        data = value.encode()
        if self._dice.random() < BROKEN:
            self.broken[topic] += 1
            self._producer.send(topic, self._spoil(data), key=key)
            return False
        self._producer.send(topic, data, key=key)
        return True

    def _spoil(self, data: bytes) -> bytes:
        kind = self._dice.randrange(3)
        if kind == 0:
            return data[: len(data) // 2]  # truncated
        if kind == 1:
            return b"\xff\xfe" + data  # not UTF-8
        return data.replace(b'_at": "', b'_at": "not ').replace(b'"at": "', b'"at": "not ')

    def summary(self) -> dict[str, Any]:
        return {
            "sent": dict(self.sent),
            "broken": dict(self.broken),
            "paid": self.paid,
            "cents": dict(self.cents),
        }


def generate(
    bootstrap: str, seconds: float, rate: int, resume: Path | None = None
) -> dict[str, Any]:
    """Send orders at this rate for this time, and all their payments.

    With ``resume`` the last third waits until that file exists. The timestamps continue without a
    gap, because a gap would move the watermark past later payments.
    """
    with Producer(bootstrap, options={"linger.ms": 50, "enable.idempotence": True}) as producer:
        generator = Generator(producer)
        first_s = began_s = time.time()
        made, total = 0, int(seconds * rate)
        while made < total:
            elapsed_s = time.time() - began_s
            limit = total if resume is None or resume.exists() else total * 2 // 3
            due = min(int(elapsed_s * rate) + 1, limit)
            if made < due:
                for number in range(made, due):
                    generator.order(first_s + number / rate)
                made = due
                generator.payments(first_s + made / rate)
            elif made == limit:
                began_s += elapsed_s - made / rate
            producer.poll()
            time.sleep(0.01)
        generator.payments(float("inf"))
    return generator.summary()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("seconds", type=float)
    parser.add_argument("rate", type=int)
    parser.add_argument("summary", type=Path)
    parser.add_argument("resume", type=Path, nargs="?")
    arguments = parser.parse_args()
    books = generate(arguments.bootstrap, arguments.seconds, arguments.rate, arguments.resume)
    arguments.summary.write_text(json.dumps(books))


if __name__ == "__main__":
    main()
