"""A group of confluent-kafka consumers under light load; one leaves, and later another joins.

Job: address, topic, partitions, members, leaves, rate (messages per second), message_bytes,
settings. A sample is the time from the call of close() until the last of the others has its share
of the partitions.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.load.job import Job, run, say_ready, wait_go
from millstream.client.library import close_member

GROUP = "bench"
TIMEOUT_S = 60.0
QUIET_S = 1.0  # without an assignment for this long, the rebalance is over
POLL_S = 0.1
PHASE_S = 1.0


class Board:
    """The partitions of all members, written by their threads and read by one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: dict[int, set[int]] = {}
        self.last_assigned_s = 0.0
        self.failure: BaseException | None = None

    def assign(self, member: int, partitions: Sequence[Any]) -> None:
        with self.changed:
            self.held[member] |= {p.partition for p in partitions}
            self.last_assigned_s = time.perf_counter()
            self.changed.notify_all()

    def revoke(self, member: int, partitions: Sequence[Any]) -> None:
        with self.changed:
            self.held[member] -= {p.partition for p in partitions}

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = error
            self.changed.notify_all()

    def is_balanced(self, members: Sequence[int], partitions: int) -> bool:
        """Return whether every partition has one owner, and the shares are equal within one."""
        shares = [self.held[member] for member in members]
        sizes = [len(share) for share in shares]
        is_complete = sum(sizes) == len(set().union(*shares)) == partitions
        return is_complete and max(sizes) - min(sizes) <= 1

    def wait(self, ready: Callable[[], bool], event: str) -> None:
        """Wait until the condition holds and no assignment has come for a while."""
        deadline = time.perf_counter() + TIMEOUT_S
        with self.changed:
            while True:
                if self.failure is not None:
                    raise self.failure
                now = time.perf_counter()
                quiet_s = now - self.last_assigned_s
                if ready() and quiet_s >= QUIET_S:
                    return
                if now > deadline:
                    raise TimeoutError(f"{event} not seen in {TIMEOUT_S:.0f} s")
                self.changed.wait(max(0.01, QUIET_S - quiet_s))


class Member:
    """A consumer with a thread."""

    def __init__(self, number: int, job: Job, board: Board) -> None:
        self.number, self.board, self.messages = number, board, 0
        board.held[number] = set()
        settings = {
            "bootstrap.servers": job["address"],
            "group.id": GROUP,
            "auto.offset.reset": "latest",
        }
        self.consumer = Consumer(settings | job["settings"])
        self._topic, self._leaves = job["topic"], threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.consumer.subscribe(
                [self._topic],
                on_assign=lambda _, partitions: self.board.assign(self.number, partitions),
                on_revoke=lambda _, partitions: self.board.revoke(self.number, partitions),
            )
            while not self._leaves.is_set():
                message = self.consumer.poll(POLL_S)
                if message is not None and message.error() is None:
                    self.messages += 1
            self.left_s = time.perf_counter()
            close_member(self.consumer)
        except BaseException as error:  # report it to the waiting thread
            self.board.fail(error)

    def leave(self) -> float:
        """Leave the group; return the time when that began."""
        self._leaves.set()
        self._thread.join(TIMEOUT_S)
        return self.left_s


class Feeder:
    """Produces at a fixed rate to all partitions until it is stopped."""

    def __init__(self, job: Job) -> None:
        self._producer = Producer({"bootstrap.servers": job["address"], "linger.ms": 0})
        self._topic, self._value, self._rate = (
            job["topic"],
            b"x" * job["message_bytes"],
            job["rate"],
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        started, sent = time.perf_counter(), 0
        while not self._done.wait(0.01):
            due = int((time.perf_counter() - started) * self._rate)
            for i in range(sent, due):
                self._producer.produce(self._topic, self._value, b"%d" % i)
            self._producer.poll(0)
            sent = due

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        self._producer.flush(10.0)


class Group:
    def __init__(self, job: Job) -> None:
        self.job, self.board = job, Board()
        self.members = [Member(i, job, self.board) for i in range(job["members"])]
        self._number, self._moments = job["members"], random.Random(job["partitions"])

    def settle(self, event: str) -> None:
        numbers = [member.number for member in self.members]
        self.board.wait(lambda: self.board.is_balanced(numbers, self.job["partitions"]), event)

    def let_one_leave(self) -> float:
        """Let the oldest member leave, which also leads a classic group.

        Return the seconds until the rest have its partitions. The moment is random: heartbeats are
        in step with the last rebalance.
        """
        time.sleep(self._moments.uniform(0.0, PHASE_S))
        left_s = self.members.pop(0).leave()
        self.settle("all partitions with the remaining members")
        return self.board.last_assigned_s - left_s

    def let_one_join(self) -> None:
        self.members.append(Member(self._number, self.job, self.board))
        self._number += 1
        self.settle("all partitions with all members")

    def close(self) -> int:
        for member in self.members:
            member.leave()
        return sum(member.messages for member in self.members)


def work(job: Job) -> Job:
    feeder, group = Feeder(job), Group(job)
    group.settle("all partitions with all members")
    say_ready()
    wait_go()
    samples = []
    for turn in range(job["leaves"]):
        if turn:
            group.let_one_join()
        samples.append(group.let_one_leave())
    messages = group.close()
    feeder.stop()
    if not messages:
        raise RuntimeError("the members read nothing")
    return {"samples_s": samples, "messages": messages}


if __name__ == "__main__":
    run(work)
