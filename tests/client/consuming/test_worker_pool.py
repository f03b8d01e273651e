"""Many threads: a worker pool behind one consumer, and a consumer per thread."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from millstream.client import ClientError, Consumer, ConsumerThreads
from millstream.client.consuming.worker_pool import Progress, WorkerPool
from millstream.client.library import KafkaError
from millstream.client.record import Record
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until

COUNT = 2000
# Short timeouts: tests should not wait long for dead members or rebalances.
SHORT_SESSIONS = pytest.mark.millstream(settings={"group.min.session.timeout.ms": 100})
SHORT = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 100}


@pytest.fixture
def kafka(millstream: Kafka) -> Kafka:
    """A broker with a topic of four partitions; values are numbers that grow within each key."""
    millstream.topic("orders", 4)
    millstream.produce("orders", [(f"key-{n % 20}", str(n)) for n in range(COUNT)])
    return millstream


def total_lag(kafka: Kafka, group: str) -> int:
    committed = kafka.admin.groups.committed(group)
    return sum(
        end - committed.get(partition, 0)
        for partition, end in kafka.admin.offsets.latest("orders").items()
    )


def test_only_offsets_before_the_first_unfinished_are_committed() -> None:
    progress = Progress()
    for offset in (3, 4, 7):
        progress.begin(offset)
    progress.finish(4)
    assert progress.next_offset is None
    progress.finish(3)
    assert progress.next_offset == 5
    progress.finish(7)
    assert (progress.next_offset, progress.waiting) == (8, 0)


def test_pool_keeps_the_order_of_keys_and_commits_all(kafka: Kafka) -> None:
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


class Gate:
    """A handler whose records wait until the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.seen: list[Record] = []

    def __call__(self, record: Record) -> None:
        self.seen.append(record)
        assert self.open.wait(60)


@contextmanager
def running(
    consumer: Consumer, handle: Callable[[Record], object], **options
) -> Iterator[threading.Thread]:
    """Run a pool on a thread until the end of the block."""
    thread = threading.Thread(target=lambda: consumer.run(handle, **options))
    thread.start()
    try:
        yield thread
    finally:
        consumer.stop()
        if isinstance(handle, Gate):
            handle.open.set()
        thread.join()
        consumer.close()


def paused(consumer: Consumer) -> bool:
    return consumer._pool is not None and consumer._pool._paused


def in_flight(consumer: Consumer) -> int:
    assert consumer._pool is not None
    return consumer._pool._in_flight


def test_full_pool_pauses_and_resumes(kafka: Kafka) -> None:
    gate = Gate()
    consumer = Consumer(kafka.bootstrap, "orders", group="readers")
    with running(consumer, gate, workers=4, max_in_flight=50):
        wait_until(lambda: paused(consumer), "the pool is full, and stays so")
        assert in_flight(consumer) == 50 > len(gate.seen)
        gate.open.set()
        wait_until(lambda: len(gate.seen) == COUNT and not in_flight(consumer), "all are handled")
        assert not paused(consumer)
    assert total_lag(kafka, "readers") == 0


@SHORT_SESSIONS
def test_full_pool_reads_nothing_of_new_partitions(kafka: Kafka) -> None:
    gate, joined, leaves = Gate(), threading.Event(), threading.Event()

    def hold_half() -> None:
        with Consumer(kafka.bootstrap, "orders", group="readers", options=SHORT) as other:
            while not leaves.is_set():
                other.stream.serve_group(0.05)
                if len(other.membership.owned) == 4:
                    joined.set()

    other = threading.Thread(target=hold_half)
    other.start()
    assert joined.wait(30)
    consumer = Consumer(kafka.bootstrap, "orders", group="readers", options=SHORT)
    try:
        with running(consumer, gate, workers=2, max_in_flight=10):
            wait_until(
                lambda: paused(consumer) and len(consumer.membership.owned) == 2, "both have a half"
            )
            leaves.set()
            other.join()
            wait_until(lambda: len(consumer.membership.owned) == 4, "the rest has come")
            for _ in range(10):  # records fetched from it would arrive in this time
                time.sleep(0.05)
                assert in_flight(consumer) == 10
            gate.open.set()
            wait_until(
                lambda: len({record[:3] for record in gate.seen}) == COUNT, "all are handled"
            )
    finally:
        gate.open.set()
        leaves.set()
        other.join()


def test_briefly_full_pool_is_not_paused(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(WorkerPool, "_pause", lambda self: pauses.append(self._in_flight))
    seen: list[bytes] = []
    with Consumer(kafka.bootstrap, "orders", group="readers", until_end=True) as consumer:
        consumer.run(lambda record: seen.append(record.value), workers=4, max_in_flight=10)
    assert (len(seen), pauses) == (COUNT, [])


@pytest.mark.parametrize("group", ["readers", None])
def test_slow_records_at_the_end_are_handled_beyond_drain_timeout(
    kafka: Kafka, group: str | None
) -> None:
    gate = Gate()
    consumer = Consumer(kafka.bootstrap, "orders", group=group, until_end=True)
    with running(consumer, gate, workers=2, max_in_flight=COUNT, drain_timeout_s=0.01) as thread:
        wait_until(lambda: paused(consumer), "everything is read, and waits")
        thread.join(0.1)  # ten times as long as it may take to drain
        assert thread.is_alive()
        gate.open.set()
        thread.join()
    assert len(gate.seen) == COUNT
    assert group is None or total_lag(kafka, group) == 0


def test_stop_logs_unfinished_records(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    consumer = Consumer(kafka.bootstrap, "orders", group="readers")
    with running(consumer, gate, workers=3, drain_timeout_s=0.2) as thread:
        wait_until(lambda: gate.seen, "a worker is stuck")
        consumer.stop()
        thread.join()
        assert f"{len(gate.seen)} records are still being handled after 0.2 s" in caplog.text
    assert total_lag(kafka, "readers") == COUNT


def test_stop_before_run_ends_it_at_once(kafka: Kafka) -> None:
    seen: list[bytes] = []
    with Consumer(kafka.bootstrap, "orders", until_end=True) as consumer:
        consumer.stop()
        consumer.run(lambda record: seen.append(record.value))
        assert seen == []
        consumer.run(lambda record: seen.append(record.value))
    assert len(seen) == COUNT


def test_base_exception_ends_the_run(kafka: Kafka) -> None:
    def leaves(record: Record) -> None:
        if record.value == b"777":
            sys.exit("over 777")

    consumer = Consumer(kafka.bootstrap, "orders", group="readers", until_end=True)
    with consumer, pytest.raises(SystemExit, match="over 777"):
        consumer.run(leaves, workers=4, on_error=lambda record, error: None)
    assert total_lag(kafka, "readers") > 0


class Opaque:
    """A key that equals only itself."""

    encode = staticmethod(lambda value: b"")

    @staticmethod
    def decode(data: bytes) -> object:
        return object()


def test_unhashable_decoded_keys_keep_their_order(kafka: Kafka) -> None:
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)

    def handle(record: Record) -> None:
        seen[threading.current_thread().name, int(record.value) % 20].append(int(record.value))

    with Consumer(kafka.bootstrap, "orders", key=Opaque(), until_end=True) as consumer:
        consumer.run(handle, workers=8)
    assert len(seen) == 20  # a thread for each key
    assert all(numbers == sorted(numbers) for numbers in seen.values())


# ---- commits ----


def test_at_most_once_commits_before_a_record_is_handled(kafka: Kafka) -> None:
    seen: list[Record] = []
    consumer = Consumer(
        kafka.bootstrap, "orders", group="readers", delivery="at-most-once", until_end=True
    )

    def handle(record: Record) -> None:
        committed = kafka.admin.groups.committed("readers") if len(seen) % 500 == 0 else None
        assert committed is None or committed[TopicPartition(*record[:2])] > record.offset
        seen.append(record)
        if len(seen) == 600:
            consumer.stop()

    with consumer:
        consumer.run(handle, workers=2, max_in_flight=200)
    # Committed records were handled, although the pool was stopped.
    assert (
        COUNT - total_lag(kafka, "readers")
        == len(seen)
        == len({record[:3] for record in seen})
        < COUNT
    )


def test_failed_record_is_not_repeated_at_most_once(kafka: Kafka) -> None:
    consumer = Consumer(
        kafka.bootstrap, "orders", group="readers", delivery="at-most-once", until_end=True
    )
    with consumer, pytest.raises(ZeroDivisionError):
        consumer.run(lambda record: 1 / 0, workers=1)
    assert total_lag(kafka, "readers") < COUNT


def test_without_auto_commit_the_caller_commits(kafka: Kafka) -> None:
    with Consumer(
        kafka.bootstrap, "orders", group="readers", auto_commit=False, until_end=True
    ) as consumer:
        consumer.run(lambda record: None, commit_every_s=0)
        assert total_lag(kafka, "readers") == COUNT
        consumer.commit()
    assert total_lag(kafka, "readers") == 0


def test_exactly_once_is_rejected_without_a_transaction(kafka: Kafka) -> None:
    consumer = Consumer(kafka.bootstrap, "orders", group="readers", delivery="exactly-once")
    with (
        consumer,
        pytest.raises(ClientError, match=r"run\(\) cannot .* transaction\.commit_offsets"),
    ):
        consumer.run(print)
    with pytest.raises(ClientError, match=r"ConsumerThreads cannot .* transaction\.commit_offsets"):
        ConsumerThreads(kafka.bootstrap, "orders", print, group="readers", delivery="exactly-once")


@SHORT_SESSIONS
@pytest.mark.parametrize("code", ["UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_MEMBER_EPOCH"])
def test_failed_commit_does_not_end_the_pool(kafka: Kafka, code: str) -> None:
    seen: list[bytes] = []
    consumer = Consumer(kafka.bootstrap, "orders", group="readers", options=SHORT)
    with running(consumer, lambda record: seen.append(record.value), commit_every_s=0.02) as thread:
        wait_until(lambda: len(set(seen)) == COUNT, "all are handled")
        wait_until(lambda: total_lag(kafka, "readers") == 0, "all are committed")
        with kafka.faults.error("OffsetCommit", code, times=1) as fault:
            kafka.produce("orders", [("key-1", f"more-{n}") for n in range(100)])
            fault.wait()
            wait_until(lambda: len(set(seen)) == COUNT + 100, "the others are handled too")
            wait_until(lambda: total_lag(kafka, "readers") == 0, "and committed")
        kafka.produce("orders", [("key-2", "last")])
        wait_until(lambda: b"last" in seen, "the pool is at work")
        assert thread.is_alive()


def test_fenced_instance_is_a_permanent_failure(kafka: Kafka) -> None:
    with Consumer(kafka.bootstrap, "orders", group="readers") as consumer:
        assert consumer.membership is not None
        assert consumer.membership._commit_failure(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)).passing
        assert not consumer.membership._commit_failure(
            KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        ).passing


def test_failure_ends_the_run_and_its_record_is_read_again(kafka: Kafka) -> None:
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


def test_undecodable_record_goes_to_on_error(kafka: Kafka) -> None:
    kafka.produce("orders", [(b"key", b"{")])
    handled, failed = [], []
    with Consumer(
        kafka.bootstrap, "orders", group="readers", value="json", until_end=True
    ) as consumer:
        consumer.run(
            lambda record: handled.append(record.value),
            on_error=lambda record, error: failed.append(record.value),
        )
    assert (sorted(handled), failed) == (list(range(COUNT)), [b"{"])
    assert total_lag(kafka, "readers") == 0


def test_stop_finishes_running_records_and_leaves_the_rest(kafka: Kafka) -> None:
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


def test_rebalance_between_two_pools_loses_nothing(kafka: Kafka) -> None:
    seen: list[bytes] = []
    consumers: list[Consumer] = []

    def handle(record) -> None:
        time.sleep(0.0005)
        seen.append(record.value)

    def run() -> None:
        # Created on the polling thread: a member that joins and is not polled delays the other.
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


def test_invalid_pool_sizes_are_rejected(kafka: Kafka) -> None:
    consumer = Consumer(kafka.bootstrap, "orders", group="readers")
    with consumer, pytest.raises(ClientError, match="a pool cannot have"):
        consumer.run(print, workers=8, max_in_flight=4)


def test_consumer_threads_read_all_records(kafka: Kafka) -> None:
    seen: list[bytes] = []
    with ConsumerThreads(
        kafka.bootstrap,
        "orders",
        lambda batch: seen.extend(record.value for record in batch),
        group="readers",
        threads=3,
    ):
        wait_until(lambda: len(set(seen)) == COUNT, "all are handled")
    assert total_lag(kafka, "readers") == 0


def test_failure_in_one_thread_ends_all(kafka: Kafka) -> None:
    def fails(batch) -> None:
        raise ZeroDivisionError

    running = ConsumerThreads(kafka.bootstrap, "orders", fails, group="readers", threads=2).start()
    with pytest.raises(ZeroDivisionError):
        running.wait(30)
    assert total_lag(kafka, "readers") == COUNT


def test_threads_commit_according_to_delivery(kafka: Kafka) -> None:
    def fails(batch: list[Record]) -> None:
        raise ZeroDivisionError

    for options, all_are_left in (
        ({"auto_commit": False}, True),
        ({"delivery": "at-most-once"}, False),
    ):
        group = "-".join(options)
        threads = ConsumerThreads(
            kafka.bootstrap, "orders", fails, group=group, threads=1, **options
        )
        with pytest.raises(ZeroDivisionError):
            threads.start().wait(30)
        assert (total_lag(kafka, group) == COUNT) is all_are_left
    handled: list[Record] = []
    with ConsumerThreads(
        kafka.bootstrap, "orders", handled.extend, group="free", threads=2, auto_commit=False
    ):
        wait_until(lambda: len(handled) == COUNT, "all are handled")
    assert total_lag(kafka, "free") == COUNT


@SHORT_SESSIONS
def test_failed_commit_does_not_end_the_threads(kafka: Kafka) -> None:
    seen: list[Record] = []
    with (
        kafka.faults.error("OffsetCommit", "UNKNOWN_MEMBER_ID", times=1),
        ConsumerThreads(
            kafka.bootstrap, "orders", seen.extend, group="readers", threads=1, options=SHORT
        ),
    ):
        wait_until(lambda: len({record[:3] for record in seen}) == COUNT, "all are handled")
        wait_until(lambda: total_lag(kafka, "readers") == 0, "and committed")


@SHORT_SESSIONS
def test_wait_timeout_is_for_all_threads_together(kafka: Kafka) -> None:
    gate = threading.Event()
    threads = ConsumerThreads(
        kafka.bootstrap,
        "orders",
        lambda batch: gate.wait(60),
        group="readers",
        threads=3,
        options=SHORT,
    ).start()
    waited: list[float] = []
    for thread in threads._threads:
        thread.join = lambda timeout=None, join=thread.join: (waited.append(timeout), join(timeout))  # type: ignore[method-assign, misc]
    with pytest.raises(TimeoutError):
        threads.wait(0.2)
    gate.set()
    threads.stop()
    threads.wait()
    assert sum(waited[:3]) < 0.3
