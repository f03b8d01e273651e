"""Members of groups as small state machines: the next request for each response.

`start` returns a member's first request, `handle` takes a response and returns the next request or
None, `beat` returns a heartbeat. A group is settled when all its members are in one generation.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from bench.load import group_frames as frames


class Rejected(RuntimeError):
    """The broker answered a member with an error that ends the run."""

    def __init__(self, request: str, code: int) -> None:
        super().__init__(f"{request} failed with error code {code}")


class Member(Protocol):
    """A member of either protocol."""

    index: int
    group: str

    def start(self) -> bytes: ...
    def handle(self, response: bytes) -> bytes | None: ...
    def beat(self) -> bytes: ...

    @property
    def idle(self) -> bool:
        """Whether it has no request to send."""


class ClassicMember:
    """JoinGroup (the first one returns an id, KIP-394), SyncGroup, Heartbeat."""

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

    def handle(self, response: bytes) -> bytes | None:
        return self._expects(response)

    def beat(self) -> bytes:
        self._expects = self._heartbeat_done
        return frames.heartbeat(
            self.group, self.generation, self.member_id, correlation_id=self.index
        )

    def _join(self) -> bytes:
        self.stable, self._expects = False, self._joined
        return frames.join(
            self.group, self.member_id, self.protocol, self.metadata, correlation_id=self.index
        )

    def _joined(self, response: bytes) -> bytes:
        result = frames.joined(response)
        if result.error == frames.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
            return self._join()
        if result.error != frames.NONE:
            raise Rejected("a join", result.error)
        self.member_id, self.generation, self._expects = (
            result.member_id,
            result.generation,
            self._synced,
        )
        plan = self._plan(result.members) if result.leader == result.member_id else {}
        return frames.sync(
            self.group, self.generation, self.member_id, plan, correlation_id=self.index
        )

    def _plan(self, members: Sequence[str]) -> dict[str, bytes]:
        shares = (range(i, self.partitions, len(members)) for i in range(len(members)))
        return {
            name: frames.assignment(self.topic, share)
            for name, share in zip(members, shares, strict=True)
        }

    def _synced(self, response: bytes) -> bytes | None:
        return self._after_join("a sync", frames.sync_error(response))

    def _heartbeat_done(self, response: bytes) -> bytes | None:
        return self._after_join("a heartbeat", frames.heartbeat_error(response))

    def _after_join(self, request: str, error: int) -> bytes | None:
        if error in (frames.REBALANCE_IN_PROGRESS, frames.ILLEGAL_GENERATION):
            return self._join()
        if error != frames.NONE:
            raise Rejected(request, error)
        self.stable = True
        return None


class ConsumerMember:
    """Only ConsumerGroupHeartbeat (KIP-848).

    It accepts an assignment at once, and reports it.
    """

    def __init__(self, index: int, group: str, topic: str, partitions: int) -> None:
        self.index, self.group, self.topic, self.partitions = index, group, topic, partitions
        self.member_id, self.epoch, self.interval_ms = f"{group}-{index}", 0, 0
        self.held: frames.Partitions = {}
        self._pending = False

    @property
    def idle(self) -> bool:
        return not self._pending

    def start(self) -> bytes:
        self._pending = True
        return frames.consumer_heartbeat(
            self.group, self.member_id, 0, topics=[self.topic], owned={}, correlation_id=self.index
        )

    def handle(self, response: bytes) -> bytes | None:
        result = frames.heartbeat_response(response)
        if result.error != frames.NONE:
            raise Rejected("a heartbeat", result.error)
        self.epoch, self.interval_ms, self._pending = result.epoch, result.interval_ms, False
        if result.assignment is None or result.assignment == self.held:
            return None
        self.held, self._pending = result.assignment, True
        return frames.consumer_heartbeat(
            self.group, self.member_id, self.epoch, owned=self.held, correlation_id=self.index
        )

    def beat(self) -> bytes:
        return frames.consumer_heartbeat(
            self.group, self.member_id, self.epoch, correlation_id=self.index
        )


def classic_settled(members: Sequence[ClassicMember]) -> bool:
    return all(member.stable for member in members) and len({m.generation for m in members}) == 1


def consumer_settled(members: Sequence[ConsumerMember]) -> bool:
    """Return whether all are in one epoch, and every partition is assigned once."""
    held = [(topic, p) for m in members for topic, numbers in m.held.items() for p in numbers]
    return (
        all(member.idle for member in members)
        and len({member.epoch for member in members}) == 1
        and len(held) == len(set(held)) == members[0].partitions
    )
