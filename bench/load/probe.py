"""Send ApiVersions every millisecond on one connection and record the slowest responses.

Job: address, interval_ms. It shows from outside how a client experiences a stalled event loop. It
ends with stdin.
"""

import select
import sys
import time

from bench.load import frames
from bench.load.job import Job, latency_us, run, say_ready

KEEP = 5_000_000  # samples: more than an hour at one a millisecond


def work(job: Job) -> Job:
    sock, frame, gap_s = (
        frames.connect(job["address"], 60.0),
        frames.api_versions(),
        job["interval_ms"] / 1000,
    )
    samples: list[int] = []
    say_ready()
    while len(samples) < KEEP:
        started = time.perf_counter_ns()
        sock.sendall(frame)
        frames.read_response(sock)
        elapsed = time.perf_counter_ns() - started
        samples.append(elapsed)
        if select.select([sys.stdin], [], [], max(0.0, gap_s - elapsed / 1e9))[0]:
            break
    return latency_us(samples)


if __name__ == "__main__":
    run(work)
