"""One librdkafka producer at full speed.

Job: address, topic, partitions, message_bytes, messages, warmup_messages, keys (0 = no keys),
compressible, settings (librdkafka's). The first failed delivery ends the run. The end offsets must
have grown by exactly the acknowledged messages, so that no figure includes lost ones.
"""

import ctypes as c
import random

from bench.load.job import Job, check_stored, run, say_ready, timed_send, wait_go
from bench.load.rdkafka import COPY_PAYLOAD, PRODUCER, Message, Rdkafka
from bench.topics import end_offsets

FLUSH_TIMEOUT_MS = 120_000
ARRAY_BYTES = 1_000_000  # per call: large enough that Python's share of the loop disappears


class Producer:
    def __init__(self, job: Job) -> None:
        self.failed: list[int] = []
        settings = {"bootstrap.servers": job["address"], "delivery.report.only.error": True}
        self.kafka = Rdkafka(PRODUCER, settings | job["settings"], self._delivered)
        self.topic = self.kafka.topic(job["topic"])
        self.partitions, self.turn = job["partitions"], 0
        self.count = max(1, min(10_000, ARRAY_BYTES // job["message_bytes"]))
        self.payloads = Payloads(self.count, job)

    def _delivered(self, code: int) -> None:
        if code:
            self.failed.append(code)

    def _enqueue(self, partition: int, remaining: int) -> None:
        """Enqueue messages of the array, which are all alike, and wait while the queue is full."""
        array, produce = self.payloads.messages, self.kafka.lib.rd_kafka_produce_batch
        while remaining and not self.failed:
            remaining -= produce(self.topic, partition, COPY_PAYLOAD, array, remaining)
            if remaining:
                self.kafka.poll(1)

    def enqueue_turn(self, limit: int | None = None) -> int:
        """Enqueue an array, or part of it, for the next partition; return its messages."""
        count: int = self.count if limit is None else min(self.count, limit)
        self._enqueue(self.turn % self.partitions, count)
        self.turn += 1
        if self.failed:
            raise RuntimeError(f"delivery failed: {self.kafka.error_name(self.failed[0])}")
        return count

    def send(self, messages: int, each: int | None = None) -> None:
        """Enqueue messages and wait for every acknowledgement.

        The partition changes with each array, or after `each` messages.
        """
        left, self.turn = messages, 0
        while left:
            left -= self.enqueue_turn(min(left, each or left))
        self.kafka.flush(FLUSH_TIMEOUT_MS)
        if self.failed:
            raise RuntimeError(f"delivery failed: {self.kafka.error_name(self.failed[0])}")

    def warm_up(self, messages: int) -> None:
        """Write to every partition: the first write opens files, which is not to be measured."""
        self.send(messages, max(1, messages // self.partitions))


class Payloads:
    """An array of messages over one block of memory, the same for every partition.

    Keys and varied values are optional.
    """

    def __init__(self, count: int, job: Job) -> None:
        size, keys = job["message_bytes"], job.get("keys", 0)
        self.block = c.create_string_buffer(
            _values(count, size, job.get("compressible", True)), count * size
        )
        self.key_block = c.create_string_buffer(
            b"".join(b"%08d" % (i % keys) for i in range(count)) if keys else b""
        )
        self.messages = (Message * count)()
        base, key_base = c.addressof(self.block), c.addressof(self.key_block)
        for i, message in enumerate(self.messages):
            message.payload, message.length = base + i * size, size
            if keys:
                message.key, message.key_length = key_base + i * 8, 8


def _values(count: int, size: int, compressible: bool) -> bytes:
    """Return random hexadecimal text (gzip halves it) or plain random bytes."""
    source = random.Random(size)
    if compressible:
        return source.randbytes((count * size + 1) // 2).hex().encode()[: count * size]
    return source.randbytes(count * size)


def work(job: Job) -> Job:
    producer = Producer(job)
    producer.warm_up(job["warmup_messages"])
    before = end_offsets(job["address"], job["topic"], job["partitions"]) if job["verify"] else 0
    say_ready()
    wait_go()
    result = timed_send(producer.send, job)
    if job["verify"]:
        check_stored(end_offsets(job["address"], job["topic"], job["partitions"]) - before, job)
    return result


if __name__ == "__main__":
    run(work)
