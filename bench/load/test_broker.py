"""The time that a test waits for its broker, in a new process: the first broker, and further ones.

Job: brokers. It lasts from the import of `millstream.testing` to the first record that was read
back.
"""

import time
from statistics import median

from bench.load.job import Job, run, say_ready, wait_go


def work(job: Job) -> Job:
    say_ready()
    wait_go()
    started = time.perf_counter()
    from millstream.testing import broker

    samples, ready = [], 0.0
    for _ in range(1 + job["brokers"]):
        with broker() as kafka:
            ready = time.perf_counter() - started
            kafka.produce("orders", [b"1"])
            assert kafka.consume("orders", n=1)[0].value == b"1"
        samples.append(ready)
        started = time.perf_counter()
    return {"first_s": samples[0], "further_s": median(samples[1:]), "samples_s": samples}


if __name__ == "__main__":
    run(work)
