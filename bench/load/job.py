"""The common parts of generators.

The job is on the command line, `ready` and the result go to stdout.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]
CURVE = (
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    0.75,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.998,
    0.999,
    0.9995,
    0.9999,
)


def run(work: Callable[[Job], Job]) -> None:
    """Run the job given as JSON in the first argument; the last line of stdout is the result."""
    print(json.dumps(work(json.loads(sys.argv[1]))), flush=True)


def say_ready() -> None:
    print("ready", flush=True)


def wait_go() -> None:
    """Block until the measuring process writes a line, or closes stdin."""
    sys.stdin.readline()


def timed_send(send: Callable[[int], object], job: Job) -> Job:
    """Send all messages of a job; return the time and the client's CPU."""
    cpu, started = time.process_time(), time.perf_counter()
    send(job["messages"])
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "messages": job["messages"],
        "megabytes": job["messages"] * job["message_bytes"] / 1e6,
        "client_cpu_s": time.process_time() - cpu,
    }


def check_stored(stored: int, job: Job) -> None:
    if stored != job["messages"]:
        raise RuntimeError(f"acknowledged {job['messages']} messages, the log grew by {stored}")


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency_us(samples_ns: list[int]) -> Job:
    ordered = sorted(samples_ns)
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    result: Job = {name: percentile(ordered, share) / 1000 for name, share in shares.items()}
    curve = [
        (share, percentile(ordered, share) / 1000)
        for share in CURVE
        if len(ordered) * (1 - share) >= 1
    ]
    return result | {"curve_us": curve, "max_us": ordered[-1] / 1000, "samples": len(ordered)}
