"""Members of groups as little state machines: what they ask next, given what they were answered.

`start` is a member's first request, `heard` takes an answer and gives the next request or None,
`beat` is the request of a member that has nothing else to say. A group is settled when all its
members are in one generation.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from bench.load import group_frames as frames


class Refused(RuntimeError):
    """The broker answered a member with an error that ends the run."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} was answered with error code {code}")


class Member(Protocol):
    index: int
    group: str

    def start(self) -> bytes: ...
    def heard(self, answer: bytes) -> bytes | None: ...
    def beat(self) -> bytes: ...

    @property
    def idle(self) -> bool:
        """Has nothing to ask of its own."""


class ClassicMember:
    """JoinGroup (twice: the first gives it an id, KIP-394), SyncGroup, Heartbeat."""

    def __init__(self, index: int, group: str, topic: str, partitions: int, protocol: str) -> None:
        self.index, self.group, self.topic, self.partitions = index, group, topic, partitions
        self.protocol, self.metadata = protocol, frames.subscription(topic)
        self.member_id, self.generation, self.stable = "", -1, False
        self._expects: Callable[[bytes], bytes | None] = self._joined

    @property
    def idle(self) -> bool:
        return self.stable

    def start(self) -> bytes:
        return self._join()

    def heard(self, answer: bytes) -> bytes | None:
        return self._expects(answer)

    def beat(self) -> bytes:
        self._expects = self._beaten
        return frames.heartbeat(self.group, self.generation, self.member_id, correlation_id=self.index)

    def _join(self) -> bytes:
        self.stable, self._expects = False, self._joined
        return frames.join(
            self.group, self.member_id, self.protocol, self.metadata, correlation_id=self.index
        )

    def _joined(self, answer: bytes) -> bytes:
        told = frames.joined(answer)
        if told.error == frames.MEMBER_ID_REQUIRED:
            self.member_id = told.member_id
            return self._join()
        if told.error != frames.NONE:
            raise Refused("a join", told.error)
        self.member_id, self.generation, self._expects = told.member_id, told.generation, self._synced
        plan = self._plan(told.members) if told.leader == told.member_id else {}
        return frames.sync(self.group, self.generation, self.member_id, plan, correlation_id=self.index)

    def _plan(self, members: Sequence[str]) -> dict[str, bytes]:
        shares = (range(i, self.partitions, len(members)) for i in range(len(members)))
        return {
            name: frames.assignment(self.topic, share) for name, share in zip(members, shares, strict=True)
        }

    def _synced(self, answer: bytes) -> bytes | None:
        return self._in_step("a sync", frames.sync_error(answer))

    def _beaten(self, answer: bytes) -> bytes | None:
        return self._in_step("a heartbeat", frames.heartbeat_error(answer))

    def _in_step(self, what: str, error: int) -> bytes | None:
        if error in (frames.REBALANCE_IN_PROGRESS, frames.ILLEGAL_GENERATION):
            return self._join()
        if error != frames.NONE:
            raise Refused(what, error)
        self.stable = True
        return None


class ConsumerMember:
    """ConsumerGroupHeartbeat and nothing else (KIP-848): what it is given it takes at once, and
    says so.
    """

    def __init__(self, index: int, group: str, topic: str, partitions: int) -> None:
        self.index, self.group, self.topic, self.partitions = index, group, topic, partitions
        self.member_id, self.epoch, self.interval_ms = f"{group}-{index}", 0, 0
        self.held: frames.Partitions = {}
        self._asking = False

    @property
    def idle(self) -> bool:
        return not self._asking

    def start(self) -> bytes:
        self._asking = True
        return frames.consumer_heartbeat(
            self.group, self.member_id, 0, topics=[self.topic], owned={}, correlation_id=self.index
        )

    def heard(self, answer: bytes) -> bytes | None:
        told = frames.beaten(answer)
        if told.error != frames.NONE:
            raise Refused("a heartbeat", told.error)
        self.epoch, self.interval_ms, self._asking = told.epoch, told.interval_ms, False
        if told.assignment is None or told.assignment == self.held:
            return None
        self.held, self._asking = told.assignment, True
        return frames.consumer_heartbeat(
            self.group, self.member_id, self.epoch, owned=self.held, correlation_id=self.index
        )

    def beat(self) -> bytes:
        return frames.consumer_heartbeat(self.group, self.member_id, self.epoch, correlation_id=self.index)


def classic_settled(members: Sequence[ClassicMember]) -> bool:
    return all(member.stable for member in members) and len({m.generation for m in members}) == 1


def consumer_settled(members: Sequence[ConsumerMember]) -> bool:
    """All in one epoch, and every partition with one of them."""
    held = [(topic, p) for m in members for topic, numbers in m.held.items() for p in numbers]
    return (
        all(member.idle for member in members)
        and len({member.epoch for member in members}) == 1
        and len(held) == len(set(held)) == members[0].partitions
    )
