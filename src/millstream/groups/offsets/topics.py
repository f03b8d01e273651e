"""Resolve the topics and partitions of a request, by name or by id.

Topics and partitions that do not exist get their own error first. The group then decides about the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from millstream.core.errors import ErrorCode
from millstream.core.ids import NULL_ID
from millstream.groups.topics_view import Topics


class Row(NamedTuple):
    """A topic of a request with its partitions and their errors.

    NONE is the error of a partition that exists: the group decides about it.
    """

    name: str
    topic_id: bytes
    partitions: Sequence[Any]
    errors: tuple[ErrorCode, ...]

    @property
    def exists(self) -> bool:
        return ErrorCode.NONE in self.errors


def resolve(requested: Sequence[Any], topics: Topics, *, by_id: bool) -> list[Row]:
    return [_resolve(topic, topics, by_id) for topic in requested]


def _resolve(topic: Any, topics: Topics, by_id: bool) -> Row:
    partitions = topic.partitions
    if by_id:
        name = topics.name_of(topic.topic_id)
        if name is None:
            return Row(
                "", topic.topic_id, partitions, (ErrorCode.UNKNOWN_TOPIC_ID,) * len(partitions)
            )
        topic_id = topic.topic_id
    else:
        name = topic.name
        topic_id = topics.id_of(name) or NULL_ID
    count = topics.partition_count(name) or 0
    errors = tuple(
        ErrorCode.NONE if 0 <= row.partition_index < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for row in partitions
    )
    return Row(name, topic_id, partitions, errors)
