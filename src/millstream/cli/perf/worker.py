"""A load process of `millstream perf`. Prints its measurements every half second as a line of JSON.

At a target rate every record has a due time, and its latency counts from then, not from the send.
So when a broker stalls for a second, the stall shows in the latency of every record that was due in
it. Otherwise the load would wait with the broker and omit them (coordinated omission).
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

from millstream.client.connection import FAST_REFETCH, Connection
from millstream.client.histogram import Histogram
from millstream.client.library import (
    KafkaConsumer,
    KafkaException,
    KafkaProducer,
    KafkaTopicPartition,
    close_member,
    make,
)

REPORT_S = 0.5
# Due time of a record in ns of the monotonic clock, which all processes of a machine share.
_DUE = struct.Struct(">q")


class Job(NamedTuple):
    """The work of one process. A ``rate`` of 0 is unlimited."""

    kind: str
    bootstrap: str
    topic: str
    records: int
    size: int
    rate: float
    group: str
    options: dict[str, Any]
    partitions: list[list[int]]  # for e2e: partition and start offset
    timeout_s: float


class Reporter:
    """Counts records, and prints the counts regularly."""

    def __init__(self) -> None:
        self.records = self.bytes = self.failed = 0
        self.error = ""
        self.latency = Histogram()  # in microseconds
        self._next_ns = time.monotonic_ns() + int(REPORT_S * 1e9)

    def report_if_due(self, now_ns: int) -> None:
        if now_ns >= self._next_ns:
            self.report()
            self._next_ns = now_ns + int(REPORT_S * 1e9)

    def report(self) -> None:
        """Print the counts since the last report."""
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
    """The due times of records."""

    def __init__(self, rate: float) -> None:
        self._start_ns = time.monotonic_ns()
        self._step_ns = 1e9 / rate if rate else 0.0

    def due_ns(self, number: int) -> int:
        return (
            self._start_ns + int(number * self._step_ns) if self._step_ns else time.monotonic_ns()
        )


def produce(job: Job) -> None:
    reporter = Reporter()
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
        _wait(client, due_ns, reporter)
        _send(client, job.topic, value, _acknowledged(reporter, due_ns, job.size))
        if not number & 127:
            client.poll(0)
            reporter.report_if_due(time.monotonic_ns())
    _finish(client, reporter, job.timeout_s)


def _acknowledged(reporter: Reporter, due_ns: int, size: int) -> Callable[[Any, Any], None]:
    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            reporter.failed += 1
            reporter.error = reporter.error or str(error.str())
            return
        reporter.records += 1
        reporter.bytes += size
        reporter.latency.add((time.monotonic_ns() - due_ns) // 1000)

    return on_delivery


def _wait(client: KafkaProducer, due_ns: int, reporter: Reporter) -> None:
    """Wait until a record is due, and handle delivery reports of earlier ones."""
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        client.poll(min(left_ns / 1e9, 0.1))
        reporter.report_if_due(time.monotonic_ns())


def _send(
    client: KafkaProducer,
    topic: str,
    value: bytes,
    on_delivery: Callable[[Any, Any], None],
    partition: int = -1,
) -> None:
    while True:
        try:
            client.produce(topic, value, partition=partition, on_delivery=on_delivery)
            return
        except BufferError:
            client.poll(0.01)


def _finish(client: KafkaProducer, reporter: Reporter, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while client.flush(0.1) and time.monotonic() < until_s:
        reporter.report_if_due(time.monotonic_ns())
    reporter.failed += len(client)
    reporter.report()


def consume(job: Job) -> None:
    """Consume in the group of all processes, until no record arrives for the timeout."""
    reporter = Reporter()
    config = {
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    } | FAST_REFETCH
    client = make(KafkaConsumer, Connection(job.bootstrap, options=job.options).config(config))
    client.subscribe([job.topic])
    received_s = time.monotonic()
    while time.monotonic() - received_s < job.timeout_s:
        messages = client.consume(1000, 0.2)
        for message in messages:
            if message.error() is None:
                reporter.records += 1
                reporter.bytes += len(message.value() or b"") + len(message.key() or b"")
        if messages:
            received_s = time.monotonic()
        reporter.report_if_due(time.monotonic_ns())
    reporter.report()
    close_member(client)


def end_to_end(job: Job) -> None:
    """Send records with their due time, and measure their age when this process reads them."""
    reporter = Reporter()
    connection = Connection(job.bootstrap, options=job.options)
    consumer = make(
        KafkaConsumer,
        connection.config(
            {"group.id": job.group, "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        ),
    )
    consumer.assign(
        [KafkaTopicPartition(job.topic, number, offset) for number, offset in job.partitions]
    )
    producer = make(KafkaProducer, connection.config({"linger.ms": 0}))
    marker = os.urandom(8)
    padding = marker + bytes(max(job.size - 16, 0))
    pace, seen, sent = Pace(job.rate), 0, 0
    received_s = time.monotonic()
    while seen < job.records and time.monotonic() - received_s < job.timeout_s:
        due_ns = pace.due_ns(sent)
        if sent < job.records and due_ns <= time.monotonic_ns():
            partition = random.choice(job.partitions)[0]
            _send(producer, job.topic, _DUE.pack(due_ns) + padding, _failures(reporter), partition)
            sent += 1
        producer.poll(0)
        wait_s = (
            0.1 if sent == job.records else min(max((due_ns - time.monotonic_ns()) / 1e9, 0), 0.05)
        )
        received = _receive(consumer, wait_s, marker, reporter)
        seen += received
        received_s = time.monotonic() if received else received_s
        reporter.report_if_due(time.monotonic_ns())
    reporter.failed += job.records - seen
    reporter.report()
    consumer.close()


def _failures(reporter: Reporter) -> Callable[[Any, Any], None]:
    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            reporter.error = reporter.error or str(error.str())

    return on_delivery


def _receive(consumer: KafkaConsumer, wait_s: float, marker: bytes, reporter: Reporter) -> int:
    """Receive records with this process's marker, and return their number."""
    message, received = consumer.poll(wait_s), 0
    while message is not None:
        value = message.value() or b""
        if message.error() is None and value[8:16] == marker:
            reporter.latency.add((time.monotonic_ns() - _DUE.unpack_from(value)[0]) // 1000)
            reporter.records += 1
            reporter.bytes += len(value)
            received += 1
        message = consumer.poll(0)
    return received


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
