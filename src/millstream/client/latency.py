"""End-to-end latency with interceptors: the time from creating a record to handing it out.

    latency = LatencyInterceptor()
    producer = Producer(bootstrap, interceptors=[latency])
    consumer = Consumer(bootstrap, "orders", group="billing", interceptors=[latency])
    latency.histogram.percentile(99)  # ms

One in the consumer's process is enough: records carry their creation time. With a Redis client the
sums are also kept there, for several processes, under the names ``totalSentMessage``,
``totalLatency`` (ms) and ``avgLatency``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from millstream.client.histogram import Histogram
from millstream.client.interceptors import ConsumerInterceptor, Outgoing, ProducerInterceptor

if TYPE_CHECKING:
    from millstream.client.record import Record

SENT, LATENCY, AVERAGE = "totalSentMessage", "totalLatency", "avgLatency"


class LatencyInterceptor(ProducerInterceptor, ConsumerInterceptor):
    """Counts records sent, and measures records handed out.

    Latencies are in milliseconds and depend on the clocks of both machines.
    """

    def __init__(self, *, redis: Any = None, prefix: str = "") -> None:
        """``redis``: a client like that of the package redis (``incrby``, ``get``, ``set``)."""
        self.sent = 0
        self.histogram = Histogram()
        self._redis = redis
        self._prefix = prefix

    def on_send(self, record: Outgoing) -> Outgoing:
        self.sent += 1
        if self._redis is not None:
            self._redis.incrby(self._prefix + SENT, 1)
        return record

    def on_consume(self, records: list[Record]) -> list[Record]:
        now_ms = time.time_ns() // 1_000_000
        latencies_ms = [
            max(now_ms - record.timestamp_ms, 0)
            for record in records
            if record.timestamp_type != "none"
        ]
        for latency_ms in latencies_ms:
            self.histogram.add(latency_ms)
        if self._redis is not None and latencies_ms:
            self._store(sum(latencies_ms))
        return records

    def _store(self, latency_ms: int) -> None:
        total_ms = int(self._redis.incrby(self._prefix + LATENCY, latency_ms))
        sent = int(self._redis.get(self._prefix + SENT) or 0)
        if sent:
            self._redis.set(self._prefix + AVERAGE, total_ms // sent)
