"""What the tests of consumer groups share: requests in a line, and the tiny host with consumer
groups in its shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.migration.embedded_protocol import ConsumerProtocolSubscription, OwnedTopic
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.groups.topics_view import TopicInfo, Topics, TopicsView
from millstream.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    TopicPartitions,
)
from support.groups.world import GROUP, TOPICS, TinyHost

REBALANCE_MS = 30_000
SESSION_MS = 45_000
HEARTBEAT_MS = 5_000
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=1_000)

Owned = Mapping[bytes, Iterable[int]]


def new_consumer_shard(
    settings: GroupSettings = SETTINGS,
    topics: Topics = TOPICS,
    new_id: Callable[[], str] | None = None,
) -> GroupShard:
    counter = itertools.count(1)
    return GroupShard(settings, topics, new_id or (lambda: str(next(counter))))


class ConsumerHost(TinyHost):
    def group(self, group_id: str = GROUP) -> ConsumerGroup:
        group: ConsumerGroup = self.shard.state.consumer[group_id]
        return group

    def beat(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> Any:
        return self.ask("consumer_heartbeat", request, version)


def rows(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=sorted(owned[topic_id])) for topic_id in owned
    ]


def beat(
    member_id: str, epoch: int, owned: Owned | None = None, *, group: str = GROUP, **more: Any
) -> ConsumerGroupHeartbeatRequest:
    """One that says no more than it must."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        topic_partitions=None if owned is None else rows(owned),
        **more,
    )


def join(
    member_id: str, *topics: str, regex: str | None = None, **more: Any
) -> ConsumerGroupHeartbeatRequest:
    values: dict[str, Any] = {
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": list(topics) if topics or regex is None else None,
        "subscribed_topic_regex": regex,
        **more,
    }
    return beat(member_id, 0, {}, **values)


def leave(member_id: str, epoch: int = -1, **more: Any) -> ConsumerGroupHeartbeatRequest:
    return beat(member_id, epoch, **more)


def told(
    member_id: str, epoch: int, assigned: Owned | None = None
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=HEARTBEAT_MS,
        assignment=None if assigned is None else assignment(assigned),
    )


def assignment(assigned: Owned) -> Assignment:
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(
                topic_id=topic_id, partitions=sorted(assigned[topic_id])
            )
            for topic_id in sorted(assigned)
        ]
    )


def owned_of(response: ConsumerGroupHeartbeatResponse) -> dict[bytes, set[int]] | None:
    """What an answer assigns; None where it does not say."""
    if response.assignment is None:
        return None
    return {row.topic_id: set(row.partitions) for row in response.assignment.topic_partitions}


def topics_of(version: int = 1, **counts: int) -> TopicsView:
    """Topics with so many partitions; the id of a topic is made of its name."""
    return TopicsView(
        {name: TopicInfo(id_of(name), count) for name, count in counts.items()}, version=version
    )


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"\1")[:16]


def classic_subscription(*topics: str, owned: Mapping[str, Iterable[int]] | None = None) -> bytes:
    """Version 1 of what a classic consumer joins with."""
    message = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[
            OwnedTopic(topic=name, partitions=sorted(indexes))
            for name, indexes in (owned or {}).items()
        ],
    )
    return bytes(message.encode(1, bytearray(b"\0\1")))
