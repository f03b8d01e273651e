"""Small transactions, one after the other, from one librdkafka producer.

Job: address, topic, partitions, message_bytes, messages (per transaction), transactions,
warmup_transactions, settings. A sample is the time of commit_transaction(): the messages still in
flight, and EndTxn. The end offsets must have grown by at least the committed messages.
"""

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load.job import Job, latency_us, run, say_ready, wait_go

TIMEOUT_S = 30.0


class Transactions:
    def __init__(self, job: Job) -> None:
        settings = {"bootstrap.servers": job["address"], "transactional.id": "bench"}
        self.producer = Producer(settings | job["settings"])
        self.job, self.value = job, b"x" * job["message_bytes"]
        self.producer.init_transactions(TIMEOUT_S)

    def once(self) -> int:
        """Run one transaction; return the time of its commit in ns."""
        producer, topic = self.producer, self.job["topic"]
        producer.begin_transaction()
        for i in range(self.job["messages"]):
            producer.produce(topic, self.value, partition=i % self.job["partitions"])
        started = time.perf_counter_ns()
        producer.commit_transaction(TIMEOUT_S)
        return time.perf_counter_ns() - started


def committed(job: Job) -> int:
    """Return the sum of the last stable offsets: no open transaction may hold them back."""
    consumer = Consumer(
        {
            "bootstrap.servers": job["address"],
            "group.id": "bench",
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = [TopicPartition(job["topic"], p) for p in range(job["partitions"])]
        return sum(consumer.get_watermark_offsets(p, TIMEOUT_S)[1] for p in partitions)
    finally:
        consumer.close()


def work(job: Job) -> Job:
    transactions = Transactions(job)
    for _ in range(job["warmup_transactions"]):
        transactions.once()
    before = committed(job)
    say_ready()
    wait_go()
    started = time.perf_counter()
    samples = [transactions.once() for _ in range(job["transactions"])]
    seconds = time.perf_counter() - started
    expected, grown = job["messages"] * job["transactions"], committed(job) - before
    if grown < expected:
        raise RuntimeError(f"committed {expected} messages, {grown} can be read")
    return latency_us(samples) | {"seconds": seconds, "transactions": len(samples)}


if __name__ == "__main__":
    run(work)
