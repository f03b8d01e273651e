"""One librdkafka producer at full speed.

Job: address, topic, partitions, message_bytes, messages, warmup_messages, keys (0 = no keys),
compressible, settings (librdkafka's). A first failed delivery ends the run, and the end offsets
must have grown by exactly what was acknowledged: a figure never stands on lost messages.
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

    def _enqueue(self, partition: int, wanted: int) -> None:
        """The whole array, waiting while the queue is full (all messages are alike, so from its
        start again).
        """
        array, produce = self.payloads.messages, self.kafka.lib.rd_kafka_produce_batch
        while wanted and not self.failed:
            wanted -= produce(self.topic, partition, COPY_PAYLOAD, array, wanted)
            if wanted:
                self.kafka.poll(1)

    def enqueue_turn(self, wanted: int | None = None) -> int:
        """An array, or so much of it, for the partition whose turn it is; how many messages that
        were.
        """
        count: int = self.count if wanted is None else min(self.count, wanted)
        self._enqueue(self.turn % self.partitions, count)
        self.turn += 1
        if self.failed:
            raise RuntimeError(f"delivery failed: {self.kafka.error_name(self.failed[0])}")
        return count

    def send(self, messages: int, each: int | None = None) -> None:
        """Enqueue and wait for every acknowledgement; partitions take turns array by array, or
        after `each` messages.
        """
        left, self.turn = messages, 0
        while left:
            left -= self.enqueue_turn(min(left, each or left))
        self.kafka.flush(FLUSH_TIMEOUT_MS)
        if self.failed:
            raise RuntimeError(f"delivery failed: {self.kafka.error_name(self.failed[0])}")

    def warm_up(self, messages: int) -> None:
        """Every partition gets its share: a first write opens files, which is not what a load
        measures.
        """
        self.send(messages, max(1, messages // self.partitions))


class Payloads:
    """An array of messages over one block of memory, the same for every partition; keys and varied
    values only where the job asks.
    """

    def __init__(self, count: int, job: Job) -> None:
        size, keys = job["message_bytes"], job.get("keys", 0)
        self.block = c.create_string_buffer(_values(count, size, job.get("compressible", True)), count * size)
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
    """Random hexadecimal text (gzip halves it) or plain random bytes."""
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
