"""Many groups whose members only send heartbeats, on raw connections shared by many groups.

Job: address, topic, partitions, protocol ("consumer", or the name of a classic assignor), groups,
members (of each), connections, interval_ms, seconds. It is ready when a coordinator is found, when
all have joined, and after a first round of heartbeats; each time a line on stdin lets it continue.
Heartbeats are spread evenly over the interval, consecutive ones use different connections, and
every response is checked.
"""

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from bench.load.frames import connect
from bench.load.group_frames import wait_for_coordinator
from bench.load.group_members import (
    ClassicMember,
    ConsumerMember,
    Member,
    classic_settled,
    consumer_settled,
)
from bench.load.job import Job, latency_us, run, say_ready, wait_go

RECEIVE_BYTES = 1 << 18
SILENCE_S = 30.0
SETTLE_S = 120.0
NUDGE_S = 0.01
KEEP_ALIVE_S = 10.0  # heartbeat interval of joined members while others join


class Line:
    """A connection with its requests in flight: member and send time, in order."""

    def __init__(self, address: str) -> None:
        self.sock = connect(address)
        self.waiting: deque[tuple[Member, int]] = deque()
        self._rest = b""

    def send(self, member: Member, frame: bytes) -> None:
        self.waiting.append((member, time.perf_counter_ns()))
        self.sock.sendall(frame)

    def responses(self) -> Iterator[tuple[Member, int, bytes]]:
        """Yield complete responses, with their member and send time."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data, at = self._rest + data, 0
        while len(data) - at >= 4 and (
            end := at + 4 + int.from_bytes(data[at : at + 4], "big")
        ) <= len(data):
            response, at = data[at:end], end
            member, sent_ns = self.waiting.popleft()
            if int.from_bytes(response[4:8], "big") != member.index:
                raise RuntimeError("a response came out of order")
            yield member, sent_ns, response
        self._rest = data[at:]


class Crowd:
    """All members of all groups."""

    def __init__(self, job: Job) -> None:
        consumer = job["protocol"] == "consumer"
        self.settled: Callable[..., bool] = consumer_settled if consumer else classic_settled
        self.members = [_member(i, job) for i in range(job["groups"] * job["members"])]
        self.groups = _chunks(self.members, job["members"])
        self.lines = [Line(job["address"]) for _ in range(job["connections"])]
        self.selector = selectors.DefaultSelector()
        self.joined: deque[tuple[float, Sequence[Member]]] = deque()
        for line in self.lines:
            self.selector.register(line.sock, selectors.EVENT_READ, line)

    def line(self, member: Member) -> Line:
        return self.lines[member.index % len(self.lines)]

    def join(self) -> None:
        """Join groups that share connections one after the other.

        Responses come in order. A member that waits for the rest of its group would delay the
        response that the other group waits for.
        """
        deadline, nudge_at = time.monotonic() + SETTLE_S, 0.0
        slots = max(1, len(self.lines) // len(self.groups[0]))
        queues = [deque(self.groups[i::slots]) for i in range(slots)]
        forming = [group for queue in queues for group in self._start_next(queue)]
        while forming:
            self._listen(NUDGE_S)
            due = time.monotonic() >= nudge_at
            forming = [group for old in forming for group in self._advance(old, queues, due)]
            self._keep_alive()
            if due:
                nudge_at = time.monotonic() + NUDGE_S
            if nudge_at > deadline:
                raise TimeoutError(f"groups are not settled after {SETTLE_S:.0f} s")
        while any(line.waiting for line in self.lines):
            self._listen(SILENCE_S)

    def _keep_alive(self) -> None:
        while self.joined and time.monotonic() - self.joined[0][0] > KEEP_ALIVE_S:
            _, group = self.joined.popleft()
            for member in group:
                self.line(member).send(member, member.beat())
            self.joined.append((time.monotonic(), group))

    def _start_next(self, queue: deque[Sequence[Member]]) -> list[Sequence[Member]]:
        """Start the next group of a queue: send the first requests of its members."""
        if not queue:
            return []
        group = queue.popleft()
        for member in group:
            self.line(member).send(member, member.start())
        return [group]

    def _advance(
        self,
        group: Sequence[Member],
        queues: Sequence[deque[Sequence[Member]]],
        heartbeat_due: bool,
    ) -> list[Sequence[Member]]:
        """Return the group that is forming in this slot: itself until it is settled, then the next.

        Heartbeats make members notice a rebalance.
        """
        busy = {id(member) for m in group for member, _ in self.line(m).waiting}
        if not busy.intersection(map(id, group)) and self.settled(group):
            self.joined.append((time.monotonic(), group))
            return self._start_next(queues[group[0].index // len(group) % len(queues)])
        if heartbeat_due or not busy.intersection(map(id, group)):
            for member in group:
                if member.idle and id(member) not in busy:
                    self.line(member).send(member, member.beat())
        return [group]

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(timeout_s):
            for member, _, response in key.data.responses():
                following = member.handle(response)
                if following is not None:
                    key.data.send(member, following)

    def beat(self, interval_s: float, count: int) -> list[int]:
        """Send ``count`` heartbeats at the members' pace; return the response times in ns."""
        samples: list[int] = []
        beats = [(self.line(member), member, member.beat()) for member in self.members]
        gap_s, sent, started = interval_s / len(beats), 0, time.perf_counter()
        while len(samples) < count:
            elapsed = time.perf_counter() - started
            for i in range(sent, min(count, int(elapsed / gap_s) + 1)):
                line, member, frame = beats[i % len(beats)]
                line.send(member, frame)
                sent += 1
            pause_s = max(0.0, sent * gap_s - elapsed) if sent < count else SILENCE_S
            ready = self.selector.select(pause_s)
            if not ready and sent == count:
                raise TimeoutError(f"no answer in {SILENCE_S:.0f} s")
            samples += [taken for key, _ in ready for taken in self._heartbeat_times(key.data)]
        return samples

    def _heartbeat_times(self, line: Line) -> Iterator[int]:
        for member, sent_ns, response in line.responses():
            if member.handle(response) is not None:
                raise RuntimeError("a group rebalanced while its members did nothing but heartbeat")
            yield time.perf_counter_ns() - sent_ns


def _chunks(members: list[Member], size: int) -> list[Sequence[Member]]:
    return [members[i : i + size] for i in range(0, len(members), size)]


def _member(index: int, job: Job) -> Member:
    group = f"bench-{index // job['members']}"
    if job["protocol"] == "consumer":
        return ConsumerMember(index, group, job["topic"], job["partitions"])
    return ClassicMember(index, group, job["topic"], job["partitions"], job["protocol"])


def work(job: Job) -> Job:
    crowd, interval_s = Crowd(job), job["interval_ms"] / 1000
    wait_for_coordinator(job["address"], crowd.members[0].group)
    say_ready()
    wait_go()
    started = time.perf_counter()
    crowd.join()
    join_s = time.perf_counter() - started
    say_ready()
    wait_go()
    crowd.beat(interval_s, len(crowd.members))
    say_ready()
    wait_go()
    started = time.perf_counter()
    samples = crowd.beat(interval_s, int(job["seconds"] / interval_s * len(crowd.members)))
    seconds = time.perf_counter() - started
    return latency_us(samples) | {"seconds": seconds, "requests": len(samples), "join_s": join_s}


if __name__ == "__main__":
    run(work)
