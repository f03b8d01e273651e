"""A writer at a fixed rate over a protocol of bench.streams; each message carries its send time.

Job: protocol, address, topic, message_bytes, messages, rate.
"""

import struct
import time

from bench.load.job import Job, run, say_ready, wait_go
from bench.streams import protocol


def work(job: Job) -> Job:
    writer = protocol(job["protocol"]).Writer(job["address"], job["topic"], job["message_bytes"])
    payload, gap_ns = bytearray(job["message_bytes"]), int(1e9 / job["rate"])
    say_ready()
    wait_go()
    due, waiting = time.monotonic_ns(), 0
    for _ in range(job["messages"]):
        while (ahead := due - time.monotonic_ns()) > 0:
            time.sleep(ahead / 1e9)
        struct.pack_into(">q", payload, 0, time.monotonic_ns())
        waiting += 1 - writer.post(writer.message(bytes(payload)))
        due += gap_ns
    writer.settle(waiting)
    return {"late_ms": (time.monotonic_ns() - due) / 1e6}


if __name__ == "__main__":
    run(work)
