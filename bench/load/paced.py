"""A librdkafka producer at a fixed rate; each message carries the time of its production.

Job: address, topic, message_bytes, messages, rate, settings. `late_ms` is how long after the end of
the schedule the last acknowledgement came. It shows a broker that does not keep up with the rate.
"""

import ctypes as c
import struct
import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.rdkafka import COPY_PAYLOAD, PRODUCER, QUEUE_FULL, Rdkafka


def work(job: Job) -> Job:
    failed: list[int] = []
    settings = {
        "bootstrap.servers": job["address"],
        "linger.ms": 0,
        "delivery.report.only.error": True,
    }
    kafka = Rdkafka(PRODUCER, settings | job["settings"], failed.append)
    topic, size = kafka.topic(job["topic"]), job["message_bytes"]
    payload, gap_ns = c.create_string_buffer(size), int(1e9 / job["rate"])
    kafka.end_offset(job["topic"], 0)
    say_ready()
    wait_go()
    due = time.monotonic_ns()
    for _ in range(job["messages"]):
        while (ahead := due - time.monotonic_ns()) > 0:
            time.sleep(ahead / 1e9)
        struct.pack_into(">q", payload, 0, time.monotonic_ns())
        while kafka.lib.rd_kafka_produce(topic, 0, COPY_PAYLOAD, payload, size, None, 0, None):
            if failed or (code := kafka.lib.rd_kafka_last_error()) != QUEUE_FULL:
                raise RuntimeError(f"not sent: {kafka.error_name(failed[0] if failed else code)}")
            # Wait for a broker that does not keep up; the wait is part of the message's age.
            kafka.poll(10)
        kafka.poll(0)
        due += gap_ns
    kafka.flush(30_000)
    if failed:
        raise RuntimeError(f"delivery failed: {kafka.error_name(failed[0])}")
    return {"late_ms": (time.monotonic_ns() - due) / 1e6}


if __name__ == "__main__":
    run(work)
