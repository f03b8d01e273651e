"""Peak shaving: producers ten times as fast as consumers; memory stays bounded, nothing is lost,
the lag drains.
"""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from millstream.client import Consumer, Producer
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until

SLOW = 2_000  # records a second that the consumer takes, while the peak lasts
VALUE = b"x" * 500
MOST_MB = 300  # of growth; what passes in a minute is twice that


@pytest.mark.timeout(600)
@pytest.mark.millstream(process=True)
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_a_peak_is_taken_in_and_worked_off(millstream: Kafka, seconds: int) -> None:
    millstream.topic("orders", 4)
    broker, me = psutil.Process(millstream.process.pid), psutil.Process()  # type: ignore[attr-defined]
    before = broker.memory_info().rss, me.memory_info().rss
    seen: set[bytes] = set()
    peak = threading.Event()
    consumer = Consumer(millstream.bootstrap, "orders", group="slow")

    def read() -> None:
        with consumer:
            while not done.is_set():
                records = consumer.poll(SLOW // 10)
                seen.update(one.key for one in records)
                consumer.commit(wait=False)
                if not peak.is_set():
                    time.sleep(len(records) / SLOW)

    done = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        total = produce_for(millstream.bootstrap, seconds, 10 * SLOW)
        behind = total - len(seen)
        assert behind > total // 2
        peak.set()
        wait_until(lambda: len(seen) >= total, "the lag is gone", 120)
    finally:
        done.set()
        reader.join()
    assert len(seen) == total
    grown_mb = [
        (now - then) >> 20
        for now, then in zip((broker.memory_info().rss, me.memory_info().rss), before, strict=True)
    ]
    assert max(grown_mb) < MOST_MB, grown_mb


def produce_for(bootstrap: str, seconds: float, rate: int) -> int:
    """Send at a steady rate, as well as this machine can; how many."""
    total = int(seconds * rate)
    with Producer(bootstrap, idempotent=False) as producer:
        start_s = time.monotonic()
        for number in range(total):
            producer.send("orders", VALUE, key=str(number))
            if not number % 200:
                time.sleep(max(start_s + number / rate - time.monotonic(), 0))
    return total
