"""The interceptor that measures end-to-end latency."""

from __future__ import annotations

import time

from millstream.client import LatencyInterceptor
from millstream.testing import Kafka


class Redis(dict):
    """The parts of a Redis client that the interceptor uses."""

    def incrby(self, name: str, by: int) -> int:
        self[name] = self.get(name, 0) + by
        return self[name]

    def set(self, name: str, value: int) -> None:
        self[name] = value


def test_latency_is_measured_and_stored_in_redis(millstream: Kafka) -> None:
    redis = Redis()
    latency = LatencyInterceptor(redis=redis)
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    with millstream.producer(interceptors=[latency], idempotent=False) as producer:
        producer.send("orders", b"old", timestamp_ms=hour_ago_ms)
        producer.send("orders", b"new")
    assert len(millstream.consume("orders", n=2, interceptors=[latency])) == 2
    assert (latency.sent, latency.histogram.count) == (2, 2)
    assert latency.histogram.percentile(100) >= 3_600_000 > latency.histogram.percentile(50)
    assert redis["totalSentMessage"] == 2
    assert redis["avgLatency"] == redis["totalLatency"] // 2 >= 1_800_000
