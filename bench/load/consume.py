"""One librdkafka consumer reading assigned partitions from the start, at full speed, without Python objects.

Job: address, topic, partitions, message_bytes, messages, settings.
"""

import ctypes as c
import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.rdkafka import CONSUMER, OFFSET_BEGINNING, Rdkafka

SILENCE_S = 20.0


def work(job: Job) -> Job:
    kafka = Rdkafka(CONSUMER, {"bootstrap.servers": job["address"]} | job["settings"])
    lib, topic = kafka.lib, kafka.topic(job["topic"])
    queue = lib.rd_kafka_queue_new(kafka.handle)
    kafka.end_offset(job["topic"], 0)  # connected and the metadata known: the clock sees fetches only
    say_ready()
    wait_go()
    cpu, started = time.process_time(), time.perf_counter()
    for partition in range(job["partitions"]):
        lib.rd_kafka_consume_start_queue(topic, partition, OFFSET_BEGINNING, queue)
    read = _drain(kafka, queue, job)
    seconds = time.perf_counter() - started
    client_cpu_s = time.process_time() - cpu
    if read != job["messages"]:
        raise RuntimeError(f"expected {job['messages']} messages, read {read}")
    megabytes = read * job["message_bytes"] / 1e6
    return {"seconds": seconds, "messages": read, "megabytes": megabytes, "client_cpu_s": client_cpu_s}


def _drain(kafka: Rdkafka, queue: int, job: Job) -> int:
    """Messages handed to the application, in C. The callback must be some C function that ignores its arguments and
    frees nothing: rd_kafka_version is one, and a ctypes callback would cost a microsecond a message. What `serve`
    counts includes the library's own events, so near the end the positions decide."""
    ignore = c.cast(kafka.lib.rd_kafka_version, c.c_void_p)
    serve, served, read, heard = kafka.lib.rd_kafka_consume_callback_queue, 0, 0, time.monotonic()
    while read < job["messages"] and time.monotonic() - heard < SILENCE_S:
        got = serve(queue, 100, ignore, None)
        if got > 0:
            served += got
            heard = time.monotonic()
        if served >= job["messages"]:
            read = sum(max(0, offset) for offset in kafka.positions(job["topic"], job["partitions"]))
    return read


if __name__ == "__main__":
    run(work)
