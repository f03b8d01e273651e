"""A confluent-kafka consumer at the end of partition 0 that records the age of each message.

The messages are those of `bench.load.paced`. Job: address, topic, messages, skip (first messages
not counted), settings.
"""

import struct
import time

from confluent_kafka import Consumer, TopicPartition

from bench.load.job import Job, latency_us, run, say_ready

SILENCE_S = 20.0


def work(job: Job) -> Job:
    settings = {
        "bootstrap.servers": job["address"],
        "group.id": "bench",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings | job["settings"])
    consumer.assign([TopicPartition(job["topic"], 0, 0)])
    consumer.poll(0.5)  # assigned, and the first (empty) fetch in flight
    say_ready()
    ages: list[int] = []
    last_arrival = time.monotonic()
    while len(ages) < job["messages"]:
        message = consumer.poll(1.0)
        now = time.monotonic_ns()
        if message is None:
            if time.monotonic() - last_arrival > SILENCE_S:
                raise TimeoutError(f"only {len(ages)} of {job['messages']} messages came")
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        last_arrival = time.monotonic()
        ages.append(now - struct.unpack_from(">q", message.value() or b"")[0])
    consumer.close()
    return latency_us(ages[job["skip"] :])


if __name__ == "__main__":
    run(work)
