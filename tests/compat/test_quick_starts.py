"""Programs as the documentation of other clients begins with them run against `millstream serve` as
they are, but for the address.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from millstream.testing import Kafka, broker

KAFKA_PYTHON = """
from kafka import KafkaConsumer, KafkaProducer

producer = KafkaProducer(bootstrap_servers="localhost:9092")
for _ in range(100):
    producer.send("foobar", b"some_message_bytes")
future = producer.send("foobar", key=b"foo", value=b"bar")
print(future.get(timeout=60).topic)
producer.flush()

consumer = KafkaConsumer(
    "foobar", bootstrap_servers="localhost:9092", group_id="my-group", auto_offset_reset="earliest", consumer_timeout_ms=10000
)
for number, message in enumerate(consumer, 1):
    if number == 101:
        print(message.topic, message.partition, message.offset, message.key, message.value)
        break
consumer.close()
"""

CONFLUENT_KAFKA = """
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

admin = AdminClient({"bootstrap.servers": "localhost:9092"})
for topic, future in admin.create_topics([NewTopic("mytopic", num_partitions=3, replication_factor=1)]).items():
    future.result()
    print("created", topic)

producer = Producer({"bootstrap.servers": "localhost:9092"})
for data in ("a", "b", "c"):
    producer.poll(0)
    producer.produce("mytopic", data.encode("utf-8"), callback=lambda err, msg: print("delivered", err))
producer.flush()

consumer = Consumer({"bootstrap.servers": "localhost:9092", "group.id": "mygroup", "auto.offset.reset": "earliest"})
consumer.subscribe(["mytopic"])
seen = set()
while len(seen) < 3:
    msg = consumer.poll(1.0)
    if msg is not None and not msg.error():
        seen.add(msg.value().decode("utf-8"))
consumer.close()
print(sorted(seen))
"""

AIOKAFKA = """
import asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

async def main():
    producer = AIOKafkaProducer(bootstrap_servers="localhost:9092")
    await producer.start()
    try:
        await producer.send_and_wait("my_topic", b"Super message")
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer("my_topic", bootstrap_servers="localhost:9092", group_id="my-group", auto_offset_reset="earliest")
    await consumer.start()
    try:
        async for msg in consumer:
            print("consumed:", msg.topic, msg.partition, msg.offset, msg.value)
            break
    finally:
        await consumer.stop()

asyncio.run(main())
"""

PROGRAMS = {
    "kafka-python": (KAFKA_PYTHON, "foobar\nfoobar 0 100 b'foo' b'bar'\n"),
    "confluent-kafka": (
        CONFLUENT_KAFKA,
        "created mytopic\n" + "delivered None\n" * 3 + "['a', 'b', 'c']\n",
    ),
    "aiokafka": (AIOKAFKA, "consumed: my_topic 0 0 b'Super message'\n"),
}


@pytest.fixture(scope="module")
def kafka():
    with broker(process=True) as kafka:
        yield kafka


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_as_it_is(name: str, kafka: Kafka) -> None:
    program, printed = PROGRAMS[name]
    text = textwrap.dedent(program).replace("localhost:9092", kafka.bootstrap)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == (printed, 0), ran.stderr
