"""aiokafka: asyncio, with a C extension for records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, kafka_errors

from compat.clients import DEADLINE_S, LARGE, Client, Refused
from compat.sample_records import Got, Row


class AioKafka(Client):
    name = "aiokafka"

    def can_send(self, row: Row) -> bool:
        return (row.key, row.value) != (None, None)

    def code_seen(self, code: int) -> int:
        return code if code in kafka_errors else -1  # its table ends before the newer errors

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
        options = {
            "bootstrap_servers": bootstrap,
            "compression_type": None if codec == "none" else codec,
            "acks": "all" if acks == -1 else acks,
            "enable_idempotence": idempotent,
            "linger_ms": linger_ms,
            "max_request_size": LARGE,
        }
        return asyncio.run(_produce(options, topic, rows))

    def consume(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Got]:
        return asyncio.run(_consume(bootstrap, topic, counts))


async def _produce(
    options: Mapping[str, Any], topic: str, rows: Sequence[Row]
) -> list[tuple[int, int]]:
    producer = AIOKafkaProducer(**options)
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic,
                row.value,
                row.key,
                partition=row.partition,
                timestamp_ms=row.timestamp,
                headers=list(row.headers),
            )
            for row in rows
        ]
        found = await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
        return [(one.partition, one.offset) if one else (0, -1) for one in found]
    except KafkaError as error:
        raise Refused(getattr(error, "errno", -1), repr(error)) from None
    finally:
        await producer.stop()


async def _consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Got]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=LARGE,
        fetch_max_wait_ms=50,
        check_crcs=True,
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, p) for p in counts]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        found: list[Got] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < sum(counts.values()):
                polled = await consumer.getmany(timeout_ms=200)
                found += [_got(record) for records in polled.values() for record in records]
        return sorted(found, key=lambda got: (got.partition, got.offset))
    finally:
        await consumer.stop()


def _got(record: Any) -> Got:
    return Got(
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type == 1,
        record.key,
        record.value,
        tuple(record.headers),
    )
