"""What one change moves, topic by topic.

The node of a topic has the replicas of all its partitions, so it is written once for many of them: once for each would cost the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.control.image import TopicImage
from millstream.control.topics import NodeWrites, state_write, topic_write
from millstream.control.znodes import Assignment, PartitionState

# Partitions of a topic that share a write with its node; together they fit into one.
_AT_ONCE = 500


class _Move(NamedTuple):
    partition: int
    assignment: Assignment
    state: PartitionState


class Moves:
    """Partitions with the replicas and the state that they are to have."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[TopicImage, list[_Move]]] = {}

    def add(self, topic: TopicImage, index: int, assignment: Assignment, state: PartitionState) -> None:
        self._topics.setdefault(topic.name, (topic, []))[1].append(_Move(index, assignment, state))

    def groups(self) -> Iterator[NodeWrites]:
        """Each with the node of a topic and the states of the partitions that move with it, to be written in this order: a later node has what
        the ones before it had."""
        for topic, moves in self._topics.values():
            replicas, moving = dict(topic.replicas), dict(topic.moving)
            for begin in range(0, len(moves), _AT_ONCE):
                some = moves[begin : begin + _AT_ONCE]
                for move in some:
                    replicas[move.partition] = move.assignment.replicas
                    moving.pop(move.partition, None)
                    if move.assignment.moving:
                        moving[move.partition] = move.assignment
                moved = TopicImage(topic.name, topic.topic_id, replicas, moving=moving)
                yield [
                    topic_write(moved),
                    *(state_write(topic.name, one.partition, one.state) for one in some),
                ]
