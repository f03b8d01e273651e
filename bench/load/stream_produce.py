"""One writer at full speed over a protocol of bench.streams.

Job: protocol, address, topic, message_bytes, messages, warmup_messages. The stream must have grown
by exactly the acknowledged messages.
"""

from bench.load.job import Job, check_stored, run, say_ready, timed_send, wait_go
from bench.streams import protocol


def work(job: Job) -> Job:
    writer = protocol(job["protocol"]).Writer(job["address"], job["topic"], job["message_bytes"])
    before = 0
    if job["warmup_messages"]:
        writer.send(job["warmup_messages"])
        before = writer.length()
    say_ready()
    wait_go()
    result = timed_send(writer.send, job)
    check_stored(writer.length() - before, job)
    return result


if __name__ == "__main__":
    run(work)
