"""Peak shaving: producers are ten times as fast as consumers. Memory stays bounded, no record is
lost, and the lag drains.
"""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from millstream.client import Consumer, Producer
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until

SLOW = 2_000  # records per second that the consumer reads during the peak
VALUE = b"x" * 500
MOST_MB = 300  # of growth; twice as much passes in a minute


@pytest.mark.timeout(600)
@pytest.mark.millstream(process=True)
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_consumer_works_off_a_peak_with_bounded_memory(millstream: Kafka, seconds: int) -> None:
    millstream.topic("orders", 4)
    broker, me = psutil.Process(millstream.process.pid), psutil.Process()  # type: ignore[attr-defined]
    before = broker.memory_info().rss, me.memory_info().rss
    seen: set[bytes] = set()
    peak = threading.Event()
    consumer = Consumer(millstream.bootstrap, "orders", group="slow")

    def read() -> None:
        with consumer:
            while not produced.is_set():
                records = consumer.poll(SLOW // 10)
                seen.update(record.key for record in records)
                consumer.commit(wait=False)
                if not peak.is_set():
                    time.sleep(len(records) / SLOW)

    produced = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        total = produce_for(millstream.bootstrap, seconds, 10 * SLOW)
        behind = total - len(seen)
        assert behind > total // 2
        peak.set()
        wait_until(lambda: len(seen) >= total, "the lag is gone", 120)
    finally:
        produced.set()
        reader.join()
    assert len(seen) == total
    grown_mb = [
        (now - then) >> 20
        for now, then in zip((broker.memory_info().rss, me.memory_info().rss), before, strict=True)
    ]
    assert max(grown_mb) < MOST_MB, grown_mb


def produce_for(bootstrap: str, seconds: float, rate: int) -> int:
    """Send at a steady rate, as well as this machine can, and return the number of records."""
    total = int(seconds * rate)
    with Producer(bootstrap, idempotent=False) as producer:
        start_s = time.monotonic()
        for number in range(total):
            producer.send("orders", VALUE, key=str(number))
            if not number % 200:
                time.sleep(max(start_s + number / rate - time.monotonic(), 0))
    return total
