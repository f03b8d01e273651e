"""A process of `millstream perf`: makes load, and tells on stdout, a line of JSON every half second, what it measured.

At a target rate every record has the time at which it is due; its latency counts from then, not from when it got its turn. A broker that
stalls for a second so shows in the latency of every record that was due meanwhile (else the load would wait with it, and omit them).
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.client.connection import QUICK_READER, Connection
from millstream.client.histogram import Histogram
from millstream.client.library import KafkaConsumer, KafkaException, KafkaProducer, KafkaTopicPartition, make

TELL_S = 0.5
_DUE = struct.Struct(
    ">q"
)  # when a record was due, in ns of the monotonic clock, which all processes of a machine share


class Job(NamedTuple):
    """What one process is to do. ``rate`` 0: as fast as it goes."""

    kind: str
    bootstrap: str
    topic: str
    records: int
    size: int
    rate: float
    group: str
    options: dict[str, Any]
    partitions: list[list[int]]  # of e2e: partition and the offset to begin at
    timeout_s: float


class Telling:
    """Counts, and tells now and then."""

    def __init__(self) -> None:
        self.records = self.bytes = self.failed = 0
        self.error = ""
        self.latency = Histogram()  # in microseconds
        self._next_ns = time.monotonic_ns() + int(TELL_S * 1e9)

    def turn(self, now_ns: int) -> None:
        if now_ns >= self._next_ns:
            self.tell()
            self._next_ns = now_ns + int(TELL_S * 1e9)

    def tell(self) -> None:
        """What came since the last time."""
        row = {
            "at_ns": time.monotonic_ns(),
            "records": self.records,
            "bytes": self.bytes,
            "failed": self.failed,
            "error": self.error,
            "latency": self.latency.as_dict(),
        }
        print(json.dumps(row), flush=True)
        self.records = self.bytes = self.failed = 0
        self.latency = Histogram()


class Pace:
    """When records are due."""

    def __init__(self, rate: float) -> None:
        self._start_ns = time.monotonic_ns()
        self._step_ns = 1e9 / rate if rate else 0.0

    def due_ns(self, number: int) -> int:
        return self._start_ns + int(number * self._step_ns) if self._step_ns else time.monotonic_ns()


def produce(job: Job) -> None:
    telling = Telling()
    client = make(
        KafkaProducer,
        Connection(job.bootstrap, options=job.options).config(
            {"partitioner": "murmur2_random", "linger.ms": 5}
        ),
    )
    value = os.urandom(job.size)
    pace = Pace(job.rate)
    for number in range(job.records):
        due_ns = pace.due_ns(number)
        _wait(client, due_ns, telling)
        _send(client, job.topic, value, _acknowledged(telling, due_ns, job.size))
        if not number & 127:
            client.poll(0)
            telling.turn(time.monotonic_ns())
    _finish(client, telling, job.timeout_s)


def _acknowledged(telling: Telling, due_ns: int, size: int) -> Callable[[Any, Any], None]:
    def told(error: Any, message: Any) -> None:
        if error is not None:
            telling.failed += 1
            telling.error = telling.error or str(error.str())
            return
        telling.records += 1
        telling.bytes += size
        telling.latency.add((time.monotonic_ns() - due_ns) // 1000)

    return told


def _wait(client: KafkaProducer, due_ns: int, telling: Telling) -> None:
    """Until a record is due, hearing of others meanwhile."""
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        client.poll(min(left_ns / 1e9, 0.1))
        telling.turn(time.monotonic_ns())


def _send(
    client: KafkaProducer, topic: str, value: bytes, told: Callable[[Any, Any], None], partition: int = -1
) -> None:
    while True:
        try:
            client.produce(topic, value, partition=partition, on_delivery=told)
            return
        except BufferError:
            client.poll(0.01)


def _finish(client: KafkaProducer, telling: Telling, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while client.flush(0.1) and time.monotonic() < until_s:
        telling.turn(time.monotonic_ns())
    telling.failed += len(client)
    telling.tell()


def consume(job: Job) -> None:
    """As a member of a group that all processes form; ends when it has its share, or nothing has come for the timeout."""
    telling = Telling()
    config = {
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    } | QUICK_READER
    client = make(KafkaConsumer, Connection(job.bootstrap, options=job.options).config(config))
    client.subscribe([job.topic])
    heard_s = time.monotonic()
    while time.monotonic() - heard_s < job.timeout_s:
        messages = client.consume(1000, 0.2)
        for message in messages:
            if message.error() is None:
                telling.records += 1
                telling.bytes += len(message.value() or b"") + len(message.key() or b"")
        if messages:
            heard_s = time.monotonic()
        telling.turn(time.monotonic_ns())
    telling.tell()
    client.close()


def end_to_end(job: Job) -> None:
    """Records carry the time when they were due; who reads them, in this same process, tells how long ago that was."""
    telling = Telling()
    connection = Connection(job.bootstrap, options=job.options)
    consumer = make(
        KafkaConsumer,
        connection.config({"group.id": job.group, "enable.auto.commit": False, "fetch.wait.max.ms": 100}),
    )
    consumer.assign([KafkaTopicPartition(job.topic, number, offset) for number, offset in job.partitions])
    producer = make(KafkaProducer, connection.config({"linger.ms": 0}))
    mine = os.urandom(8)
    filling = mine + bytes(max(job.size - 16, 0))
    pace, seen, sent = Pace(job.rate), 0, 0
    heard_s = time.monotonic()
    while seen < job.records and time.monotonic() - heard_s < job.timeout_s:
        due_ns = pace.due_ns(sent)
        if sent < job.records and due_ns <= time.monotonic_ns():
            partition = random.choice(job.partitions)[0]
            _send(producer, job.topic, _DUE.pack(due_ns) + filling, _failures(telling), partition)
            sent += 1
        producer.poll(0)
        wait_s = 0.1 if sent == job.records else min(max((due_ns - time.monotonic_ns()) / 1e9, 0), 0.05)
        came = _hear(consumer, wait_s, mine, telling)
        seen += came
        heard_s = time.monotonic() if came else heard_s
        telling.turn(time.monotonic_ns())
    telling.failed += job.records - seen
    telling.tell()
    consumer.close()


def _failures(telling: Telling) -> Callable[[Any, Any], None]:
    def told(error: Any, message: Any) -> None:
        if error is not None:
            telling.error = telling.error or str(error.str())

    return told


def _hear(consumer: KafkaConsumer, wait_s: float, mine: bytes, telling: Telling) -> int:
    """How many of our own records came."""
    message, came = consumer.poll(wait_s), 0
    while message is not None:
        value = message.value() or b""
        if message.error() is None and value[8:16] == mine:
            telling.latency.add((time.monotonic_ns() - _DUE.unpack_from(value)[0]) // 1000)
            telling.records += 1
            telling.bytes += len(value)
            came += 1
        message = consumer.poll(0)
    return came


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    try:
        {"produce": produce, "consume": consume, "e2e": end_to_end}[job.kind](job)
    except KafkaException as error:
        print(json.dumps({"fatal": str(error.args[0].str())}), flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
