"""What goes away by itself: offsets whose retention has passed, offsets of deleted topics, and empty groups that have none left.

Retention counts from the moment a group became empty; of a simple group, from each commit (Kafka 2.1+, KIP-211). A round looks at
all groups in steps, so that neither the loop nor a batch is filled by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision
from millstream.core.ids import NULL_ID
from millstream.groups.effects import Become, SeeTopics, Sweep
from millstream.groups.records import NO_TIMESTAMP, offset_tombstone
from millstream.groups.shard_state import Group, ShardState
from millstream.groups.topics_view import Topics
from millstream.wire.group_records import OffsetCommitValue

EXPIRY_TIMER = ("offset-expiry",)
SWEEP_TIMER = ("sweep",)
# One step looks at about so many offsets, and writes about so many bytes.
_LOOK = 2_000
_WRITE_BYTES = 256 * 1024
_RECORD_BYTES = 64


def begin_round(state: ShardState, sweep: Sweep, now_ms: int) -> Decision:
    """Once per offsets.retention.check.interval.ms."""
    next_round = Arm(EXPIRY_TIMER, now_ms + state.settings.offsets_retention_check_interval_ms)
    return step(state, Sweep(tuple(state.ids()), sweep.deleted), now_ms) + Decision(effects=(next_round,))


def topics_changed(state: ShardState, sweep: Sweep, topics: Topics, now_ms: int) -> Decision:
    """Offsets of topics that were deleted go: a new topic of that name begins anew. Nothing is written yet, so that a view is seen when it
    comes, also while the log takes nothing, and never after a later one. Whatever is left to clean up has its timer, or is being tried again."""
    gone = []
    for name in sorted(state.offsets.topics()):
        topic_id = state.topics.id_of(name)
        if topic_id is not None and _was_deleted(topics, name, topic_id):
            gone += [(group_id, name, topic_id) for group_id in sorted(state.offsets.groups_of(name))]
    see = Decision(effects=(SeeTopics(topics),))
    if not gone:
        return see
    begins = (Arm(SWEEP_TIMER, now_ms),) if sweep == Sweep() else ()
    return see + Decision(effects=(Sweep(sweep.groups, (*sweep.deleted, *gone)), *begins))


def _was_deleted(topics: Topics, name: str, topic_id: bytes) -> bool:
    """Noted as such, or there is another of its name. One that is just not there any more was not deleted by anybody who meant it."""
    return topics.name_of(topic_id) is None and (
        topics.is_deleted(topic_id) or topics.id_of(name) is not None
    )


def step(state: ShardState, sweep: Sweep, now_ms: int) -> Decision:
    """As much of the work as fits in one turn; the rest is left for the next."""
    work = _Step(state, now_ms)
    forgotten = work.each(sweep.deleted, lambda row: work.forget_topic(*row))
    cleaned = work.each(sweep.groups, work.clean)
    return work.decision(Sweep(sweep.groups[cleaned:], sweep.deleted[forgotten:]))


class _Step:
    def __init__(self, state: ShardState, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.look = _LOOK
        self.room = _WRITE_BYTES
        self.records: dict[tuple[str, str, int], CoordinatorRecord] = {}
        self.groups: list[CoordinatorRecord] = []
        self.effects: list[Any] = []

    def each(self, rows: Iterable[Any], clean: Any) -> int:
        """How many are done. One that is not gets on with the next step: what this one wrote is gone by then."""
        done = 0
        for row in rows:
            if self.look <= 0 or self.room <= 0 or not clean(row):
                break
            done += 1
        return done

    def decision(self, rest: Sweep) -> Decision:
        goes_on = (Arm(SWEEP_TIMER, self.now_ms),) if rest != Sweep() else ()
        return Decision((*self.records.values(), *self.groups), (*self.effects, rest, *goes_on))

    def _delete(self, group_id: str, topic: str, partition: int) -> None:
        key = (group_id, topic, partition)
        if key not in self.records:
            self.records[key] = offset_tombstone(*key)
            self.room -= _RECORD_BYTES + len(group_id) + len(topic)

    # ---- retention -------------------------------------------------------------------------------

    def clean(self, group_id: str) -> bool:
        group = self.state.find(group_id)
        self.look -= 1
        if group is None:
            return True
        left = self._expire(group)
        if self.room <= 0:
            return False
        if not left and not self.state.offsets.has_open_transaction(group_id):
            self._remove_empty(group)
        return True

    def _expire(self, group: Group) -> int:
        """How many offsets stay."""
        by_topic = self.state.offsets.of(group.group_id)
        since = group.offsets_expire_from()
        left = 0
        for topic, rows in by_topic.items():
            self.look -= len(rows)
            expires = since is not None and not group.subscribes_to(topic)
            for partition, row in rows.items():
                gone = expires and self._is_expired(row.value, since or 0)
                if (
                    gone
                    and self.room > 0
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
        """A group that somebody is about to join stays."""
        classic = self.state.classic.get(group.group_id)
        if not group.is_empty or (classic is not None and classic.pending):
            return
        if classic is not None:
            self.groups += group.tombstones()
            self.effects.append(Become(group.group_id, None))
        elif group.group_id in self.state.consumer:
            self.groups += group.tombstones()

    # ---- deleted topics --------------------------------------------------------------------------

    def forget_topic(self, group_id: str, topic: str, topic_id: bytes) -> bool:
        offsets = self.state.offsets
        partitions = set(offsets.of(group_id).get(topic, ()))
        partitions.update(index for name, index in offsets.open_partitions(group_id) if name == topic)
        self.look -= len(partitions)
        for partition in sorted(partitions):
            if self.room <= 0:
                return False
            if any(
                value.topic_id in (NULL_ID, topic_id) for value in offsets.values(group_id, topic, partition)
            ):
                self._delete(group_id, topic, partition)
        return True
