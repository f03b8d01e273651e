"""Write to one partition every few milliseconds and measure the longest time between
acknowledgements.

Job: address, topic, partition, interval_ms, settings. It is ready after the first acknowledgement,
and ends at a line on stdin.
"""

import threading
import time
from typing import Any

from confluent_kafka import Producer

from bench.load.job import Job, run, say_ready, wait_go

FIRST_S = 60.0
LAST_S = 30.0


class Acknowledged:
    def __init__(self) -> None:
        self.count, self.longest_s = 0, 0.0
        self.last_s = time.monotonic()
        self.failed = ""

    def __call__(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed = self.failed or str(error)
            return
        now = time.monotonic()
        if self.count:
            self.longest_s = max(self.longest_s, now - self.last_s)
        self.count, self.last_s = self.count + 1, now


def _wait_for_end(over: threading.Event) -> None:
    wait_go()
    over.set()


def work(job: Job) -> Job:
    acknowledged, over = Acknowledged(), threading.Event()
    producer = Producer(
        {"bootstrap.servers": job["address"], "acks": "all", "linger.ms": 0, "log_level": 0}
        | job["settings"]
    )
    producer.produce(job["topic"], b"x", partition=job["partition"], on_delivery=acknowledged)
    if producer.flush(FIRST_S):
        raise TimeoutError("the first message was not acknowledged")
    say_ready()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    while not over.is_set():
        producer.produce(job["topic"], b"x", partition=job["partition"], on_delivery=acknowledged)
        producer.poll(job["interval_ms"] / 1000)
    if producer.flush(LAST_S):
        raise TimeoutError("the last messages were not acknowledged")
    if acknowledged.failed:
        raise RuntimeError(f"delivery failed: {acknowledged.failed}")
    return {"longest_s": acknowledged.longest_s, "acknowledged": acknowledged.count}


if __name__ == "__main__":
    run(work)
