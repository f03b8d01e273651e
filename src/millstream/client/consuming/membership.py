"""A consumer's membership in a group: its partitions, and the offsets to commit.

Rebalances arrive while the consumer polls. Partitions are assigned and revoked incrementally
(cooperative), unless the client options choose an eager assignor. Uncommitted offsets are dropped
when their partition is revoked: committing them later could take the group back behind the new
owner.
"""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation
from millstream.client.connection import FAST_REFETCH, Connection
from millstream.client.consuming.positions import Position
from millstream.client.consuming.topic_pattern import (
    INTERNAL_PATTERN,
    InternalTopics,
    for_broker,
)
from millstream.client.errors import NO_ANSWER, ClientError, CommitFailed, kafka_error, translate
from millstream.client.library import (
    KafkaConsumer,
    KafkaException,
    KafkaTopicPartition,
    close_member,
    interruptible,
    make,
)
from millstream.client.retries import FIRST_PAUSE_S, MOVING, PASSING, Retries
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

logger = logging.getLogger("millstream.client")

COOPERATIVE = "cooperative-sticky"
# The member is between two generations; the library joins the next one automatically.
_BETWEEN_GENERATIONS = MOVING | {ErrorCode.REBALANCE_IN_PROGRESS}
# The group has removed the member. The library joins again as a new member, and records that were
# not committed are read again.
_REMOVED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}


def default_group() -> str:
    """Return the group of a subscription without a name: one per user.

    A second call continues where the first one ended.
    """
    try:
        return f"millstream-{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "millstream"


class Membership:
    """One member. ``remaining`` has the ends to read to, or is None if it follows."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        *,
        start: Position,
        remaining: dict[TopicPartition, int] | None,
        isolation: Isolation,
        on_committed: Callable[[Mapping[TopicPartition, int]], None] = lambda offsets: None,
    ) -> None:
        self.group = group
        self._internal_topics = InternalTopics(topics)
        self.owned: set[TopicPartition] = set()
        self.on_revoked: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self.on_assigned: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self.started: dict[TopicPartition, int] = {}  # where reading began, by owned partition
        self._on_committed = on_committed
        self.joined = False
        self._connection = connection
        self._start = start
        self._remaining = remaining
        self._isolation: Isolation = isolation
        # All ends that ``remaining`` ever had, for reading again after a rewind.
        self._ends: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self.uncommitted_since_s = -1.0
        self._committed: dict[TopicPartition, int] = {}
        self._failure: ClientError | None = None
        self._closing = False
        self._broker_assigns = connection.options.get("group.protocol") == "consumer"
        config = connection.config(self._config())
        self._cooperative = (
            config.get("partition.assignment.strategy", COOPERATIVE) == COOPERATIVE
            or self._broker_assigns
        )
        self._static = bool(config.get("group.instance.id")) and not self._broker_assigns
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
            "fetch.wait.max.ms": 500 if self._remaining is None else 100,
            **FAST_REFETCH,
            "on_commit": self._on_commit,
        }
        if self._broker_assigns:
            # The consumer protocol (KIP-848): the library rejects a client assignor, and the broker
            # resolves patterns, so ``_selected`` leaves out internal topics.
            return config
        config["partition.assignment.strategy"] = COOPERATIVE
        if self._internal_topics.none_named:
            config["topic.blacklist"] = INTERNAL_PATTERN
        return config

    def _subscribe(self, topics: Sequence[str]) -> None:
        doing = f"join group {self.group!r}"
        try:
            self.client.subscribe(
                [for_broker(topic) if self._broker_assigns else topic for topic in topics],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )
        except (KafkaException, ValueError) as error:
            self.client.close()
            raise translate(error, doing=doing) from None

    def close(self) -> None:
        """Leave the group."""
        self._closing = True
        close_member(self.client, static=self._static)

    def advance(self, partition: TopicPartition, next_offset: int) -> None:
        """Include everything before this offset in the next commit.

        The offset never goes back: the end of a partition may be reported after the records that
        were appended behind it.
        """
        known = max(self._committed.get(partition, -1), self._uncommitted.get(partition, -1))
        if partition in self.owned and next_offset > known:
            if not self._uncommitted:
                self.uncommitted_since_s = time.monotonic()
            self._uncommitted[partition] = next_offset

    @property
    def uncommitted(self) -> Mapping[TopicPartition, int]:
        """The offsets of the next commit."""
        return self._uncommitted

    def discard_uncommitted(self) -> None:
        """Leave what was handed out so far out of the next commit."""
        self._uncommitted.clear()

    def seek_to_committed(self) -> None:
        """Continue at the committed offset of each partition; without one, where reading began."""
        self._uncommitted.clear()
        if not self.owned:
            return
        committed = self._fetch_committed(self.client, self.owned)
        self._committed = dict(committed)
        targets = {
            partition: committed.get(partition, self.started[partition]) for partition in self.owned
        }
        positions = self.client.position([KafkaTopicPartition(*partition) for partition in targets])
        for position in positions:
            if position.offset >= 0:  # else no record of it was handed out yet
                partition = TopicPartition(position.topic, position.partition)
                self._seek(partition, targets[partition])
        if self._remaining is not None:
            self._remaining |= {
                partition: self._ends[partition]
                for partition, offset in targets.items()
                if self._ends[partition] > offset
            }

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        try:
            self.client.seek(KafkaTopicPartition(*partition, offset))
        except KafkaException as error:
            doing = f"go back to offset {offset} of {partition}"
            raise translate(error, doing=doing, subject=partition.topic) from None

    def commit(self, *, wait: bool = True) -> None:
        """Commit the uncommitted offsets. Without ``wait``, a later call raises a failure."""
        self.raise_failure()
        if not self._uncommitted:
            return
        if wait:
            self._commit_and_wait()
            return
        try:
            self.client.commit(offsets=_offsets(self._uncommitted), asynchronous=True)
        except KafkaException as error:
            raise self._commit_failure(error) from None
        self.mark_committed(self._uncommitted)

    def try_commit(self, *, wait: bool = True) -> bool:
        """Commit as ``commit`` does, but only log a transient failure; return whether it succeeded.

        The offsets of partitions that remain owned are committed next time.
        """
        try:
            self.commit(wait=wait)
            return True
        except CommitFailed as error:
            if not error.passing:
                raise
            logger.warning("%s", error)
            return False

    def _commit_and_wait(self) -> None:
        deadline_s = time.monotonic() + self._connection.timeout_s
        while self._uncommitted:
            try:
                results: Any = interruptible(
                    self.client.commit, offsets=_offsets(self._uncommitted), asynchronous=False
                )
                failure = next(
                    (result.error for result in results if result.error is not None), None
                )
            except KafkaException as error:
                failure = kafka_error(error)
            if failure is None:
                committed = dict(self._uncommitted)
                self.mark_committed(committed)
                self._on_committed(committed)
                return
            if failure.code() not in _BETWEEN_GENERATIONS or time.monotonic() > deadline_s:
                raise self._commit_failure(failure)
            time.sleep(FIRST_PAUSE_S)

    def mark_committed_by_transaction(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note, and report to interceptors, offsets that a producer's transaction committed."""
        self.mark_committed(offsets)
        self._on_committed(offsets)

    def mark_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Leave these offsets out of the next commit."""
        for partition, offset in [*offsets.items()]:
            self._committed[partition] = offset
            if self._uncommitted.get(partition) == offset:
                del self._uncommitted[partition]

    def raise_failure(self) -> None:
        """Raise the failure of an earlier commit that did not wait."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _commit_failure(self, error: Any) -> CommitFailed:
        translated = translate(
            error, doing=f"commit offsets of group {self.group!r}", subject=self.group
        )
        code = kafka_error(error).code()
        return CommitFailed(
            translated.message,
            hint="its partitions may belong to another member now, which continues from the last "
            "commit; handle fewer records at a time, or raise max.poll.interval.ms",
            code=translated.code,
            passing=code in NO_ANSWER or code in PASSING | _BETWEEN_GENERATIONS | _REMOVED,
        )

    def _on_commit(self, error: Any, results: Sequence[KafkaTopicPartition]) -> None:
        failure = error or next(
            (result.error for result in results if result.error is not None), None
        )
        if failure is None:
            self._on_committed(
                {
                    TopicPartition(result.topic, result.partition): result.offset
                    for result in results
                }
            )
            return
        for result in results:  # the next commit includes them again
            partition = TopicPartition(result.topic, result.partition)
            if partition in self.owned:
                self._committed.pop(partition, None)
                self._uncommitted.setdefault(partition, result.offset)
        if failure.code() not in _BETWEEN_GENERATIONS:
            self._failure = self._failure or self._commit_failure(failure)

    def _on_assign(self, client: KafkaConsumer, assigned: list[KafkaTopicPartition]) -> None:
        if self._closing:
            # Partitions that were assigned between the last poll and the close are not read here.
            # The library assigns and revokes them automatically.
            return
        partitions = self._selected(assigned)
        start = self._start_offsets(client, partitions)
        assignment = _offsets(start)
        if self._cooperative:
            client.incremental_assign(assignment)
        else:
            client.assign(assignment)
        self.owned.update(partitions)
        self.started |= start
        self.joined = True
        self.on_assigned(partitions)

    def _selected(self, partitions: Iterable[KafkaTopicPartition]) -> list[TopicPartition]:
        """Return the partitions to read: without internal topics that only ``^.*`` matches.

        A broker that resolves patterns assigns these as well. Kafka's own consumer does not read
        them either (``exclude.internal.topics``).
        """
        return [
            TopicPartition(partition.topic, partition.partition)
            for partition in partitions
            if not self._internal_topics.exclude(partition.topic)
        ]

    def _start_offsets(
        self, client: KafkaConsumer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition; without one, the caller's start."""
        if not partitions:
            return {}
        committed = self._fetch_committed(client, partitions)
        start = dict(committed)
        with Admin.over(self._connection) as admin:
            new = [partition for partition in partitions if partition not in committed]
            start |= self._start.resolve(new, admin.offsets, self._isolation)
            if self._remaining is not None:
                ends = admin.offsets.list(
                    dict.fromkeys(partitions, "latest"), isolation=self._isolation
                )
                self._ends |= {partition: end.offset for partition, end in ends.items()}
                self._remaining |= {
                    partition: end.offset
                    for partition, end in ends.items()
                    if end.offset > start[partition]
                }
        self._committed |= committed
        return start

    def _fetch_committed(
        self, client: KafkaConsumer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        requested = [KafkaTopicPartition(*partition) for partition in partitions]
        doing = f"read the offsets of group {self.group!r}"

        def fetch(limit_s: float) -> Any:
            try:
                return client.committed(requested, timeout=limit_s)
            except KafkaException as error:
                raise translate(error, doing=doing) from None

        retries = Retries(self._connection.timeout_s)
        retries.reached = True  # the cluster is reachable: the group has assigned these partitions
        results = retries.run(fetch, doing=doing)
        return {
            TopicPartition(result.topic, result.partition): result.offset
            for result in results
            if result.offset >= 0
        }

    def _on_revoke(self, client: KafkaConsumer, revoked: list[KafkaTopicPartition]) -> None:
        partitions = self._selected(revoked)
        self.on_revoked(partitions)
        for partition in partitions:
            self.owned.discard(partition)
            for table in (
                self.started,
                self._uncommitted,
                self._committed,
                self._ends,
                self._remaining or {},
            ):
                table.pop(partition, None)
        if self._cooperative:
            client.incremental_unassign(
                [KafkaTopicPartition(*partition) for partition in partitions]
            )
        else:
            client.unassign()


def _offsets(offsets: Mapping[TopicPartition, int]) -> list[KafkaTopicPartition]:
    return [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
