"""librdkafka consumers in separate groups, reading assigned partitions from the start at full
speed.

Messages do not become Python objects. Job: address, topic, partitions, message_bytes, messages,
groups, settings.
"""

import ctypes as c
import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.rdkafka import CONSUMER, OFFSET_BEGINNING, Rdkafka

SILENCE_S = 20.0
# Wait for the only queue, and for one of several queues that were all empty.
ALONE_MS, IDLE_MS = 100, 1


class Reader:
    """One consumer.

    Messages are passed to the application in C. The callback must be a C function that ignores its
    arguments and frees nothing; rd_kafka_version is one. A ctypes callback would cost a microsecond
    per message. `served` also counts the library's own events, so near the end the positions
    decide.
    """

    def __init__(self, job: Job, number: int) -> None:
        settings = {"bootstrap.servers": job["address"], "group.id": f"bench-{number}"}
        self.kafka = Rdkafka(CONSUMER, settings | job["settings"])
        self.topic, self.partitions, self.messages = (
            job["topic"],
            job["partitions"],
            job["messages"],
        )
        self.queue = self.kafka.lib.rd_kafka_queue_new(self.kafka.handle)
        self.ignore = c.cast(self.kafka.lib.rd_kafka_version, c.c_void_p)
        self.served = self.read = 0
        self.kafka.end_offset(
            self.topic, 0
        )  # connect and get metadata, so that only fetches are timed

    def start(self) -> None:
        topic = self.kafka.topic(self.topic)
        for partition in range(self.partitions):
            self.kafka.lib.rd_kafka_consume_start_queue(
                topic, partition, OFFSET_BEGINNING, self.queue
            )

    def serve(self, wait_ms: int) -> bool:
        """Serve the queue; return whether anything arrived."""
        served = self.kafka.lib.rd_kafka_consume_callback_queue(
            self.queue, wait_ms, self.ignore, None
        )
        self.served += max(0, served)
        if self.served >= self.messages:
            self.read = sum(
                max(0, offset) for offset in self.kafka.positions(self.topic, self.partitions)
            )
        return bool(served > 0)


def _drain(readers: list[Reader]) -> None:
    waiting, last_arrival = list(readers), time.monotonic()
    while waiting and time.monotonic() - last_arrival < SILENCE_S:
        if len(waiting) == 1:
            arrived = waiting[0].serve(ALONE_MS)
        else:
            arrived = sum(reader.serve(0) for reader in waiting) > 0 or waiting[0].serve(IDLE_MS)
        if arrived:
            last_arrival = time.monotonic()
            waiting = [reader for reader in waiting if reader.read < reader.messages]


def work(job: Job) -> Job:
    readers = [Reader(job, number) for number in range(job["groups"])]
    say_ready()
    wait_go()
    cpu, started = time.process_time(), time.perf_counter()
    for reader in readers:
        reader.start()
    _drain(readers)
    seconds = time.perf_counter() - started
    client_cpu_s = time.process_time() - cpu
    read, expected = sum(reader.read for reader in readers), job["messages"] * len(readers)
    if read != expected:
        raise RuntimeError(f"expected {expected} messages, read {read}")
    megabytes = read * job["message_bytes"] / 1e6
    return {
        "seconds": seconds,
        "messages": read,
        "megabytes": megabytes,
        "client_cpu_s": client_cpu_s,
    }


if __name__ == "__main__":
    run(work)
