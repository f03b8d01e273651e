"""What is assigned to a member of a classic group, read from the bytes that its leader wrote (ConsumerProtocolAssignment)."""

from __future__ import annotations

from millstream.core.types import TopicPartition
from millstream.wire.schema import DecodeError, Struct, array, binary, int16, string


class AssignedTopic(Struct):
    topic: str = string("0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerProtocolAssignment(Struct, versions="0+"):
    """The number that says the version, then the same fields in every version there has been."""

    version: int = int16("0+")
    assigned_partitions: list[AssignedTopic] = array(AssignedTopic, "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions, sorted; none where the bytes are not an assignment (a member that waits for its first, or no consumer)."""
    try:
        topics = ConsumerProtocolAssignment.decode(bytes(assignment), 0)[0].assigned_partitions
    except DecodeError:
        return ()
    return tuple(sorted(TopicPartition(one.topic, index) for one in topics for index in one.partitions))
