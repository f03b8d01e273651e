"""Interceptors of producers and consumers, the one for latency among them; and the client's own metrics."""

from __future__ import annotations

import time

from millstream.client import ConsumerInterceptor, LatencyInterceptor, ProducerInterceptor
from millstream.client.histogram import Histogram
from millstream.core.types import TopicPartition
from millstream.testing import Kafka


class Stamp(ProducerInterceptor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[int] = []

    def on_send(self, record):
        return record._replace(headers=(*record.headers, ("by", self.name)), value=record.value + self.name)

    def on_acknowledgement(self, delivery) -> None:
        self.acknowledged.append(delivery.offset)


class Broken(ProducerInterceptor, ConsumerInterceptor):
    def on_send(self, record):
        raise KeyError("a bug")

    def on_acknowledgement(self, delivery) -> None:
        raise KeyError("a bug")

    def on_consume(self, records):
        raise KeyError("a bug")

    def on_commit(self, offsets) -> None:
        raise KeyError("a bug")


class Forgetful(ProducerInterceptor, ConsumerInterceptor):
    """Its author forgot to return what it was given."""

    def on_send(self, record):
        pass

    def on_consume(self, records):
        pass


class Odd(ConsumerInterceptor):
    """Leaves out every second record."""

    def __init__(self) -> None:
        self.committed: list[dict[TopicPartition, int]] = []

    def on_consume(self, records):
        return [one for one in records if one.offset % 2]

    def on_commit(self, offsets) -> None:
        self.committed.append(dict(offsets))


def test_producer_interceptors_are_a_chain_that_a_bug_does_not_break(millstream: Kafka) -> None:
    chain = [Stamp("a"), Broken(), Forgetful(), Stamp("b")]
    with millstream.producer(interceptors=chain, idempotent=False) as producer:
        producer.send("orders", "x-")
    (record,) = millstream.consume("orders")
    assert (record.value, record.headers) == (b"x-ab", (("by", b"a"), ("by", b"b")))
    assert [one.acknowledged for one in chain if isinstance(one, Stamp)] == [[0], [0]]


def test_consumer_interceptors_see_records_and_commits_and_what_they_leave_out_is_read(
    millstream: Kafka,
) -> None:
    millstream.produce("orders", [b"0", b"1", b"2", b"3", b"4"])
    odd = Odd()
    consumer = millstream.consumer(
        "orders", group="readers", until_end=True, interceptors=[Broken(), Forgetful(), odd]
    )
    assert [one.value for one in consumer] == [b"1", b"3"]
    assert odd.committed[-1] == {TopicPartition("orders", 0): 5}
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 0}


class Redis(dict):
    """As much of a Redis client as the interceptor uses."""

    def incrby(self, name: str, by: int) -> int:
        self[name] = self.get(name, 0) + by
        return self[name]

    def set(self, name: str, value: int) -> None:
        self[name] = value


def test_end_to_end_latency(millstream: Kafka) -> None:
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


def test_a_histogram_tells_percentiles_within_a_hundredth_and_can_be_added() -> None:
    low, high = Histogram(), Histogram()
    for value in range(1, 100_001):
        (low if value <= 50_000 else high).add(value)
    low.merge(Histogram.from_dict(high.as_dict()))
    assert (low.count, low.lowest, low.highest, round(low.mean)) == (100_000, 1, 100_000, 50_000)
    for share in (1, 50, 95, 99, 99.9):
        assert abs(low.percentile(share) - share * 1000) <= share * 10
    assert low.percentile(100) == 100_000
    assert Histogram().percentile(99) == 0


def test_metrics_tell_lag_and_lead(millstream: Kafka) -> None:
    millstream.topic("orders", 2)
    with millstream.producer(idempotent=False) as producer:
        for number in range(30):
            producer.send("orders", str(number), partition=number % 2)
    assert producer.metrics() == {"records_sent_total": 30, "records_queued": 0, "records_failed": 0}
    for group in (None, "readers"):
        consumer = millstream.consumer("orders", group=group)
        taken = 0
        while taken < 10:
            taken += len(consumer.poll(10 - taken))
        found = consumer.metrics()
        assert found["records_consumed_total"] == 10
        assert found["assigned_partitions"] == 2
        positions = consumer.positions().values()
        assert sum(positions) == 10
        assert found["records_lag_max"] == 15 - min(positions)
        assert found["records_lead_min"] == min(positions)
