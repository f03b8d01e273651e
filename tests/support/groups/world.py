"""What the tests of groups share: requests in a line, groups by value, and a tiny host that keeps a
log, timers and held answers.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Disarm, Reply, TimerKey
from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.member import Member
from millstream.groups.classic.states import State
from millstream.groups.records import decode, encode
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.groups.shard_state import GroupContext
from millstream.groups.topics_view import TopicInfo, Topics, TopicsView
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
ORDERS_ID = b"orders".ljust(16, b"\1")
TRIPS_ID = b"trips".ljust(16, b"\2")
TOPICS = TopicsView({"orders": TopicInfo(ORDERS_ID, 4), "trips": TopicInfo(TRIPS_ID, 2)}, version=1)
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=DELAY_MS)


def context(version: int) -> GroupContext:
    return GroupContext(version, "client", "/10.0.0.1")


def subscription(*topics: str) -> bytes:
    """What a consumer joins with: version 0 of its embedded protocol."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE = (("range", subscription("orders")),)


# ---- requests ----


def join(
    member_id: str = "",
    *,
    group: str = GROUP,
    instance: str | None = None,
    protocols: Iterable[tuple[str, bytes]] = RANGE,
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


def sync(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    group: str = GROUP,
    instance: str | None = None,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=data)
            for name, data in (assignments or {}).items()
        ],
    )


def heartbeat(
    member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
    )


def leave(*members: tuple[str, str | None], group: str = GROUP) -> LeaveGroupRequest:
    rows = [
        MemberIdentity(member_id=member_id, group_instance_id=instance)
        for member_id, instance in members
    ]
    return LeaveGroupRequest(group_id=group, members=rows)


def commit(
    offsets: dict[tuple[str, int], int],
    member_id: str = "",
    generation: int = -1,
    *,
    group: str = GROUP,
    instance: str | None = None,
    metadata: str | None = None,
    retention_ms: int = -1,
    by_id: bool = False,
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        topic_id = TOPICS.id_of(name) or name.encode().ljust(16, b"?")
        told = (
            OffsetCommitRequestTopic(topic_id=topic_id)
            if by_id
            else OffsetCommitRequestTopic(name=name)
        )
        row = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        topics.setdefault(name, told).partitions.append(row)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=list(topics.values()),
    )


def txn_commit(
    offsets: dict[tuple[str, int], int],
    member_id: str = "",
    generation: int = -1,
    *,
    group: str = GROUP,
    producer_id: int = 7,
    producer_epoch: int = 0,
    instance: str | None = None,
    metadata: str | None = None,
) -> TxnOffsetCommitRequest:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        row = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name)).partitions.append(row)
    return TxnOffsetCommitRequest(
        transactional_id="txn",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=list(topics.values()),
    )


def fetch(*partitions: tuple[str, int], group: str = GROUP) -> OffsetFetchRequestGroup:
    """Of these partitions; of all there are, where none is named."""
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for name, partition in partitions:
        row = topics.setdefault(name, OffsetFetchRequestTopics(name=name))
        row.partition_indexes.append(partition)
    return OffsetFetchRequestGroup(group_id=group, topics=list(topics.values()) or None)


# ---- groups by value ----


def member(member_id: str, **changes: Any) -> Member:
    values: dict[str, Any] = {
        "instance_id": None,
        "client_id": "client",
        "client_host": "/10.0.0.1",
        "rebalance_timeout_ms": REBALANCE_MS,
        "session_timeout_ms": SESSION_MS,
        "protocols": RANGE,
        **changes,
    }
    return Member(member_id, **values)


def group_of(*members: Member, **values: Any) -> ClassicGroup:
    """A group with everything derived from its members derived; a stable one by default."""
    values = {
        "state": State.STABLE,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "generation": 1,
        "subscribed": frozenset({"orders"}),
        **values,
    }
    group = ClassicGroup(GROUP, **values)
    for row in members:
        group.put(row)
    return group


# ---- a tiny host ----


@dataclass(frozen=True)
class Entry:
    """A batch of the log: encoded records (of a transaction, where a producer is named), or the
    marker that ends one.
    """

    rows: tuple[tuple[bytes, bytes | None], ...] = ()
    producer_id: int | None = None
    commit: bool | None = None


def new_shard(
    settings: GroupSettings = SETTINGS,
    topics: Topics = TOPICS,
    new_id: Callable[[], str] | None = None,
) -> GroupShard:
    counter = itertools.count(1)
    return GroupShard(settings, topics, new_id or (lambda: str(next(counter))))


def replay(log: Iterable[Entry], shard: GroupShard) -> GroupShard:
    for entry in log:
        if entry.commit is not None:
            assert entry.producer_id is not None
            shard.apply_marker(entry.producer_id, entry.commit)
            continue
        for key, value in entry.rows:
            record = decode(key, value)
            assert record is not None
            if entry.producer_id is not None:
                shard.apply_transactional(record, entry.producer_id)
            else:
                shard.apply(record)
    return shard


@dataclass
class TinyHost:
    """Drives a shard as the broker does: decide, apply, append, then effects; answers wait for the
    high watermark.
    """

    settings: GroupSettings = SETTINGS
    topics: Topics = TOPICS
    now_ms: int = 1_000_000
    log: list[Entry] = field(default_factory=list)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    # Answers that were given, by waiter; and those that wait for the high watermark.
    answers: dict[Any, Any] = field(default_factory=dict)
    held: list[tuple[int, Reply]] = field(default_factory=list)
    waiting: set[Any] = field(default_factory=set)
    # With False, nothing is answered until ``advance``.
    auto_advance: bool = True
    # The next append fails.
    broken: bool = False
    high_watermark: int = 0

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiters = itertools.count(1)
        self.shard = self._make()
        self._execute(self.shard.on_loaded(now_ms=self.now_ms))

    def _make(self) -> GroupShard:
        return GroupShard(self.settings, self.topics, lambda: str(next(self._ids)))

    # ---- requests ----

    def send(self, decide: str, request: Any, version: int, waiter: Any = None, **more: Any) -> Any:
        """Asks, and returns who waits for the answer (in ``answers`` once it is there)."""
        waiter = waiter if waiter is not None else f"w{next(self._waiters)}"
        self.waiting.add(waiter)
        method = getattr(self.shard, f"decide_{decide}")
        self._execute(method(request, context(version), waiter, now_ms=self.now_ms, **more))
        return waiter

    def ask(self, decide: str, request: Any, version: int, **more: Any) -> Any:
        """The answer to a request that is answered at once."""
        return self.answers[self.send(decide, request, version, **more)]

    def marker(self, producer_id: int, commit: bool) -> None:
        self.log.append(Entry(producer_id=producer_id, commit=commit))
        self.shard.apply_marker(producer_id, commit)
        self._release()

    def change_topics(self, topics: Topics) -> None:
        self.topics = topics
        self._execute(self.shard.on_topics_changed(topics, now_ms=self.now_ms))

    # ---- time ----

    def pass_time(self, duration_ms: int) -> None:
        """Lets timers fire in their order until so much later."""
        until = self.now_ms + duration_ms
        while due := [(at, repr(key), key) for key, at in self.timers.items() if at <= until]:
            at, _, key = min(due)
            self.now_ms = max(self.now_ms, at)
            del self.timers[key]
            self._execute(self.shard.decide_timeout(key, now_ms=self.now_ms))
        self.now_ms = until

    # ---- faults ----

    def crash(self) -> None:
        """Another broker takes over: what the high watermark had not passed is lost, with
        everything in memory.
        """
        del self.log[self.high_watermark :]
        self._reload()

    def _reload(self) -> None:
        self.timers.clear()
        self.held.clear()
        for waiter in self.waiting:
            self.answers[waiter] = ErrorCode.NOT_COORDINATOR
        self.waiting.clear()
        self.shard = replay(self.log, self._make())
        self._execute(self.shard.on_loaded(now_ms=self.now_ms))

    def advance(self) -> None:
        self.high_watermark = len(self.log)
        ready = self.held
        self.held = []
        for _, reply in ready:
            self.answers[reply.to] = reply.response
            self.waiting.discard(reply.to)

    # ---- as the broker's host does it ----

    def _execute(self, decision: Decision) -> None:
        if decision.records and not self._append(decision):
            return
        for effect in decision.effects:
            if isinstance(effect, Reply):
                assert effect.to in self.waiting, f"answered twice: {effect}"
                self.held.append((len(self.log), effect))
            elif isinstance(effect, Arm):
                self.timers[effect.key] = effect.at_ms
            elif isinstance(effect, Disarm):
                self.timers.pop(effect.key, None)
            else:
                self.shard.perform(effect)
        self._release()

    def _append(self, decision: Decision) -> bool:
        transaction = decision.transactional
        producer_id = transaction.producer_id if transaction is not None else None
        for record in decision.records:
            self._apply(record, producer_id)
        if self.broken:
            self.broken = False
            self._reload()
            return False
        rows = tuple(encode(record) for record in decision.records)
        self.log.append(Entry(rows, producer_id))
        return True

    def _apply(self, record: CoordinatorRecord, producer_id: int | None) -> None:
        if producer_id is None:
            self.shard.apply(record)
        else:
            self.shard.apply_transactional(record, producer_id)

    def _release(self) -> None:
        if self.auto_advance:
            self.advance()


# ---- the way to a stable group ----


def stable_group(
    host: TinyHost, count: int = 2, *, version: int = 3, group: str = GROUP
) -> list[str]:
    """A group of so many members at generation 1, each assigned its own name; the first id is the
    leader's.
    """
    waiters = [host.send("join", join(group=group), version) for _ in range(count)]
    while waiters[0] in host.waiting:
        host.pass_time(DELAY_MS)
    ids = [host.answers[waiter].member_id for waiter in waiters]
    leader = host.answers[waiters[0]].leader
    generation = host.answers[waiters[0]].generation_id
    assignments = {member_id: member_id.encode() for member_id in ids}
    for member_id in ids:
        rows = assignments if member_id == leader else None
        host.send("sync", sync(member_id, generation, rows, group=group), version)
    return sorted(ids, key=lambda member_id: member_id != leader)
