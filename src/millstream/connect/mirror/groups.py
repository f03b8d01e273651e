"""Translates the committed offsets of consumer groups from the source to the target.

A pass looks at every selected group, translates its committed offsets (``offsets.py``) and commits
them in the target, as KIP-545 does: only for groups without members there, and only forward. If a
group gets members in between, the coordinator rejects the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from millstream.client.admin.client import Admin
from millstream.client.admin.group_offsets import commit, committed
from millstream.client.errors import ClientError, GroupActive
from millstream.connect.mirror.copies import Copies
from millstream.connect.mirror.direction import Direction, Ids
from millstream.connect.mirror.offsets import Copy, advanced, backward, find_copy, first_original
from millstream.connect.mirror.policy import matches
from millstream.core.errors import ErrorCode
from millstream.core.ids import NULL_ID, id_text
from millstream.core.types import TopicPartition

IDLE = frozenset({"Empty", "Dead"})
CONSUMERS = frozenset({"consumer", ""})
# Errors of a coordinator for a commit without a member id if the group has members.
ACTIVE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
MAX_CACHED = 100_000

Positions = dict[TopicPartition, int]


@dataclass
class GroupSync:
    """The groups of one direction. Caches translations, so that idle groups cost little."""

    direction: Direction
    ids: Ids
    own_group: str
    source: Admin
    target: Admin
    _translations: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    _hints: dict[TopicPartition, Copy] = field(default_factory=dict)
    _sent: dict[str, Positions] = field(default_factory=dict)
    _source_ids: dict[str, str] = field(default_factory=dict)
    """Topic ids of the source by name."""
    _topic_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """Topic ids of both clusters, by the id of the cluster and the name of the topic."""

    def run(self) -> dict[str, Positions]:
        """Make one pass, and return the offsets that were committed in the target, by group."""
        positions = self._committed()
        if not positions:
            return {}
        active = {group.id for group in self.target.groups.list() if group.state not in IDLE}
        idle = {group: offsets for group, offsets in positions.items() if group not in active}
        partitions = {partition for offsets in idle.values() for partition in offsets}
        target_topics = {self._target_topic(partition.topic) for partition in partitions}
        shared = {
            partition.topic for partition in partitions if self._has_target_copies(partition.topic)
        }
        with (
            closing(Copies(self.direction.target, target_topics)) as in_target,
            closing(Copies(self.direction.source, shared)) as in_source,
        ):
            self._drop_recreated_topics(in_target.ids)
            committed = {
                group: self._commit(group, offsets, in_source, in_target)
                for group, offsets in idle.items()
            }
        return {group: offsets for group, offsets in committed.items() if offsets}

    def _committed(self) -> dict[str, Positions]:
        """Return the committed offsets of selected groups in topics of this mirror.

        These are topics that are mirrored, and with ``both`` copies of the target's topics.
        """
        committed_offsets: dict[str, Positions] = {}
        ids = self.source.protocol.topic_ids()
        self._source_ids = {name: id_text(raw) for name, raw in ids.items() if raw != NULL_ID}
        for group in self.source.groups.list():
            selected = matches(self.direction.groups, group.id) and group.id != self.own_group
            if selected and group.protocol_type in CONSUMERS:
                offsets = committed(self.source.protocol, group.id)
                ours = {
                    partition: offset
                    for partition, offset in offsets.items()
                    if self._concerns(partition.topic)
                }
                if ours:
                    committed_offsets[group.id] = ours
        return committed_offsets

    def _concerns(self, topic: str) -> bool:
        return self.direction.selection.copies(topic) or self._has_target_copies(topic)

    def _has_target_copies(self, topic: str) -> bool:
        """Return whether a topic of the source has copies of the target's records."""
        return self.direction.both and self.direction.selection.original_topic(topic) is not None

    def _target_topic(self, topic: str) -> str:
        selection = self.direction.selection
        if selection.copies(topic):
            return selection.target_topic(topic)
        return selection.original_topic(topic) or topic

    def _drop_recreated_topics(self, target_ids: Mapping[str, str]) -> None:
        """Clear the caches if a topic was deleted and recreated, in either cluster."""
        ids = {(self.ids.target, topic): topic_id for topic, topic_id in target_ids.items()}
        ids |= {(self.ids.source, topic): topic_id for topic, topic_id in self._source_ids.items()}
        if any(self._topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items()):
            self._translations.clear()
            self._hints.clear()
            self._sent.clear()
        self._topic_ids.update(ids)

    def _commit(
        self,
        group: str,
        positions: Mapping[TopicPartition, int],
        in_source: Copies,
        in_target: Copies,
    ) -> Positions:
        translated = dict(self._translate(positions, in_source, in_target))
        sent = self._sent.setdefault(group, {})
        changed = advanced(translated, {}, sent)
        if not changed:
            return {}
        protocol = self.target.protocol
        offsets = advanced(changed, committed(protocol, group), sent)
        try:
            if offsets:
                self.target.groups.inactive(group, doing=f"set offsets of group {group!r}")
                commit(protocol, group, offsets)
        except ClientError as error:
            if isinstance(error, GroupActive) or error.code in ACTIVE:
                return {}
            raise
        sent.update(changed)
        return offsets

    def _translate(
        self, positions: Mapping[TopicPartition, int], in_source: Copies, in_target: Copies
    ) -> Iterable[tuple[TopicPartition, int]]:
        for partition, offset in positions.items():
            target = TopicPartition(self._target_topic(partition.topic), partition.partition)
            # The mirror has not created it yet.
            if target not in in_target.bounds:
                continue
            if self.direction.selection.naming == "identity":
                yield target, self._in_shared_topic(partition, offset, in_source, in_target)
            elif self.direction.selection.copies(partition.topic):
                yield target, self._first_unread_copy(partition, target, offset, in_target)
            else:
                yield (
                    target,
                    self._first_unread_original(partition, target, offset, in_source, in_target),
                )

    def _first_unread_copy(
        self, source: TopicPartition, target: TopicPartition, offset: int, in_target: Copies
    ) -> int:
        """Return the offset of the first unread copy in the target, or the end."""
        bounds = in_target.bounds[target]
        if (source, offset) in self._translations:
            return max(self._translations[source, offset], bounds.begin)
        read = in_target.reader(
            target, self.ids.source, source.topic, self._source_ids.get(source.topic)
        )
        search = find_copy(read, bounds, offset, self._hints.get(source))
        if search.before is not None:
            self._hints[source] = search.before
        if search.first is None:
            return bounds.end
        if len(self._translations) >= MAX_CACHED:
            self._translations.clear()
        self._translations[source, offset] = search.first.target
        return search.first.target

    def _first_unread_original(
        self,
        source: TopicPartition,
        target: TopicPartition,
        offset: int,
        in_source: Copies,
        in_target: Copies,
    ) -> int:
        """Return the first record of the target whose copy in the source is unread.

        The beginning, if no copy was read.
        """
        begin = in_target.bounds[target].begin
        if source not in in_source.bounds:
            return begin
        read = in_source.reader(
            source, self.ids.target, target.topic, in_target.ids.get(target.topic)
        )
        unread = backward(read, in_source.bounds[source], offset)
        return begin if unread is None else unread

    def _in_shared_topic(
        self, partition: TopicPartition, offset: int, in_source: Copies, in_target: Copies
    ) -> int:
        """Return the first unread record of a topic that both clusters write to, copy or original.

        The two clusters have the records in a different order, so some records after it may have
        been read.
        """
        copy = self._first_unread_copy(partition, partition, offset, in_target)
        if not self.direction.both:
            return copy
        start = self._first_unread_original(partition, partition, offset, in_source, in_target)
        read = in_target.reader(partition, self.ids.source, partition.topic)
        original = first_original(read, in_target.bounds[partition], start)
        return copy if original is None else min(copy, original)
