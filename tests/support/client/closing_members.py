"""A process that closes members of groups whose first assignment no poll has served.

librdkafka's ``close`` may hang for ever in that state, which nothing inside the process can
interrupt. The hang needs a call of the member to arrive in the few microseconds in which librdkafka
shuts its group down. Debug messages to a slow reader make that moment a few milliseconds long. Each
round waits a little longer in the callback than the last one, so that one of them meets it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from millstream.client import Admin, Consumer
from millstream.client.consuming import membership
from millstream.client.library import KafkaConsumer

LINE_S = 0.002
ROUNDS = 12


def slow_down_debug_messages() -> None:
    """Make every line on stderr take a while, and so the thread of librdkafka that writes it.

    Another process reads them: librdkafka's callbacks hold the interpreter's lock while they wait.
    """
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    if os.fork() == 0:
        near.close()
        while far.recv(120):
            time.sleep(LINE_S)
        os._exit(0)
    os.dup2(near.fileno(), 2)


def make(kind: type[KafkaConsumer], config: dict[str, Any]) -> KafkaConsumer:
    """Make a client that writes debug messages to stderr, and not to a logger."""
    return kind(
        {name: value for name, value in config.items() if name != "logger"} | {"debug": "cgrp"}
    )


def main(bootstrap: str, topic: str, assignor: str) -> None:
    options = {"partition.assignment.strategy": assignor}
    membership.make = make
    slow_down_debug_messages()
    with Admin(bootstrap) as admin:
        for number in range(ROUNDS):
            group = f"{topic}-{assignor}-{number}"
            member = Consumer(bootstrap, topic, group=group, options=options)
            assert member.membership is not None
            member.membership.on_revoked = lambda partitions, number=number: time.sleep(
                number * LINE_S
            )
            while not has_partitions(admin, group):
                time.sleep(0.01)
            time.sleep(0.1)  # the answer with the assignment is on its way to the member
            member.close()
            print(f"closed {number}", flush=True)


def has_partitions(admin: Admin, group: str) -> bool:
    found = admin.groups.find(group)
    return found is not None and any(member.assignment for member in found.members)


if __name__ == "__main__":
    main(*sys.argv[1:])
