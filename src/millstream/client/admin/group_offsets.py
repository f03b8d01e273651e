"""Committed offsets and deletion of groups, with requests of our own.

librdkafka's calls abort the whole process with a failed assertion
(``rd_kafka_enq_once_del_source_return``) if a coordinator goes away at the wrong moment. Clients
must survive that during a failover.

Version 9 is the last that names topics. Later versions need topic ids, which would take another
request.
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

LAST_VERSION_WITH_NAMES = 9


def committed(protocol: Protocol, group: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of a group, sorted; none if the group does not exist."""
    doing = f"read the offsets of group {group!r}"
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )

    def fetch_once() -> dict[TopicPartition, int]:
        response = protocol.ask(
            request, node=protocol.coordinator(group, GROUP).node, newest=LAST_VERSION_WITH_NAMES
        )
        result = response.groups[0] if response.groups else response
        if result.error_code:
            raise refusal(result.error_code, doing=doing, subject=group)
        offsets = {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in result.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0 and not partition.error_code
        }
        return dict(sorted(offsets.items()))

    return protocol.patiently(fetch_once, doing=doing)


def commit(protocol: Protocol, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit for a group without members; the coordinator rejects it for an active group.

    A repeated commit has no further effect.
    """
    doing = f"set offsets of group {group!r}"
    by_topic = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        by_topic[topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    topics = [
        OffsetCommitRequestTopic(name=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)

    def commit_once() -> None:
        response = protocol.ask(
            request, node=protocol.coordinator(group, GROUP).node, newest=LAST_VERSION_WITH_NAMES
        )
        for topic in response.topics:
            for result in topic.partitions:
                if result.error_code:
                    where = f"{doing} in {topic.name}-{result.partition_index}"
                    raise refusal(result.error_code, doing=where, subject=group)

    protocol.patiently(commit_once, doing=doing)


def delete(protocol: Protocol, group: str) -> None:
    """Delete a group without members.

    If it is missing after an attempt without a response, that attempt has deleted it.
    """
    doing = f"delete group {group!r}"

    def delete_once() -> None:
        request = DeleteGroupsRequest(groups_names=[group])
        response = protocol.ask(request, node=protocol.coordinator(group, GROUP).node)
        for result in response.results:
            if result.error_code:
                raise refusal(
                    result.error_code, doing=doing, subject=group, reason=result.error_message
                )

    protocol.patiently(delete_once, doing=doing, done=missing_counts_as_deleted)


def missing_counts_as_deleted(error: ClientError) -> None:
    if not isinstance(error, UnknownGroup):
        raise error
