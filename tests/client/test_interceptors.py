"""Interceptors of producers and consumers, and the client's own metrics."""

from __future__ import annotations

from millstream.client import ConsumerInterceptor, ProducerInterceptor
from millstream.core.types import TopicPartition
from millstream.testing import Kafka


class Stamp(ProducerInterceptor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[int] = []

    def on_send(self, record):
        return record._replace(
            headers=(*record.headers, ("by", self.name)), value=record.value + self.name
        )

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
    """An interceptor without return statements."""

    def on_send(self, record):
        pass

    def on_consume(self, records):
        pass


class Odd(ConsumerInterceptor):
    """Leaves out every second record."""

    def __init__(self) -> None:
        self.committed: list[dict[TopicPartition, int]] = []

    def on_consume(self, records):
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets) -> None:
        self.committed.append(dict(offsets))


def test_failing_producer_interceptor_does_not_break_the_chain(millstream: Kafka) -> None:
    chain = [Stamp("a"), Broken(), Forgetful(), Stamp("b")]
    with millstream.producer(interceptors=chain, idempotent=False) as producer:
        producer.send("orders", "x-")
    (record,) = millstream.consume("orders")
    assert (record.value, record.headers) == (b"x-ab", (("by", b"a"), ("by", b"b")))
    assert [link.acknowledged for link in chain if isinstance(link, Stamp)] == [[0], [0]]


def test_records_that_an_interceptor_leaves_out_count_as_read(
    millstream: Kafka,
) -> None:
    millstream.produce("orders", [b"0", b"1", b"2", b"3", b"4"])
    odd = Odd()
    consumer = millstream.consumer(
        "orders", group="readers", until_end=True, interceptors=[Broken(), Forgetful(), odd]
    )
    assert [record.value for record in consumer] == [b"1", b"3"]
    assert odd.committed[-1] == {TopicPartition("orders", 0): 5}
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 0}


def test_metrics_have_lag_and_lead(millstream: Kafka) -> None:
    millstream.topic("orders", 2)
    with millstream.producer(idempotent=False) as producer:
        for number in range(30):
            producer.send("orders", str(number), partition=number % 2)
    assert producer.metrics() == {
        "records_sent_total": 30,
        "records_queued": 0,
        "records_failed": 0,
    }
    for group in (None, "readers"):
        consumer = millstream.consumer("orders", group=group)
        taken = 0
        while taken < 10:
            taken += len(consumer.poll(10 - taken))
        metrics = consumer.metrics()
        assert metrics["records_consumed_total"] == 10
        assert metrics["assigned_partitions"] == 2
        positions = consumer.positions().values()
        assert sum(positions) == 10
        assert metrics["records_lag_max"] == 15 - min(positions)
        assert metrics["records_lead_min"] == min(positions)
