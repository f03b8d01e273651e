"""The three delivery guarantees: what a consumer gets after it died in the middle of its work.

millstream serve &
python examples/clients/delivery_guarantees.py [BOOTSTRAP]
"""

import sys

from millstream import Consumer, Producer

ORDERS = [f"order {number}" for number in range(10)]


class Crash(Exception):
    """The process dies here; the next one starts where the group had got to."""


def shop(bootstrap: str, delivery: str) -> list[str]:
    """Handle all orders with a crash on the way; what was handled, in the order of handling."""
    topic, group, handled = f"example-orders-{delivery}", f"example-{delivery}", []
    with Producer(bootstrap, delivery=delivery, value="str") as producer:
        for order in ORDERS:
            producer.send(topic, order)
    for crashes in (True, False):
        try:
            with Consumer(
                bootstrap, topic, group=group, delivery=delivery, value="str", until_end=True
            ) as consumer:
                for batch in consumer.batches(max_records=4):
                    handled += [record.value for record in batch[:2]]
                    if crashes:
                        raise Crash
                    handled += [record.value for record in batch[2:]]
        except Crash:
            pass
    return handled


def shop_exactly_once(bootstrap: str) -> list[str]:
    """Results and offsets in one transaction: what was handled before the crash does not count."""
    delivery, group = "exactly-once", "example-exactly-once"
    topic, results = "example-orders-exactly-once", "example-orders-handled"
    with Producer(bootstrap, delivery=delivery, value="str") as producer:
        for order in ORDERS:
            producer.send(topic, order)
    for crashes in (True, False):
        producer = Producer(bootstrap, delivery=delivery, transactional_id="example-shop", value="str")
        try:
            with Consumer(
                bootstrap, topic, group=group, delivery=delivery, value="str", until_end=True
            ) as consumer:
                for batch in consumer.batches(max_records=4):
                    with producer.transaction() as transaction:
                        for record in batch[:2]:
                            transaction.send(results, record.value)
                        if crashes:
                            raise Crash
                        for record in batch[2:]:
                            transaction.send(results, record.value)
                        transaction.commit_offsets(consumer)
        except Crash:
            pass
    with Consumer(bootstrap, results, group="example-results", value="str", until_end=True) as consumer:
        return [record.value for record in consumer]


def main(bootstrap: str) -> None:
    for delivery in ("at-most-once", "at-least-once"):
        handled = shop(bootstrap, delivery)
        lost, twice = len(set(ORDERS) - set(handled)), len(handled) - len(set(handled))
        print(f"{delivery}: {lost} lost, {twice} twice")
    handled = shop_exactly_once(bootstrap)
    lost, twice = len(set(ORDERS) - set(handled)), len(handled) - len(set(handled))
    print(f"exactly-once: {lost} lost, {twice} twice")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
