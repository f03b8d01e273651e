"""A consumer's place in a group: which partitions it has, what it has handed out of them, what is committed.

Rebalances come in while the consumer polls. Partitions are taken over and given up one by one (cooperative) unless the
client options choose an eager assignor. What is noted of a partition is forgotten when the partition goes: committing it later
could take the group back behind the new owner.
"""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation
from millstream.client.connection import QUICK_READER, Connection
from millstream.client.consuming.positions import Position
from millstream.client.errors import NO_ANSWER, ClientError, CommitFailed, kafka_error, translate
from millstream.client.library import (
    KafkaConsumer,
    KafkaException,
    KafkaTopicPartition,
    close_member,
    interruptible,
    make,
)
from millstream.client.retries import FIRST_PAUSE_S, MOVING, PASSING, Patience
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

log = logging.getLogger("millstream.client")

COOPERATIVE = "cooperative-sticky"
# The member is between two generations; the library brings it into the next one by itself.
_NOT_NOW = MOVING | {ErrorCode.REBALANCE_IN_PROGRESS}
# The group has given the member up. The library joins again as another one, and what is not committed is read again.
_JOINS_AGAIN = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}


def default_group() -> str:
    """The group of a subscription that names none: one per user, so that a second call goes on where the first ended."""
    try:
        return f"millstream-{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "millstream"


class Membership:
    """One member. ``left`` is the consumer's own table of ends to read to, or None when it follows."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        *,
        start: Position,
        left: dict[TopicPartition, int] | None,
        isolation: Isolation,
        on_committed: Callable[[Mapping[TopicPartition, int]], None] = lambda offsets: None,
    ) -> None:
        self.group = group
        self.owned: set[TopicPartition] = set()
        self.on_revoked: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self.on_assigned: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self.started: dict[TopicPartition, int] = {}  # where reading began, of the partitions it has
        self._on_committed = on_committed
        self.joined = False
        self._connection = connection
        self._start = start
        self._left = left
        self._isolation: Isolation = isolation
        self._ends: dict[TopicPartition, int] = {}  # of what ``left`` was told, to read to again
        self._noted: dict[TopicPartition, int] = {}
        self.noted_since_s = -1.0  # when the first of what is noted was
        self._committed: dict[TopicPartition, int] = {}
        self._failure: ClientError | None = None
        self._closing = False
        config = connection.config(self._config())
        self._cooperative = (
            config.get("partition.assignment.strategy", COOPERATIVE) == COOPERATIVE
            or config.get("group.protocol") == "consumer"
        )
        self._static = bool(config.get("group.instance.id")) and config.get("group.protocol") != "consumer"
        self.client = make(KafkaConsumer, config)
        self._subscribe(topics)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "latest" if self._start.kind == "latest" else "earliest",
            "isolation.level": self._isolation,
            "fetch.wait.max.ms": 500 if self._left is None else 100,
            **QUICK_READER,
            "on_commit": self._on_commit,
        }
        if self._connection.options.get("group.protocol") != "consumer":
            # The consumer protocol (KIP-848) assigns on the broker and refuses an assignor of the client.
            config["partition.assignment.strategy"] = COOPERATIVE
        return config

    def _subscribe(self, topics: Sequence[str]) -> None:
        doing = f"join group {self.group!r}"
        try:
            self.client.subscribe(
                [*topics], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        except (KafkaException, ValueError) as error:
            self.client.close()
            raise translate(error, doing=doing) from None

    def close(self) -> None:
        """Leave the group."""
        self._closing = True
        close_member(self.client, static=self._static)

    def note(self, partition: TopicPartition, next_offset: int) -> None:
        """Everything before this offset is in the caller's hands; the next commit says so. It never goes back: the end of a partition
        may be told after the records that came behind it."""
        known = max(self._committed.get(partition, -1), self._noted.get(partition, -1))
        if partition in self.owned and next_offset > known:
            if not self._noted:
                self.noted_since_s = time.monotonic()
            self._noted[partition] = next_offset

    @property
    def noted(self) -> Mapping[TopicPartition, int]:
        """What the next commit would say."""
        return self._noted

    def forget_noted(self) -> None:
        """What is in the caller's hands does not count."""
        self._noted.clear()

    def go_back(self) -> None:
        """Read on, in all partitions, behind what is committed; where nothing is, from where reading began."""
        self._noted.clear()
        if not self.owned:
            return
        committed = self._ask_committed(self.client, self.owned)
        self._committed = dict(committed)
        back = {one: committed.get(one, self.started[one]) for one in self.owned}
        read = self.client.position([KafkaTopicPartition(*one) for one in back])
        for one in read:
            if one.offset >= 0:  # else nothing of it was handed out yet
                partition = TopicPartition(one.topic, one.partition)
                self._seek(partition, back[partition])
        if self._left is not None:
            self._left |= {one: self._ends[one] for one, offset in back.items() if self._ends[one] > offset}

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        try:
            self.client.seek(KafkaTopicPartition(*partition, offset))
        except KafkaException as error:
            doing = f"go back to offset {offset} of {partition}"
            raise translate(error, doing=doing, subject=partition.topic) from None

    def commit(self, *, wait: bool = True) -> None:
        """Commit what is noted. Without waiting, a refusal is raised by a later call."""
        self.check()
        if not self._noted:
            return
        if wait:
            self._commit_and_wait()
            return
        try:
            self.client.commit(offsets=_offsets(self._noted), asynchronous=True)
        except KafkaException as error:
            raise self._refused(error) from None
        self.is_committed(self._noted)

    def try_commit(self, *, wait: bool = True) -> bool:
        """Commit as ``commit`` does. A refusal that passes is logged; what is noted of the partitions that stay is committed next time."""
        try:
            self.commit(wait=wait)
            return True
        except CommitFailed as error:
            if not error.passing:
                raise
            log.warning("%s", error)
            return False

    def _commit_and_wait(self) -> None:
        deadline_s = time.monotonic() + self._connection.timeout_s
        while self._noted:
            try:
                done: Any = interruptible(
                    self.client.commit, offsets=_offsets(self._noted), asynchronous=False
                )
                failure = next((one.error for one in done if one.error is not None), None)
            except KafkaException as error:
                failure = kafka_error(error)
            if failure is None:
                done_now = dict(self._noted)
                self.is_committed(done_now)
                self._on_committed(done_now)
                return
            if failure.code() not in _NOT_NOW or time.monotonic() > deadline_s:
                raise self._refused(failure)
            time.sleep(FIRST_PAUSE_S)

    def committed_elsewhere(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are committed, by a transaction."""
        self.is_committed(offsets)
        self._on_committed(offsets)

    def is_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are committed and need not be again."""
        for partition, offset in [*offsets.items()]:
            self._committed[partition] = offset
            if self._noted.get(partition) == offset:
                del self._noted[partition]

    def check(self) -> None:
        """Raise what an earlier commit met that nobody waited for."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _refused(self, error: Any) -> CommitFailed:
        told = translate(error, doing=f"commit offsets of group {self.group!r}", subject=self.group)
        code = kafka_error(error).code()
        return CommitFailed(
            told.message,
            hint="its partitions may belong to another member now, which reads on from the last commit; handle "
            "fewer records at a time, or raise max.poll.interval.ms",
            code=told.code,
            passing=code in NO_ANSWER or code in PASSING | _NOT_NOW | _JOINS_AGAIN,
        )

    def _on_commit(self, error: Any, partitions: Sequence[KafkaTopicPartition]) -> None:
        failure = error or next((one.error for one in partitions if one.error is not None), None)
        if failure is None:
            self._on_committed({TopicPartition(one.topic, one.partition): one.offset for one in partitions})
            return
        for one in partitions:  # the next commit says it again
            partition = TopicPartition(one.topic, one.partition)
            if partition in self.owned:
                self._committed.pop(partition, None)
                self._noted.setdefault(partition, one.offset)
        if failure.code() not in _NOT_NOW:
            self._failure = self._failure or self._refused(failure)

    def _on_assign(self, client: KafkaConsumer, partitions: list[KafkaTopicPartition]) -> None:
        if self._closing:
            # Partitions that came between the last poll and the close are not read here. The library takes them over and
            # gives them back by itself.
            return
        given = [TopicPartition(one.topic, one.partition) for one in partitions]
        start = self._positions(client, given)
        assignment = _offsets(start)
        if self._cooperative:
            client.incremental_assign(assignment)
        else:
            client.assign(assignment)
        self.owned.update(given)
        self.started |= start
        self.joined = True
        self.on_assigned(given)

    def _positions(
        self, client: KafkaConsumer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where to read on: at the committed offset, else where the caller wants to start."""
        if not partitions:
            return {}
        committed = self._ask_committed(client, partitions)
        start = dict(committed)
        with Admin.over(self._connection) as admin:
            new = [one for one in partitions if one not in committed]
            start |= self._start.resolve(new, admin.offsets, self._isolation)
            if self._left is not None:
                ends = admin.offsets.list(dict.fromkeys(partitions, "latest"), isolation=self._isolation)
                self._ends |= {one: at.offset for one, at in ends.items()}
                self._left |= {one: at.offset for one, at in ends.items() if at.offset > start[one]}
        self._committed |= committed
        return start

    def _ask_committed(
        self, client: KafkaConsumer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        asked = [KafkaTopicPartition(*one) for one in partitions]
        doing = f"read the offsets of group {self.group!r}"

        def ask(limit_s: float) -> Any:
            try:
                return client.committed(asked, timeout=limit_s)
            except KafkaException as error:
                raise translate(error, doing=doing) from None

        patience = Patience(self._connection.timeout_s)
        patience.met = True  # the group has given us these partitions
        found = patience.persist(ask, doing=doing)
        return {TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _on_revoke(self, client: KafkaConsumer, partitions: list[KafkaTopicPartition]) -> None:
        self.on_revoked([TopicPartition(one.topic, one.partition) for one in partitions])
        for one in partitions:
            partition = TopicPartition(one.topic, one.partition)
            self.owned.discard(partition)
            for table in (self.started, self._noted, self._committed, self._ends, self._left or {}):
                table.pop(partition, None)
        if self._cooperative:
            client.incremental_unassign(partitions)
        else:
            client.unassign()


def _offsets(offsets: Mapping[TopicPartition, int]) -> list[KafkaTopicPartition]:
    return [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
