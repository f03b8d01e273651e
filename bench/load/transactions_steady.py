"""One librdkafka producer at full speed in transactions of a fixed duration.

Job: that of bench.load.produce without `messages`, and interval_ms, seconds. A sample is the time
of the commit: the messages still in flight, and EndTxn. The end offsets must have grown by at least
the committed messages.
"""

import time

from bench.load.job import Job, latency_us, run, say_ready, wait_go
from bench.load.produce import Producer
from bench.load.transactions import committed

TIMEOUT_MS = 30_000


class Transactions:
    def __init__(self, job: Job) -> None:
        settings = {"transactional.id": "bench"} | job["settings"]
        self.producer = Producer(job | {"settings": settings})
        self.kafka, self.interval_s = self.producer.kafka, job["interval_ms"] / 1000
        self.kafka.transaction("init_transactions", TIMEOUT_MS)

    def once(self) -> tuple[int, int]:
        """Run one transaction; return its messages, and the time of its commit in ns."""
        self.kafka.transaction("begin_transaction")
        messages, ends_at = 0, time.monotonic() + self.interval_s
        while time.monotonic() < ends_at:
            messages += self.producer.enqueue_turn()
        started = time.perf_counter_ns()
        self.kafka.transaction("commit_transaction", TIMEOUT_MS)
        return messages, time.perf_counter_ns() - started


def work(job: Job) -> Job:
    transactions = Transactions(job)
    transactions.once()
    before = committed(job)
    say_ready()
    wait_go()
    done, started = [], time.perf_counter()
    while time.perf_counter() - started < job["seconds"]:
        done.append(transactions.once())
    seconds = time.perf_counter() - started
    messages, grown = sum(count for count, _ in done), committed(job) - before
    if grown < messages:
        raise RuntimeError(f"committed {messages} messages, {grown} can be read")
    megabytes = messages * job["message_bytes"] / 1e6
    result = {
        "seconds": seconds,
        "messages": messages,
        "megabytes": megabytes,
        "transactions": len(done),
    }
    return latency_us([commit_ns for _, commit_ns in done]) | result


if __name__ == "__main__":
    run(work)
