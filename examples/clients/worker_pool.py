"""A worker pool: one consumer, many threads; records of a key in order, and only what is finished is committed.

millstream serve &
python examples/clients/worker_pool.py [BOOTSTRAP]
"""

import sys
import threading
import time
from collections import defaultdict

from millstream import Admin, Consumer, Producer

TOPIC, GROUP = "example-payments", "example-booking"
ACCOUNTS, PAYMENTS = 20, 1000


def main(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        if not admin.topics.exists(TOPIC):
            admin.topics.create(TOPIC, partitions=4)
    with Producer(bootstrap, key="str", value="json") as producer:
        for number in range(PAYMENTS):
            producer.send(TOPIC, {"number": number}, key=f"account {number % ACCOUNTS}")

    booked: dict[str, list[int]] = defaultdict(list)
    threads: set[str] = set()

    def book(record) -> None:
        time.sleep(0.001)  # a call to somewhere
        threads.add(threading.current_thread().name)
        booked[record.key].append(record.value["number"])

    with Consumer(bootstrap, TOPIC, group=GROUP, key="str", value="json", until_end=True) as consumer:
        consumer.run(book, workers=16)

    assert all(numbers == sorted(numbers) for numbers in booked.values())
    print(f"{sum(map(len, booked.values()))} payments of {len(booked)} accounts, each account's in order")
    with Admin(bootstrap) as admin:
        print(f"lag: {sum(row.lag or 0 for row in admin.groups.lags(GROUP))}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
