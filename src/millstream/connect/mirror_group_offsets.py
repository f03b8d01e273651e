"""Offsets of groups by the protocol itself. librdkafka's own calls for them end the whole process by a failed assertion when a coordinator goes away
at the wrong moment (``rd_kafka_enq_once_del_source_return``), which a mirror has to live through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from millstream.client.errors import refusal
from millstream.client.protocol import GROUP, Protocol
from millstream.core.types import TopicPartition
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


def topic_ids(protocol: Protocol) -> dict[str, bytes]:
    """The id of every topic: newer versions of both requests name topics by it."""
    return {one.name: one.topic_id for one in protocol.metadata(None).topics}


def committed(protocol: Protocol, group: str, ids: Mapping[str, bytes]) -> dict[TopicPartition, int]:
    """All offsets that a group has committed; those of topics that are gone are left out."""
    names = {id_: name for name, id_ in ids.items()}
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )

    def ask() -> dict[TopicPartition, int]:
        answer = protocol.ask(request, node=protocol.coordinator(group, GROUP).node)
        found = answer.groups[0] if answer.groups else answer
        if found.error_code:
            raise refusal(found.error_code, doing=f"read the offsets of group {group!r}", subject=group)
        return {
            TopicPartition(name, one.partition_index): one.committed_offset
            for topic in found.topics
            if (name := topic.name or names.get(getattr(topic, "topic_id", b""), ""))
            for one in topic.partitions
            if one.committed_offset >= 0 and not one.error_code
        }

    return protocol.patiently(ask)


def commit(
    protocol: Protocol, group: str, offsets: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
) -> None:
    """Commit for a group that has no members; the coordinator refuses it for one that has."""
    by_topic = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        by_topic[topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    topics = [
        OffsetCommitRequestTopic(name=topic, topic_id=ids[topic], partitions=parts)
        for topic, parts in by_topic.items()
    ]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)

    def ask() -> None:
        for topic in protocol.ask(request, node=protocol.coordinator(group, GROUP).node).topics:
            for one in topic.partitions:
                if one.error_code:
                    raise refusal(one.error_code, doing=f"set offsets of group {group!r}", subject=group)

    protocol.patiently(ask)
