"""Automatic deletion of expired offsets, of offsets of deleted topics, and of empty groups.

Retention starts when a group becomes empty; for a simple group, with each commit (Kafka 2.1+,
KIP-211). A round checks all groups in steps, so that it blocks the event loop only briefly and no
batch gets too large.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision
from millstream.core.ids import NULL_ID
from millstream.groups.effects import SetClassicGroup, SetTopics, Sweep
from millstream.groups.records import NO_TIMESTAMP, offset_tombstone
from millstream.groups.shard_state import Group, ShardState
from millstream.groups.topics_view import Topics
from millstream.wire.group_records import OffsetCommitValue

EXPIRY_TIMER = ("offset-expiry",)
SWEEP_TIMER = ("sweep",)
# Approximate number of offsets that one step checks, and of bytes that it writes.
_MAX_CHECKED = 2_000
_MAX_BYTES = 256 * 1024
_RECORD_BYTES = 64


def start_round(state: ShardState, sweep: Sweep, now_ms: int) -> Decision:
    """Start a round, once per offsets.retention.check.interval.ms."""
    next_round = Arm(EXPIRY_TIMER, now_ms + state.settings.offsets_retention_check_interval_ms)
    return step(state, Sweep(tuple(state.ids()), sweep.deleted), now_ms) + Decision(
        effects=(next_round,)
    )


def topics_changed(state: ShardState, sweep: Sweep, topics: Topics, now_ms: int) -> Decision:
    """Schedule the deletion of offsets of deleted topics: a new topic of the same name starts over.

    No record is written here. The new view of the topics takes effect at once and in order, even
    while the log rejects writes. The remaining work has its timer or is being retried.
    """
    gone = []
    for name in sorted(state.offsets.topics()):
        topic_id = state.topics.id_of(name)
        if topic_id is not None and _was_deleted(topics, name, topic_id):
            gone += [
                (group_id, name, topic_id) for group_id in sorted(state.offsets.groups_of(name))
            ]
    update = Decision(effects=(SetTopics(topics),))
    if not gone:
        return update
    start = (Arm(SWEEP_TIMER, now_ms),) if sweep == Sweep() else ()
    return update + Decision(effects=(Sweep(sweep.groups, (*sweep.deleted, *gone)), *start))


def _was_deleted(topics: Topics, name: str, topic_id: bytes) -> bool:
    """Return whether a topic was deleted: it is recorded as deleted, or another has its name.

    A topic that is only missing from the view was not deleted on purpose.
    """
    return topics.name_of(topic_id) is None and (
        topics.is_deleted(topic_id) or topics.id_of(name) is not None
    )


def step(state: ShardState, sweep: Sweep, now_ms: int) -> Decision:
    """Do as much of the work as fits into one step; leave the rest for the next."""
    work = _Step(state, now_ms)
    removed = work.each(sweep.deleted, lambda row: work.remove_topic(*row))
    cleaned = work.each(sweep.groups, work.clean)
    return work.decision(Sweep(sweep.groups[cleaned:], sweep.deleted[removed:]))


class _Step:
    """The records and effects of one step, and its remaining budget."""

    def __init__(self, state: ShardState, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.to_check = _MAX_CHECKED
        self.bytes_left = _MAX_BYTES
        self.records: dict[tuple[str, str, int], CoordinatorRecord] = {}
        self.groups: list[CoordinatorRecord] = []
        self.effects: list[Any] = []

    def each(self, rows: Iterable[Any], clean: Any) -> int:
        """Clean the rows until the budget is used up; return how many are done.

        An unfinished row continues in the next step, when the offsets that this step deletes are
        gone.
        """
        done = 0
        for row in rows:
            if self.to_check <= 0 or self.bytes_left <= 0 or not clean(row):
                break
            done += 1
        return done

    def decision(self, remaining: Sweep) -> Decision:
        rearm = (Arm(SWEEP_TIMER, self.now_ms),) if remaining != Sweep() else ()
        return Decision((*self.records.values(), *self.groups), (*self.effects, remaining, *rearm))

    def _delete(self, group_id: str, topic: str, partition: int) -> None:
        key = (group_id, topic, partition)
        if key not in self.records:
            self.records[key] = offset_tombstone(*key)
            self.bytes_left -= _RECORD_BYTES + len(group_id) + len(topic)

    # ---- retention ----

    def clean(self, group_id: str) -> bool:
        group = self.state.find(group_id)
        self.to_check -= 1
        if group is None:
            return True
        left = self._expire(group)
        if self.bytes_left <= 0:
            return False
        if not left and not self.state.offsets.has_open_transaction(group_id):
            self._remove_empty(group)
        return True

    def _expire(self, group: Group) -> int:
        """Delete the expired offsets of a group and return the number of those that stay."""
        by_topic = self.state.offsets.of(group.group_id)
        since = group.offsets_expire_from()
        left = 0
        for topic, rows in by_topic.items():
            self.to_check -= len(rows)
            expires = since is not None and not group.subscribes_to(topic)
            for partition, row in rows.items():
                gone = expires and self._is_expired(row.value, since or 0)
                if (
                    gone
                    and self.bytes_left > 0
                    and not self.state.offsets.is_open(group.group_id, topic, partition)
                ):
                    self._delete(group.group_id, topic, partition)
                else:
                    left += 1
        return left

    def _is_expired(self, value: OffsetCommitValue, since: int) -> bool:
        if value.expire_timestamp != NO_TIMESTAMP:
            return self.now_ms >= value.expire_timestamp
        base = value.commit_timestamp if since == NO_TIMESTAMP else since
        return self.now_ms - base >= self.state.settings.offsets_retention_ms

    def _remove_empty(self, group: Group) -> None:
        """Remove an empty group, unless a member is about to join it."""
        classic = self.state.classic.get(group.group_id)
        if not group.is_empty or (classic is not None and classic.pending):
            return
        if classic is not None:
            self.groups += group.tombstones()
            self.effects.append(SetClassicGroup(group.group_id, None))
        elif group.group_id in self.state.consumer:
            self.groups += group.tombstones()

    # ---- deleted topics ----

    def remove_topic(self, group_id: str, topic: str, topic_id: bytes) -> bool:
        offsets = self.state.offsets
        partitions = set(offsets.of(group_id).get(topic, ()))
        partitions.update(
            index for name, index in offsets.open_partitions(group_id) if name == topic
        )
        self.to_check -= len(partitions)
        for partition in sorted(partitions):
            if self.bytes_left <= 0:
                return False
            if any(
                value.topic_id in (NULL_ID, topic_id)
                for value in offsets.values(group_id, topic, partition)
            ):
                self._delete(group_id, topic, partition)
        return True
