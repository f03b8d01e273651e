"""Load for a broker that is killed again and again, and the ledger of what it promised.

Values are ``<producer>:<number>``, numbered upwards, so that the log itself tells what is missing,
double or out of order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

# librdkafka comes back quickly after a kill, and never gives a record up.
PATIENT = {
    "message.timeout.ms": 120_000,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 20_000,
    "linger.ms": 2,
    "batch.size": 16_384,
    "log_level": 0,
    "topic.metadata.refresh.interval.ms": 5_000,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A record that was acknowledged, or read."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Ledger:
    """What one producer was promised."""

    acknowledged: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Load:
    """One producer in a thread, producing until it is ended; ``settings`` say how."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        settings: dict[str, object],
        *,
        keys: int = 13,
        padding: int = 200,
        records_per_turn: int = 12,
        pause_s: float = 0.01,
    ) -> None:
        self.name = name
        self.topic = topic
        self.ledger = Ledger()
        self.sent = 0
        self._settings = {"bootstrap.servers": bootstrap, **PATIENT, **settings}
        self._keys = keys
        self._padding = random.Random(name).randbytes(padding)  # which no codec makes smaller
        self._per_turn = records_per_turn
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def idempotent(self) -> bool:
        return bool(self._settings.get("enable.idempotence"))

    def _run(self) -> None:
        producer = Producer(self._settings)
        while not self._ended.is_set():
            if self.sent - len(self.ledger.acknowledged) < 2_000:
                for _ in range(self._per_turn):
                    self._produce(producer)
            producer.poll(0)
            time.sleep(self._pause_s)
        left = producer.flush(60)
        if left:
            self.ledger.failures.append(f"{left} records were never answered")

    def _produce(self, producer: Producer) -> None:
        key = b"%s-%d" % (self.name.encode(), self.sent % self._keys)
        value = b"%s:%d:%s" % (self.name.encode(), self.sent, self._padding)
        producer.produce(self.topic, value, key, on_delivery=self._delivered)
        self.sent += 1

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.ledger.failures.append(str(error))
        else:
            row = Row(message.partition(), message.offset(), message.key(), message.value())
            self.ledger.acknowledged.append(row)

    def finish(self) -> Ledger:
        """Ends it, and waits until every record has been answered."""
        self._ended.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        return self.ledger


def read_topic(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Row]]:
    """Every record of a topic, by partition, from the log start to the high watermark."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    rows: dict[int, list[Row]] = {index: [] for index in range(partitions)}
    try:
        consumer.assign(
            [TopicPartition(topic, index, _start(consumer, topic, index)) for index in rows]
        )
        open_ends = set(rows)
        deadline = time.monotonic() + 60
        while open_ends:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            for message in consumer.consume(2_000, 0.1):
                if message.error() is None:
                    rows[message.partition()].append(
                        Row(message.partition(), message.offset(), message.key(), message.value())
                    )
                elif message.error().name() == "_PARTITION_EOF":
                    open_ends.discard(message.partition())
                else:
                    raise KafkaException(message.error())
        return rows
    finally:
        consumer.close()


def _start(consumer: Consumer, topic: str, index: int) -> int:
    low, _high = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)
    return int(low)


# ---- what the log must say ----


def number_of(value: bytes) -> int:
    return int(value.split(b":", 2)[1])


def missing(acknowledged: Iterable[Row], logs: dict[int, list[Row]]) -> list[Row]:
    """Acknowledged records that are not where they were said to be. What lies before the log start
    may be gone.
    """
    there = {(row.partition, row.offset): row for rows in logs.values() for row in rows}
    starts = {index: rows[0].offset if rows else 0 for index, rows in logs.items()}
    return [
        row
        for row in acknowledged
        if row.offset >= starts[row.partition] and there.get((row.partition, row.offset)) != row
    ]


def reused_offsets(ledgers: Iterable[Ledger]) -> list[Row]:
    """Offsets that were given to two records."""
    seen: dict[tuple[int, int], Row] = {}
    return [
        row
        for ledger in ledgers
        for row in ledger.acknowledged
        if seen.setdefault((row.partition, row.offset), row) != row
    ]


def by_producer(rows: Iterable[Row]) -> dict[bytes, list[int]]:
    """The numbers of each producer, in the order of the log."""
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for row in rows:
        assert row.value is not None
        numbers[row.value.split(b":", 1)[0]].append(number_of(row.value))
    return numbers


def first_occurrences(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))
