"""Consumer groups: what one has read in the source becomes where it goes on in the target.

A pass looks at every group that is wanted, translates its committed offsets (``mirror_offsets``) and commits them in the target, as KIP-545 does: only for
groups that nobody runs there, and only forward. The coordinator refuses the commit for a group that has got members meanwhile.
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
from millstream.connect.mirror.offsets import Copy, backward, find_copy, first_own, moves
from millstream.connect.mirror.policy import matches
from millstream.core.errors import ErrorCode
from millstream.core.ids import NULL_ID, id_text
from millstream.core.types import TopicPartition

IDLE = frozenset({"Empty", "Dead"})
CONSUMERS = frozenset({"consumer", ""})
# What a coordinator answers to a commit from outside when the group has members.
LIVE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
MOST_REMEMBERED = 100_000

Positions = dict[TopicPartition, int]


@dataclass
class GroupKeeper:
    """The groups of one direction. Remembers what it has found, so that a pass over groups that stand still costs little."""

    direction: Direction
    ids: Ids
    own_group: str
    source: Admin
    target: Admin
    _known: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    _near: dict[TopicPartition, Copy] = field(default_factory=dict)
    _told: dict[str, Positions] = field(default_factory=dict)
    _ids_here: dict[str, str] = field(default_factory=dict)
    _topic_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """Of both clusters: by the id of the cluster and the name of the topic."""

    def run(self) -> dict[str, Positions]:
        """One pass; what was committed in the target, by group."""
        read = self._committed()
        if not read:
            return {}
        live = {one.id for one in self.target.groups.list() if one.state not in IDLE}
        idle = {group: found for group, found in read.items() if group not in live}
        places = {place for found in idle.values() for place in found}
        topics = {self._target_topic(one.topic) for one in places}
        shared = {one.topic for one in places if self._looks_back(one.topic)}
        with (
            closing(Copies(self.direction.target, topics)) as there,
            closing(Copies(self.direction.source, shared)) as here,
        ):
            self._forget_old_topics(there.ids)
            done = {group: self._move(group, found, here, there) for group, found in idle.items()}
        return {group: found for group, found in done.items() if found}

    def _committed(self) -> dict[str, Positions]:
        """What the wanted groups have read of topics that are mirrored, or came from the target."""
        found: dict[str, Positions] = {}
        ids = self.source.protocol.topic_ids()
        self._ids_here = {name: id_text(raw) for name, raw in ids.items() if raw != NULL_ID}
        for one in self.source.groups.list():
            wanted = matches(self.direction.groups, one.id) and one.id != self.own_group
            if wanted and one.protocol_type in CONSUMERS:
                offsets = committed(self.source.protocol, one.id)
                mine = {place: at for place, at in offsets.items() if self._concerns(place.topic)}
                if mine:
                    found[one.id] = mine
        return found

    def _concerns(self, topic: str) -> bool:
        return self.direction.selection.copies(topic) or self._looks_back(topic)

    def _looks_back(self, topic: str) -> bool:
        """Whether a topic of the source has copies of the target's own records."""
        return self.direction.both and self.direction.selection.brought(topic) is not None

    def _target_topic(self, topic: str) -> str:
        selection = self.direction.selection
        return selection.target_topic(topic) if selection.copies(topic) else selection.brought(topic) or topic

    def _forget_old_topics(self, there: Mapping[str, str]) -> None:
        """What was found out about a topic does not hold for one that was created in its place, on either side."""
        ids = {(self.ids.target, topic): id_ for topic, id_ in there.items()}
        ids |= {(self.ids.source, topic): id_ for topic, id_ in self._ids_here.items()}
        if any(self._topic_ids.get(topic, id_) != id_ for topic, id_ in ids.items()):
            self._known.clear()
            self._near.clear()
            self._told.clear()
        self._topic_ids.update(ids)

    def _move(
        self, group: str, positions: Mapping[TopicPartition, int], here: Copies, there: Copies
    ) -> Positions:
        translated = dict(self._translated(positions, here, there))
        told = self._told.setdefault(group, {})
        news = moves(translated, {}, told)
        if not news:
            return {}
        protocol = self.target.protocol
        wanted = moves(news, committed(protocol, group), told)
        try:
            if wanted:
                self.target.groups.inactive(group, doing=f"set offsets of group {group!r}")
                commit(protocol, group, wanted)
        except ClientError as error:
            if isinstance(error, GroupActive) or error.code in LIVE:
                return {}
            raise
        told.update(news)
        return wanted

    def _translated(
        self, positions: Mapping[TopicPartition, int], here: Copies, there: Copies
    ) -> Iterable[tuple[TopicPartition, int]]:
        for place, offset in positions.items():
            other = TopicPartition(self._target_topic(place.topic), place.partition)
            if other not in there.bounds:
                continue  # the mirror has not made it yet
            if self.direction.selection.naming == "identity":
                yield other, self._in_shared_topic(place, offset, here, there)
            elif self.direction.selection.copies(place.topic):
                yield other, self._ahead(place, other, offset, there)
            else:
                yield other, self._back(place, other, offset, here, there)

    def _ahead(self, place: TopicPartition, other: TopicPartition, offset: int, there: Copies) -> int:
        """In the target, the first copy of what is unread, or the end."""
        bounds = there.bounds[other]
        if (place, offset) in self._known:
            return max(self._known[place, offset], bounds.begin)
        read = there.reader(other, self.ids.source, place.topic, self._ids_here.get(place.topic))
        found = find_copy(read, bounds, offset, self._near.get(place))
        if found.before is not None:
            self._near[place] = found.before
        if found.first is None:
            return bounds.end
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[place, offset] = found.first.target
        return found.first.target

    def _back(
        self, place: TopicPartition, other: TopicPartition, offset: int, here: Copies, there: Copies
    ) -> int:
        """In the target, the first of its own records whose copy is unread; the beginning where none was read."""
        begin = there.bounds[other].begin
        if place not in here.bounds:
            return begin
        read = here.reader(place, self.ids.target, other.topic, there.ids.get(other.topic))
        at = backward(read, here.bounds[place], offset)
        return begin if at is None else at

    def _in_shared_topic(self, place: TopicPartition, offset: int, here: Copies, there: Copies) -> int:
        """Both clusters write to the topic: the first record of the target that is unread, be it a copy or the target's own.

        The order of the two clusters' records differs between them, so there may be records behind it that were read.
        """
        bounds = there.bounds[place]
        ahead = self._ahead(place, place, offset, there)
        if not self.direction.both:
            return ahead
        own = self._back(place, place, offset, here, there)
        unread = first_own(there.reader(place, self.ids.source, place.topic), bounds, own)
        return ahead if unread is None else min(ahead, unread)
