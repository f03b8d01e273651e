"""Offsets of groups by the protocol itself, and deleting groups. librdkafka's own calls end the whole process by a failed assertion when a
coordinator goes away at the wrong moment (``rd_kafka_enq_once_del_source_return``), which whoever asks during a fail-over has to live through.

Version 9 is the last that names topics; later ones want their ids, which would have to be asked for first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from millstream.client.errors import ClientError, UnknownGroup, refusal
from millstream.client.protocol import GROUP, Protocol
from millstream.core.types import TopicPartition
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

BY_NAME = 9


def committed(protocol: Protocol, group: str) -> dict[TopicPartition, int]:
    """All offsets that a group has committed, sorted; none for a group that does not exist."""
    doing = f"read the offsets of group {group!r}"
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )

    def ask() -> dict[TopicPartition, int]:
        answer = protocol.ask(request, node=protocol.coordinator(group, GROUP).node, newest=BY_NAME)
        found = answer.groups[0] if answer.groups else answer
        if found.error_code:
            raise refusal(found.error_code, doing=doing, subject=group)
        offsets = {
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in found.topics
            for one in topic.partitions
            if one.committed_offset >= 0 and not one.error_code
        }
        return {one: offsets[one] for one in sorted(offsets)}

    return protocol.patiently(ask, doing=doing)


def commit(protocol: Protocol, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit for a group that has no members; the coordinator refuses it for one that has. Committing twice is committing once."""
    doing = f"set offsets of group {group!r}"
    by_topic = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        by_topic[topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    topics = [OffsetCommitRequestTopic(name=topic, partitions=parts) for topic, parts in by_topic.items()]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)

    def ask() -> None:
        answer = protocol.ask(request, node=protocol.coordinator(group, GROUP).node, newest=BY_NAME)
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code:
                    where = f"{doing} in {topic.name}-{one.partition_index}"
                    raise refusal(one.error_code, doing=where, subject=group)

    protocol.patiently(ask, doing=doing)


def delete(protocol: Protocol, group: str) -> None:
    """Delete a group without members. One that is gone after a try without an answer was deleted by that try."""
    doing = f"delete group {group!r}"

    def ask() -> None:
        request = DeleteGroupsRequest(groups_names=[group])
        answer = protocol.ask(request, node=protocol.coordinator(group, GROUP).node)
        for one in answer.results:
            if one.error_code:
                raise refusal(one.error_code, doing=doing, subject=group, reason=one.error_message)

    protocol.patiently(ask, doing=doing, done=gone_counts_as_done)


def gone_counts_as_done(error: ClientError) -> None:
    if not isinstance(error, UnknownGroup):
        raise error
