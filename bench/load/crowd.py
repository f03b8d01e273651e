"""Thousands of members of one consumer group (KIP-848) that join at once, on a few raw connections.

Job: address, topic, partitions, group, members, connections, interval_ms. It is ready when the
coordinator is found; a line on stdin lets the members join. Each sends a heartbeat at the interval,
and at once when its assignment changes. The run ends when all members are in one epoch and every
partition is assigned.
"""

import heapq
import selectors
import time

from bench.load.group_frames import wait_for_coordinator
from bench.load.group_members import ConsumerMember, Member, consumer_settled
from bench.load.groups import Line
from bench.load.job import Job, latency_us, run, say_ready, wait_go

SETTLE_S = 300.0
CHECK_S = 0.05


class Crowd:
    def __init__(self, job: Job) -> None:
        partitions = job["partitions"]
        self.members = [
            ConsumerMember(index, job["group"], job["topic"], partitions)
            for index in range(job["members"])
        ]
        self.lines = [Line(job["address"]) for _ in range(job["connections"])]
        self.interval_s = job["interval_ms"] / 1000
        self.samples: list[int] = []
        self._due: list[tuple[float, int]] = []
        self._selector = selectors.DefaultSelector()
        for line in self.lines:
            self._selector.register(line.sock, selectors.EVENT_READ, line)

    def join(self) -> tuple[float, float]:
        """Return the seconds until all have had a response, and until the group is stable."""
        started = next_check = time.monotonic()
        joined_s = 0.0
        for member in self.members:
            self._line(member).send(member, member.start())
        while not (time.monotonic() >= next_check and self._settled()):
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + CHECK_S
            self._listen(CHECK_S)
            self._beat()
            if not joined_s and len(self.samples) >= len(self.members):
                joined_s = time.monotonic() - started
            if time.monotonic() - started > SETTLE_S:
                raise TimeoutError(f"the group is not stable after {SETTLE_S:.0f} s")
        return joined_s, time.monotonic() - started

    def _line(self, member: Member) -> Line:
        return self.lines[member.index % len(self.lines)]

    def _settled(self) -> bool:
        return len(self.samples) >= len(self.members) and consumer_settled(self.members)

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            for member, sent_ns, response in key.data.responses():
                self.samples.append(time.perf_counter_ns() - sent_ns)
                following = member.handle(response)
                if following is not None:
                    key.data.send(member, following)
                else:
                    heapq.heappush(self._due, (time.monotonic() + self.interval_s, member.index))

    def _beat(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            member = self.members[heapq.heappop(self._due)[1]]
            self._line(member).send(member, member.beat())


def work(job: Job) -> Job:
    crowd = Crowd(job)
    wait_for_coordinator(job["address"], job["group"])
    say_ready()
    wait_go()
    joined_s, stable_s = crowd.join()
    return latency_us(crowd.samples) | {"joined_s": joined_s, "stable_s": stable_s}


if __name__ == "__main__":
    run(work)
