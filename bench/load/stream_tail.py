"""A reader that records how old each message of `bench.load.stream_paced` is.

Job: protocol, address, topic, message_bytes, messages, skip (first messages not counted).
"""

import struct
import time

from bench.load.job import Job, latency_us, run, say_ready
from bench.streams import protocol


def work(job: Job) -> Job:
    reader = protocol(job["protocol"]).Reader(job["address"], job["topic"], job["message_bytes"])
    say_ready()
    ages: list[int] = []
    for payload in reader.payloads():
        ages.append(time.monotonic_ns() - struct.unpack_from(">q", payload)[0])
        if len(ages) == job["messages"]:
            break
    return latency_us(ages[job["skip"] :])


if __name__ == "__main__":
    run(work)
