"""`millstream.client` beside bare confluent-kafka, alternately in one process.

Job: address, topic, message_bytes, messages, turns, settings (librdkafka's). Each turn sends all
messages with a new producer and waits until they are delivered. The order of the two alternates.
"""

import time
from collections.abc import Callable

from confluent_kafka import Producer as BareProducer

from bench.load.job import Job, run, say_ready, wait_go
from millstream import Producer

FLUSH_TIMEOUT_S = 120


def bare(job: Job) -> None:
    producer = BareProducer({"bootstrap.servers": job["address"]} | job["settings"])
    topic, value, produce = job["topic"], b"x" * job["message_bytes"], producer.produce
    for _ in range(job["messages"]):
        try:
            produce(topic, value)
        except BufferError:
            producer.poll(0.1)
            produce(topic, value)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("not everything was delivered")


def ours(job: Job) -> None:
    with Producer(job["address"], acks=1, options=job["settings"]) as producer:
        topic, value, send = job["topic"], b"x" * job["message_bytes"], producer.send
        for _ in range(job["messages"]):
            send(topic, value)


def timed(send: Callable[[Job], None], job: Job) -> tuple[float, float]:
    cpu, started = time.process_time(), time.perf_counter()
    send(job)
    return time.perf_counter() - started, time.process_time() - cpu


def work(job: Job) -> Job:
    warm = job | {"messages": job["messages"] // 10}
    bare(warm)
    ours(warm)
    say_ready()
    wait_go()
    spent: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
    for turn in range(job["turns"]):
        for name, send in (("bare", bare), ("ours", ours))[:: 1 if turn % 2 else -1]:
            spent[name].append(timed(send, job))
    fastest = {name: min(seconds for seconds, _ in turns) for name, turns in spent.items()}
    cheapest = {name: min(cpu for _, cpu in turns) for name, turns in spent.items()}
    return {
        "messages_per_s": job["messages"] / fastest["ours"],
        "share_of_bare": fastest["bare"] / fastest["ours"],
        "cpu_share_of_bare": cheapest["bare"] / cheapest["ours"],
        "turns": spent,
    }


if __name__ == "__main__":
    run(work)
