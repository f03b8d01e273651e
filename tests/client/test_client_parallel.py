"""Many threads: a worker pool behind one consumer, and a consumer per thread."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from millstream.client import ClientError, Consumer, ConsumerThreads
from millstream.client.worker_pool import Progress
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until

COUNT = 2000


@pytest.fixture
def kafka(millstream: Kafka) -> Kafka:
    """A topic of four partitions; the value is a number that grows within each key."""
    millstream.topic("orders", 4)
    millstream.produce("orders", [(f"key-{n % 20}", str(n)) for n in range(COUNT)])
    return millstream


def total_lag(kafka: Kafka, group: str) -> int:
    committed = kafka.admin.groups.committed(group)
    return sum(end - committed.get(one, 0) for one, end in kafka.admin.offsets.latest("orders").items())


def test_what_may_be_committed_is_before_the_first_unfinished() -> None:
    progress = Progress()
    for offset in (3, 4, 7):
        progress.begin(offset)
    progress.finish(4)
    assert progress.next_offset is None
    progress.finish(3)
    assert progress.next_offset == 5
    progress.finish(7)
    assert (progress.next_offset, progress.waiting) == (8, 0)


def test_the_pool_keeps_the_order_of_keys_and_commits_all(kafka: Kafka) -> None:
    seen: dict[bytes, list[int]] = defaultdict(list)
    threads: set[str] = set()

    def handle(record) -> None:
        threads.add(threading.current_thread().name)
        seen[record.key].append(int(record.value))

    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as consumer:
        consumer.run(handle, workers=8)
    assert sum(map(len, seen.values())) == COUNT
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert len(threads) > 1
    assert total_lag(kafka, "readers") == 0


def test_a_full_pool_pauses_and_goes_on(kafka: Kafka) -> None:
    most, running, done = 0, 0, 0
    lock = threading.Lock()

    def handle(record) -> None:
        nonlocal most, running, done
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.0005)
        with lock:
            running -= 1
            done += 1

    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as consumer:
        consumer.run(handle, workers=4, max_in_flight=50)
    assert (most <= 4, done, total_lag(kafka, "readers")) == (True, COUNT, 0)


def test_a_failure_ends_the_run_and_its_record_is_read_again(kafka: Kafka) -> None:
    seen: set[bytes] = set()

    def fails(record) -> None:
        if record.value == b"777":
            raise ZeroDivisionError("over 777")
        seen.add(record.value)

    consumer = Consumer(kafka.bootstrap, "orders", group="readers", until_end=True)
    with consumer, pytest.raises(ZeroDivisionError, match="over 777"):
        consumer.run(fails, workers=4)
    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as consumer:
        consumer.run(lambda record: seen.add(record.value), workers=4)
    assert seen == {str(n).encode() for n in range(COUNT)}


def test_on_error_makes_a_failed_record_count_as_handled(kafka: Kafka) -> None:
    failed: list[bytes] = []

    def fails(record) -> None:
        if int(record.value) % 100 == 0:
            raise ValueError

    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as consumer:
        consumer.run(fails, workers=4, on_error=lambda record, error: failed.append(record.value))
    assert len(failed) == COUNT // 100
    assert total_lag(kafka, "readers") == 0


def test_what_cannot_be_decoded_goes_to_on_error(kafka: Kafka) -> None:
    kafka.produce("orders", [(b"key", b"{")])
    handled, failed = [], []
    with Consumer(kafka.bootstrap, "orders", group="readers", value="json", until_end=True) as consumer:
        consumer.run(
            lambda record: handled.append(record.value),
            on_error=lambda record, error: failed.append(record.value),
        )
    assert (sorted(handled), failed) == (list(range(COUNT)), [b"{"])
    assert total_lag(kafka, "readers") == 0


def test_stop_finishes_what_runs_and_leaves_the_rest_to_the_next(kafka: Kafka) -> None:
    seen: list[bytes] = []
    lock = threading.Lock()
    consumer = Consumer(kafka.bootstrap, "orders", group="readers")

    def handle(record) -> None:
        with lock:
            seen.append(record.value)
            if len(seen) == 300:
                consumer.stop()

    with consumer:
        consumer.run(handle, workers=4)
    assert len(seen) >= 300
    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as rest:
        rest.run(lambda record: seen.append(record.value), workers=4)
    assert set(seen) == {str(n).encode() for n in range(COUNT)}


def test_two_pools_share_and_a_rebalance_loses_nothing(kafka: Kafka) -> None:
    seen: list[bytes] = []
    consumers: list[Consumer] = []

    def handle(record) -> None:
        time.sleep(0.0005)
        seen.append(record.value)

    def run() -> None:
        # Made where it is polled: a member that joins and is not polled holds the other up.
        with Consumer(kafka.bootstrap, "orders", group="readers") as consumer:
            consumers.append(consumer)
            consumer.run(handle, workers=2, max_in_flight=100)

    threads = [threading.Thread(target=run) for _ in range(2)]
    threads[0].start()
    wait_until(lambda: len(seen) > 100, "the first is at work")
    threads[1].start()  # takes over some of the partitions in the middle of the work
    wait_until(lambda: len(set(seen)) == COUNT and len(consumers) == 2, "all are handled")
    for consumer in consumers:
        consumer.stop()
    for thread in threads:
        thread.join()
    assert total_lag(kafka, "readers") == 0


def test_unfit_numbers_are_refused(kafka: Kafka) -> None:
    consumer = Consumer(kafka.bootstrap, "orders", group="readers")
    with consumer, pytest.raises(ClientError, match="do not go together"):
        consumer.run(print, workers=8, max_in_flight=4)


def test_a_consumer_per_thread(kafka: Kafka) -> None:
    seen: list[bytes] = []
    with ConsumerThreads(
        kafka.bootstrap,
        "orders",
        lambda batch: seen.extend(one.value for one in batch),
        group="readers",
        threads=3,
    ):
        wait_until(lambda: len(set(seen)) == COUNT, "all are handled")
    assert total_lag(kafka, "readers") == 0


def test_a_failure_in_one_thread_ends_all(kafka: Kafka) -> None:
    def fails(batch) -> None:
        raise ZeroDivisionError

    running = ConsumerThreads(kafka.bootstrap, "orders", fails, group="readers", threads=2).start()
    with pytest.raises(ZeroDivisionError):
        running.wait(30)
    assert total_lag(kafka, "readers") == COUNT
