"""A snapshot of the topics that a batch may write to: partitions, leaders and size limits.

Every task of the batch gets the same snapshot, so a key has one partition within the batch,
whatever changes in the cluster. Each partition has a number, its target, which determines the task
that writes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from millstream.client.auto_creation import CreationWait, creates_topics
from millstream.client.errors import ClientError, refusal
from millstream.client.protocol import Address, Protocol
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.spark.sink.failures import TopicMissing
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

# Kafka's default of max.message.bytes.
DEFAULT_LIMIT = 1048588
TOPIC_RESOURCE = 2
RETRY_S = 0.05
# Some brokers do not know a new topic yet, and its partitions have no leader yet.
_NOT_READY = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})


@dataclass(frozen=True)
class Targets:
    """The snapshot. ``first[topic]`` is the target of its partition 0; the others follow."""

    counts: Mapping[str, int]
    first: Mapping[str, int]
    limits: Mapping[str, int]
    leaders: Mapping[TopicPartition, int]
    brokers: Mapping[int, Address]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def limit(self, topic: str) -> int:
        return self.limits.get(topic, DEFAULT_LIMIT)


def take_snapshot(
    protocol: Protocol, topics: Iterable[str], *, others: Iterable[str] | None, patience_s: float
) -> Targets:
    """Return the named topics, and those of the others that exist.

    ``others`` None means all topics. Named topics must exist, or be created by the metadata request
    (``auto.create.topics.enable``).
    """
    named = sorted(set(topics))
    metadata = _existing(protocol, named, patience_s) if named else None
    names = None if others is None else sorted({*named, *others})
    if names != named:
        requested = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        metadata = protocol.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False))
    assert metadata is not None, "no topics"
    described = [topic for topic in metadata.topics if topic.partitions and not topic.is_internal]
    brokers = {
        broker.node_id: Address(broker.node_id, broker.host, broker.port)
        for broker in metadata.brokers
    }
    return _targets(described, brokers, _limits(protocol, [topic.name for topic in described]))


def _targets(topics: list[Any], brokers: dict[int, Address], limits: dict[str, int]) -> Targets:
    counts = {topic.name: len(topic.partitions) for topic in topics}
    first = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    leaders = {
        TopicPartition(topic.name, partition.partition_index): partition.leader_id
        for topic in topics
        for partition in topic.partitions
    }
    return Targets(counts, first, limits, leaders, brokers)


def _existing(protocol: Protocol, names: list[str], patience_s: float) -> Any:
    """Return the metadata of these topics once each has leaders.

    The request creates missing topics if the broker allows that. A topic is unknown until it is
    created, so the request is repeated.
    """
    deadline_s = time.monotonic() + patience_s
    creation = CreationWait(lambda: creates_topics(protocol))
    while True:
        requested = [MetadataRequestTopic(name=name) for name in names]
        metadata = protocol.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=True))
        pending = [topic for topic in metadata.topics if not _is_ready(topic)]
        if not pending:
            return metadata
        unknown = [
            topic.name
            for topic in pending
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        is_late = time.monotonic() > deadline_s
        if unknown and (is_late or creation.is_over()):
            raise missing(unknown)
        if is_late:
            raise ClientError(
                f"topic {pending[0].name!r} has partitions without a leader",
                hint="check that all brokers are up: `millstream topics describe`",
                code=ErrorCode.LEADER_NOT_AVAILABLE,
            )
        time.sleep(RETRY_S)


def _is_ready(topic: Any) -> bool:
    if topic.error_code and topic.error_code not in _NOT_READY:
        raise refusal(topic.error_code, doing=f"write to topic {topic.name!r}", subject=topic.name)
    return not topic.error_code and all(partition.leader_id >= 0 for partition in topic.partitions)


def missing(names: Iterable[str]) -> TopicMissing:
    """Return the error for rows whose topics do not exist; ``missing_names`` parses it."""
    ordered = sorted(names)
    noun = "topic" if len(ordered) == 1 else "topics"
    return TopicMissing(
        f"{noun} {', '.join(map(repr, ordered))} {'does' if len(ordered) == 1 else 'do'} not exist",
        hint=f"create {'it' if len(ordered) == 1 else 'them'} with `millstream topics create NAME`, "
        "or let the broker do it (auto.create.topics.enable)",
    )


def missing_names(error: TopicMissing) -> list[str]:
    """Return the topics that an error of ``missing`` names, even if it came as text from a task."""
    return error.message.split(" not exist")[0].split("'")[1::2]


def _limits(protocol: Protocol, topics: list[str]) -> dict[str, int]:
    """Return max.message.bytes of each topic; topics without a known limit are left out."""
    if not topics:
        return {}
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=name,
            configuration_keys=["max.message.bytes"],
        )
        for name in topics
    ]
    response = protocol.ask(DescribeConfigsRequest(resources=resources))
    return {
        result.resource_name: int(entry.value)
        for result in response.results
        if not result.error_code
        for entry in result.configs
        if entry.name == "max.message.bytes" and entry.value
    }
