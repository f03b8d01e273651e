"""The writes of many reassignments, topic by topic.

The node of a topic has the replicas of all its partitions, so it is written once for many of them.
One write per partition would take time quadratic in their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.control.image import TopicImage
from millstream.control.topics import NodeWrites, state_write, topic_write
from millstream.control.znodes import Assignment, PartitionState

# Maximum number of partition states in one write with the topic's node; they fit into one request.
_MAX_STATES = 500


class _PartitionReassignment(NamedTuple):
    partition: int
    assignment: Assignment
    state: PartitionState


class Reassignments:
    """Partitions with their new replicas and state."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[TopicImage, list[_PartitionReassignment]]] = {}

    def add(
        self, topic: TopicImage, index: int, assignment: Assignment, state: PartitionState
    ) -> None:
        self._topics.setdefault(topic.name, (topic, []))[1].append(
            _PartitionReassignment(index, assignment, state)
        )

    def groups(self) -> Iterator[NodeWrites]:
        """Yield writes, each with the node of a topic and the states of some of its partitions.

        They must be written in this order: a later node of a topic includes the earlier changes.
        """
        for topic, changes in self._topics.values():
            replicas, reassigning = dict(topic.replicas), dict(topic.reassigning)
            for start in range(0, len(changes), _MAX_STATES):
                batch = changes[start : start + _MAX_STATES]
                for change in batch:
                    replicas[change.partition] = change.assignment.replicas
                    reassigning.pop(change.partition, None)
                    if change.assignment.reassigning:
                        reassigning[change.partition] = change.assignment
                changed = TopicImage(topic.name, topic.topic_id, replicas, reassigning=reassigning)
                yield [
                    topic_write(changed),
                    *(state_write(topic.name, change.partition, change.state) for change in batch),
                ]
