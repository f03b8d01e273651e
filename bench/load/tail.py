"""A confluent-kafka consumer at the end of partition 0 that records how old each message of
`bench.load.paced` is.

Job: address, topic, messages, skip (first messages not counted), settings.
"""

import struct
import time

from confluent_kafka import Consumer, TopicPartition

from bench.load.job import Job, latency_us, run, say_ready

SILENCE_S = 20.0


def work(job: Job) -> Job:
    settings = {"bootstrap.servers": job["address"], "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(settings | job["settings"])
    consumer.assign([TopicPartition(job["topic"], 0, 0)])
    consumer.poll(0.5)  # assigned and the first (empty) fetch on its way
    say_ready()
    ages: list[int] = []
    heard = time.monotonic()
    while len(ages) < job["messages"]:
        message = consumer.poll(1.0)
        now = time.monotonic_ns()
        if message is None:
            if time.monotonic() - heard > SILENCE_S:
                raise TimeoutError(f"only {len(ages)} of {job['messages']} messages came")
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        heard = time.monotonic()
        ages.append(now - struct.unpack_from(">q", message.value() or b"")[0])
    consumer.close()
    return latency_us(ages[job["skip"] :])


if __name__ == "__main__":
    run(work)
