"""A process that handles records with a worker pool until it is killed, or told by a line on stdin
to read to the end.

Each record that was handled is a line in a file, written before the pool may commit it.
"""

from __future__ import annotations

import os
import sys
import time

from millstream.client import Consumer


def main(bootstrap: str, topic: str, path: str, to_the_end: bool) -> None:
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(record) -> None:
        time.sleep(0.002)
        os.write(out, record.value + b"\n")

    options = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
    with Consumer(
        bootstrap, topic, group="pool", until_end=to_the_end, options=options
    ) as consumer:
        consumer.run(handle, workers=8, max_in_flight=200, commit_every_s=0.05)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4] == "to-the-end")
