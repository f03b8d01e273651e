"""One writer at full speed over a protocol of bench.streams.

Job: protocol, address, topic, message_bytes, messages, warmup_messages. The stream must have grown by exactly what was acknowledged.
"""

import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.streams import protocol


def work(job: Job) -> Job:
    writer = protocol(job["protocol"]).Writer(job["address"], job["topic"], job["message_bytes"])
    before = 0
    if job["warmup_messages"]:
        writer.send(job["warmup_messages"])
        before = writer.length()
    say_ready()
    wait_go()
    cpu, started = time.process_time(), time.perf_counter()
    writer.send(job["messages"])
    seconds = time.perf_counter() - started
    client_cpu_s = time.process_time() - cpu
    stored = writer.length() - before
    if stored != job["messages"]:
        raise RuntimeError(f"acknowledged {job['messages']} messages, the stream grew by {stored}")
    megabytes = job["messages"] * job["message_bytes"] / 1e6
    return {
        "seconds": seconds,
        "messages": job["messages"],
        "megabytes": megabytes,
        "client_cpu_s": client_cpu_s,
    }


if __name__ == "__main__":
    run(work)
