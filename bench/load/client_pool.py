"""The speedup of a pool of workers, with handlers that wait and handlers that compute without the
GIL.

Job: address, topic, waiting {records, wait_ms, workers}, computing {records, kilobytes, workers}.
The records are written here.
"""

import os
import time
import zlib
from collections.abc import Callable

from bench.load.job import Job, run, say_ready, wait_go
from millstream import Consumer, Producer

GROUP = "pool-{name}-{workers}-{turn}"


def seconds(
    job: Job, name: str, records: int, workers: int, turn: int, handle: Callable[..., object]
) -> float:
    """Return the time from the first to the last of the records; joining is not included."""
    ends: list[float] = []

    def timed(record: object) -> None:
        if not ends:
            ends.append(time.perf_counter())
        handle(record)
        ends.append(time.perf_counter())
        if len(ends) > records:
            consumer.stop()

    group = GROUP.format(name=name, workers=workers, turn=turn)
    with Consumer(
        job["address"], job["topic"], group=group, start="earliest", until_end=True
    ) as consumer:
        consumer.run(timed, workers=workers)
    return ends[records] - ends[0]


def speedup(job: Job, name: str, handle: Callable[..., object]) -> Job:
    amount = job[name]
    alone, together = (
        min(seconds(job, name, amount["records"], workers, turn, handle) for turn in range(2))
        for workers in (1, amount["workers"])
    )
    return {
        f"{name}_speedup": alone / together,
        f"{name}_records_per_s": amount["records"] / together,
    }


def work(job: Job) -> Job:
    with Producer(job["address"]) as producer:
        for number in range(max(job["waiting"]["records"], job["computing"]["records"])):
            producer.send(job["topic"], b"v", key=b"%d" % number)
    pause_s = job["waiting"]["wait_ms"] / 1000
    block = os.urandom(job["computing"]["kilobytes"] * 1024)
    say_ready()
    wait_go()
    return speedup(job, "waiting", lambda _: time.sleep(pause_s)) | speedup(
        job, "computing", lambda _: zlib.compress(block)
    )


if __name__ == "__main__":
    run(work)
