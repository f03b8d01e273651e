"""confluent-kafka: librdkafka from PyPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    Producer,
    TopicPartition,
)

from compat.clients import DEADLINE_S, LARGE, Client, Refused, collect
from compat.sample_records import Got, Row


class Confluent(Client):
    name = "confluent-kafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        rows: Sequence[Row],
        *,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
        linger_ms: int = 5,
    ) -> list[tuple[int, int]]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": LARGE,
                "linger.ms": linger_ms,
                "topic.metadata.refresh.interval.ms": -1,
            }
        )
        reports: dict[int, Any] = {}
        for number, row in enumerate(rows):
            producer.produce(
                topic,
                row.value,
                row.key,
                row.partition,
                timestamp=row.timestamp or 0,
                headers=list(row.headers),
                on_delivery=lambda error, message, number=number: reports.update(
                    {number: (error, message)}
                ),
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        for error, _message in reports.values():
            if error is not None:
                raise Refused(error.code(), error.str())
        return [
            (message.partition(), message.offset())
            for _error, message in (reports[i] for i in range(len(rows)))
        ]

    def consume(
        self,
        bootstrap: str,
        topic: str,
        counts: Mapping[int, int],
        *,
        start: int = OFFSET_BEGINNING,
    ) -> list[Got]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",  # librdkafka wants a name even where there is no group
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": LARGE,
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
            }
        )
        try:
            consumer.list_topics(topic, timeout=DEADLINE_S)
            consumer.assign([TopicPartition(topic, p, start) for p in counts])
            return collect(lambda: [_got(m) for m in consumer.consume(500, timeout=0.2)], counts)
        finally:
            consumer.close()


def _got(message: Any) -> Got:
    if message.error() is not None:
        raise Refused(message.error().code(), message.error().str())
    kind, timestamp = message.timestamp()
    return Got(
        message.partition(),
        message.offset(),
        timestamp,
        kind == TIMESTAMP_LOG_APPEND_TIME,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
