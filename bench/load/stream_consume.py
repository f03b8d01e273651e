"""One reader from the start, at full speed, over a protocol of bench.streams.

Job: protocol, address, topic, message_bytes, messages.
"""

import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.streams import protocol


def work(job: Job) -> Job:
    reader = protocol(job["protocol"]).Reader(job["address"], job["topic"], job["message_bytes"])
    say_ready()
    wait_go()
    cpu, started = time.process_time(), time.perf_counter()
    read = reader.read(job["messages"])
    seconds = time.perf_counter() - started
    client_cpu_s = time.process_time() - cpu
    if read != job["messages"]:
        raise RuntimeError(f"expected {job['messages']} messages, read {read}")
    megabytes = read * job["message_bytes"] / 1e6
    return {
        "seconds": seconds,
        "messages": read,
        "megabytes": megabytes,
        "client_cpu_s": client_cpu_s,
    }


if __name__ == "__main__":
    run(work)
