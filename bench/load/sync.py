"""Sync produce latency: one librdkafka message in flight, from the call to its delivery report.

Linger is 0. Job: address, topic, message_bytes, messages, warmup_messages, settings.
"""

import ctypes as c
import time

from bench.load.job import Job, latency_us, run, say_ready, wait_go
from bench.load.rdkafka import COPY_PAYLOAD, PRODUCER, Rdkafka

TIMEOUT_S = 10.0


def work(job: Job) -> Job:
    outcomes: list[int] = []
    settings = {"bootstrap.servers": job["address"], "linger.ms": 0} | job["settings"]
    kafka = Rdkafka(PRODUCER, settings, outcomes.append)
    topic, size = kafka.topic(job["topic"]), job["message_bytes"]
    payload = c.create_string_buffer(b"x" * size, size)

    def once() -> int:
        outcomes.clear()
        started = time.perf_counter_ns()
        kafka.lib.rd_kafka_produce(topic, 0, COPY_PAYLOAD, payload, size, None, 0, None)
        while not outcomes:
            kafka.poll(1000)
            if time.perf_counter_ns() - started > TIMEOUT_S * 1e9:
                raise TimeoutError(f"no delivery report in {TIMEOUT_S:.0f} s")
        elapsed = time.perf_counter_ns() - started
        if outcomes[0]:
            raise RuntimeError(f"delivery failed: {kafka.error_name(outcomes[0])}")
        return elapsed

    for _ in range(job["warmup_messages"]):
        once()
    say_ready()
    wait_go()
    return latency_us([once() for _ in range(job["messages"])])


if __name__ == "__main__":
    run(work)
