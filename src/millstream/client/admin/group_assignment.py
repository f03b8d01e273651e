"""The assignment of a member of a classic group.

The leader of the group writes it as bytes (ConsumerProtocolAssignment), which brokers do not read.
"""

from __future__ import annotations

from millstream.core.types import TopicPartition
from millstream.wire.schema import DecodeError, Struct, array, binary, int16, string


class AssignedTopic(Struct):
    topic: str = string("0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerProtocolAssignment(Struct, versions="0+"):
    """A version number, then fields that are the same in every version so far."""

    version: int = int16("0+")
    assigned_partitions: list[AssignedTopic] = array(AssignedTopic, "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions, sorted; none if the bytes are not an assignment.

    That is a member that waits for its first assignment, or one that is not a consumer.
    """
    try:
        topics = ConsumerProtocolAssignment.decode(bytes(assignment), 0)[0].assigned_partitions
    except DecodeError:
        return ()
    return tuple(
        sorted(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)
    )
