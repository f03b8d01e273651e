"""Full load as processes: a writer that never waits and a reader that follows it, both counting
(``python -m nemesis.load '{"job": ...}'``).

Records of a partition carry numbers from 0 on. Whoever reads them all sees at once what is missing,
twice there, or out of order; the writer keeps the offset of every acknowledgement. Idempotent,
acks=all, as fast as the cluster takes it.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_NUMBER = struct.Struct(">q")
# Of a record that librdkafka was not told about itself: the batch behind it was acknowledged, which
# cannot be if it is not written. That happens when a leader goes that has written and not answered
# yet, and the two batches are sent to the next one in the wrong order.
UNKNOWN_OFFSET = -1
_COMMON = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 500, "log_level": 0}


class _Job:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.stopping = False
        self.rates = Path(options["rates"]).open("w", buffering=1)  # noqa: SIM115 - as long as the process
        self._due = time.monotonic() + 1.0
        self._told = 0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def tick(self, total: int) -> None:
        """A line for every second: when it ended, and how many records it had."""
        now = time.monotonic()
        if now >= self._due:
            self.rates.write(f"{now:.3f} {(total - self._told) / (now - self._due + 1.0):.0f}\n")
            self._told, self._due = total, now + 1.0


class Writer(_Job):
    """Round robin over the partitions, with the queue always full."""

    def run(self) -> None:
        count = self.options["partitions"]
        self._sent = [0] * count
        self._offsets = [array("q") for _ in range(count)]
        self._acknowledged = 0
        self.errors: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": self.options["bootstrap"],
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "queue.buffering.max.messages": 20_000,
                **_COMMON,
            }
        )
        topic, padding = self.options["topic"], b"x" * self.options["padding"]
        partition = 0
        while not self.stopping and not self.errors:
            value = _NUMBER.pack(self._sent[partition]) + padding
            try:
                producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.05)
                self.tick(self._acknowledged)
                continue
            self._sent[partition] += 1
            partition = (partition + 1) % count
            if not partition:
                producer.poll(0)
                self.tick(self._acknowledged)
        left = producer.flush(60)
        if left:
            self.errors.append(f"{left} records have no answer")
        self._tell()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self._acknowledged += 1
        offsets = self._offsets[message.partition()]
        if _NUMBER.unpack_from(message.value())[0] != len(offsets):
            self.errors.append(f"acknowledged out of order: {message.partition()}-{len(offsets)}")
        offset = message.offset()
        offsets.append(UNKNOWN_OFFSET if offset is None else offset)

    def _tell(self) -> None:
        result = Path(self.options["result"])
        told = {"sent": self._sent, "errors": self.errors[:20], "acknowledged": self._acknowledged}
        result.with_suffix(".offsets").write_bytes(
            b"".join(_NUMBER.pack(len(row)) + row.tobytes() for row in self._offsets)
        )
        result.write_text(json.dumps(told))


class Reader(_Job):
    """Every record once, in order, while it happens; until told to stop and at the end of all
    partitions.
    """

    def run(self) -> None:
        count = self.options["partitions"]
        self._next = [0] * count
        self._offsets = [array("q") for _ in range(count)]
        self._errors: list[str] = []
        self._total = 0
        consumer = Consumer(
            {
                "bootstrap.servers": self.options["bootstrap"],
                "group.id": "load-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                **_COMMON,
            }
        )
        consumer.assign([TopicPartition(self.options["topic"], n, 0) for n in range(count)])
        at_end: set[int] = set()
        while not (self.stopping and len(at_end) == count) and len(self._errors) < 20:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    at_end.discard(message.partition())
                    self._take(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                    self._errors.append(str(message.error()))
            self.tick(self._total)
        result = Path(self.options["result"])
        result.with_suffix(".offsets").write_bytes(
            b"".join(_NUMBER.pack(len(row)) + row.tobytes() for row in self._offsets)
        )
        result.write_text(json.dumps({"read": self._next, "errors": self._errors}))

    def _take(self, message: Message) -> None:
        index = message.partition()
        number = _NUMBER.unpack_from(message.value())[0]
        if number != self._next[index]:
            self._errors.append(
                f"partition {index}: {number} instead of {self._next[index]} at {message.offset()}"
            )
        self._next[index] = number + 1
        self._offsets[index].append(message.offset())
        self._total += 1


def read_offsets(path: Path) -> list[array[int]]:
    """What ``Writer`` or ``Reader`` kept: for each partition the offset of each number."""
    data, rows, start = path.read_bytes(), [], 0
    while start < len(data):
        (length,) = _NUMBER.unpack_from(data, start)
        row = array("q")
        row.frombytes(data[start + 8 : start + 8 + 8 * length])
        rows.append(row)
        start += 8 + 8 * length
    return rows


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    {"write": Writer, "read": Reader}[given["job"]](given).run()
