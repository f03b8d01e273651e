"""kafka-python of today (3.x), pure Python."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.codec import has_snappy
from kafka.errors import KafkaError

from compat.clients import DEADLINE_S, LARGE, Client, Refused, collect
from compat.sample_records import CODECS, Got, Row

# The client's own limits are for what is on the wire; the buffer must hold a few of the largest.
LIMITS = {"max_request_size": LARGE}


class KafkaPython(Client):
    name = "kafka-python"
    codecs = CODECS if has_snappy() else tuple(codec for codec in CODECS if codec != "snappy")

    def can_send(self, row: Row) -> bool:
        return (row.key, row.value) != (None, None) and all(
            value is not None for _, value in row.headers
        )

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
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent,
            linger_ms=linger_ms,
            **LIMITS,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    row.value,
                    row.key,
                    headers=list(row.headers),
                    partition=row.partition,
                    timestamp_ms=row.timestamp,
                )
                for row in rows
            ]
            producer.flush(DEADLINE_S)
            found = [one.get(DEADLINE_S) for one in sent]
            return [(metadata.partition, metadata.offset) for metadata in found]
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), repr(error)) from None
        finally:
            producer.close()

    def consumer(self, bootstrap: str) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=LARGE,
            fetch_max_wait_ms=50,
        )

    def consume(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Got]:
        consumer = self.consumer(bootstrap)
        try:
            partitions = [TopicPartition(topic, p) for p in counts]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            return collect(lambda: _polled(consumer), counts)
        finally:
            consumer.close()


def read_between(consumer: KafkaConsumer, topic: str, start: int, end: int) -> list[Got]:
    """What is left between two offsets, where compaction may have made gaps."""
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek(tp, start)
    found: list[Got] = []
    deadline = time.monotonic() + DEADLINE_S
    while consumer.position(tp) < end:
        assert time.monotonic() < deadline, f"at {consumer.position(tp)} of {end}"
        found += _polled(consumer)
    return found


def _polled(consumer: KafkaConsumer) -> list[Got]:
    return [
        _got(record) for records in consumer.poll(timeout_ms=200).values() for record in records
    ]


def _got(record: Any) -> Got:
    headers = tuple((name, value) for name, value in record.headers)
    return Got(
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type == 1,
        record.key,
        record.value,
        headers,
    )
