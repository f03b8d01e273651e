"""Transactions: records in several topics, all of them or none.

millstream serve &
python examples/clients/transactions.py [BOOTSTRAP]
"""

import sys

from millstream import Consumer, Producer

INVOICES, SEATS = "example-invoices", "example-seats"


class SoldOut(Exception):
    pass


def book(producer: Producer, passenger: str, flight: str, seats: dict[str, int]) -> None:
    """An invoice and a seat, or neither."""
    with producer.transaction() as transaction:
        transaction.send(INVOICES, {"passenger": passenger, "flight": flight}, key=passenger)
        if not seats[flight]:
            raise SoldOut(flight)
        transaction.send(SEATS, {"flight": flight, "passenger": passenger}, key=flight)
    seats[flight] -= 1


def main(bootstrap: str) -> None:
    seats = {"MS1": 1, "MS2": 5}
    with Producer(
        bootstrap, delivery="exactly-once", transactional_id="example-flights", key="str", value="json"
    ) as producer:
        for passenger, flight in (("Ada", "MS1"), ("Grace", "MS1"), ("Grace", "MS2")):
            try:
                book(producer, passenger, flight, seats)
            except SoldOut as error:
                print(f"{passenger}: {error} is sold out, and there is no invoice")

    for topic in (INVOICES, SEATS):
        with Consumer(bootstrap, topic, group=f"{topic}-shown", value="json", until_end=True) as consumer:
            print(f"{topic}: {[(record.value['passenger'], record.value['flight']) for record in consumer]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
