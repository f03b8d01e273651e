"""Several batches of an idempotent producer in flight, and the first is refused: nothing that is
acknowledged may be missing.

librdkafka takes the acknowledgement of a batch for one of those before it, too, whatever these were
told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millstream.client.producer import Delivery
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.testing import Kafka
from millstream.testing.kafka import ThreadKafka

RECORDS = 30


@contextmanager
def busy(kafka: Kafka) -> Iterator[None]:
    """The broker looks at nothing meanwhile: whatever is sent is in flight."""
    assert isinstance(kafka, ThreadKafka)
    ready, over = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        over.wait(30)

    blocked = threading.Thread(target=kafka.broker.run, args=(wait,))
    blocked.start()
    ready.wait(30)
    try:
        yield
    finally:
        over.set()
        blocked.join(30)


def deliver(kafka: Kafka, code: str | None = None) -> list[Delivery]:
    """Records in batches of their own, of which several are in flight before the broker looks at
    the first; a fault refuses that with ``code``.
    """
    told: list[Delivery] = []
    with kafka.producer(linger_ms=0, on_delivery=told.append) as producer:
        producer.send("orders", b"nothing has to be asked for any more", partition=1)
        producer.flush()
        told.clear()
        if code is not None:
            kafka.faults.error("Produce", code)
        with busy(kafka):
            for n in range(RECORDS):
                producer.send("orders", str(n), partition=0)
                time.sleep(0.01)
    return told


def assert_all_there(kafka: Kafka, told: list[Delivery]) -> None:
    assert [one.error for one in told] == [None] * RECORDS
    written = [one.value for one in kafka.consume("orders") if one.partition == 0]
    assert written == [b"%d" % n for n in range(RECORDS)]
    assert [one.offset for one in told] == list(range(RECORDS))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_nothing_is_written_behind_the_first_batch_of_a_producer_when_that_is_refused(
    millstream: Kafka, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    """The broker knows nothing of the producer yet, and would take any sequence."""
    millstream.topic("orders", partitions=2)
    check, left = Partition.check_min_isr, [code]

    def fail_once(self: Partition) -> None:
        if self.tp == ("orders", 0) and left:
            raise ApiError(left.pop())
        check(self)

    monkeypatch.setattr(Partition, "check_min_isr", fail_once)
    told = deliver(millstream)
    assert not left
    assert_all_there(millstream, told)


@pytest.mark.parametrize(
    "code", ["NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "UNKNOWN_TOPIC_OR_PARTITION"]
)
def test_a_fault_that_refuses_the_first_batch_loses_nothing_either(
    millstream: Kafka, code: str
) -> None:
    """Whoever tests with it would look for the loss in a program that is right."""
    millstream.topic("orders", partitions=2)
    assert_all_there(millstream, deliver(millstream, code))
