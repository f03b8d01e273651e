"""Finding offsets by time with every client's own calls, and reading from there."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from kafka import KafkaConsumer, TopicPartition

from compat.client_confluent import Confluent
from compat.client_kcat import KCAT
from compat.clients import DEADLINE_S
from compat.sample_records import START_MS, Row
from compat.topics import create_topic
from millstream.local.broker import LocalBroker

# Offset n has the time 1000 n, but the last two come late: 102 has 150, 103 has 99,999.
TIMES = [START_MS + 1000 * i for i in range(102)] + [START_MS + 150, START_MS + 99_999]
ASKED = (0, START_MS, START_MS + 1, START_MS + 41_000, START_MS + 41_001, START_MS + 101_000)
FOUND: list[int | None] = [0, 0, 1, 41, 42, 101]
LATE = START_MS + 101_001
END = len(TIMES)


@pytest.fixture(scope="module")
def topic(shared_broker: LocalBroker) -> str:
    """Half of it compressed, in many small segments, so that both indexes are used."""
    name = create_topic(
        shared_broker.bootstrap,
        f"times-{uuid.uuid4().hex[:8]}",
        index_interval_bytes=100,
        segment_bytes=1 << 20,
    )
    rows = [Row(b"k", b"x" * 40_000, timestamp=at) for at in TIMES]
    for first in range(0, len(rows), 10):
        codec = "gzip" if first % 20 else "none"
        Confluent().produce(shared_broker.bootstrap, name, rows[first : first + 10], codec=codec)
    return name


def test_confluent_kafka(shared_broker: LocalBroker, topic: str):
    consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": "none"})
    try:
        asked = [
            consumer.offsets_for_times([RdTopicPartition(topic, 0, at)], DEADLINE_S)[0].offset
            for at in ASKED
        ]
        assert asked == FOUND
        [late] = consumer.offsets_for_times([RdTopicPartition(topic, 0, LATE)], DEADLINE_S)
        assert late.offset in (-1, END)  # the end, in librdkafka's words
        assert consumer.get_watermark_offsets(RdTopicPartition(topic, 0), DEADLINE_S) == (0, END)
    finally:
        consumer.close()


def test_kafka_python(shared_broker: LocalBroker, topic: str):
    consumer = KafkaConsumer(bootstrap_servers=shared_broker.bootstrap, group_id=None)
    tp = TopicPartition(topic, 0)
    try:
        found = [consumer.offsets_for_times({tp: at})[tp] for at in ASKED]
        assert [one.offset for one in found] == FOUND
        assert [one.timestamp for one in found] == [TIMES[one.offset] for one in found]
        assert consumer.offsets_for_times({tp: LATE})[tp] is None
        assert (consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]) == (0, END)
    finally:
        consumer.close()


def test_aiokafka(shared_broker: LocalBroker, topic: str):
    tp = AioTopicPartition(topic, 0)

    async def work() -> None:
        # Its fetches share the connection, and answers come in order: a waiting one holds back the
        # rest.
        async with AIOKafkaConsumer(
            bootstrap_servers=shared_broker.bootstrap, group_id=None, fetch_max_wait_ms=20
        ) as consumer:
            consumer.assign([tp])
            found: list[Any] = [(await consumer.offsets_for_times({tp: at}))[tp] for at in ASKED]
            assert [one.offset for one in found] == FOUND
            assert (await consumer.offsets_for_times({tp: LATE}))[tp] is None
            assert await consumer.beginning_offsets([tp]) == {tp: 0}
            assert await consumer.end_offsets([tp]) == {tp: END}
            consumer.seek(tp, 41)
            record = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
            assert (record.offset, record.timestamp) == (41, TIMES[41])

    asyncio.run(work())


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed (Debian: apt install kcat)")
def test_kcat(shared_broker: LocalBroker, topic: str):
    assert KCAT is not None
    base = [KCAT, "-b", shared_broker.bootstrap]
    for at, offset in zip(ASKED, FOUND, strict=True):
        told = subprocess.run(
            [*base, "-Q", "-t", f"{topic}:0:{at}"], capture_output=True, text=True, timeout=60
        )
        assert told.stdout.strip() == f"{topic} [0] offset {offset}"
    read = [*base, "-C", "-q", "-t", topic, "-p", "0", "-c", "3", "-f", "%o %T\\n"]
    got = subprocess.run(
        [*read, "-o", f"s@{START_MS + 41_001}"], capture_output=True, text=True, timeout=60
    )
    assert got.stdout.split() == [str(n) for i in (42, 43, 44) for n in (i, TIMES[i])]
