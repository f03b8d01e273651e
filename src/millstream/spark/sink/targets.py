"""Where the rows of one batch may go: topics, partitions, leaders and size limits, from one look at the cluster.

Every task of the batch gets the same snapshot, so a key has one partition within it whatever happens meanwhile. Each partition has a
number, its target; the target says which task writes it.
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
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

DEFAULT_LIMIT = 1048588  # max.message.bytes where nobody says anything else
TOPIC_RESOURCE = 2
RETRY_S = 0.05
# A topic that has just been made is unknown to some brokers for a moment, and its partitions have no leader yet.
_COMING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})


@dataclass(frozen=True)
class Targets:
    """The snapshot. ``first[topic]`` is the number of its partition 0; the others follow."""

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
    """The named topics, which must exist or be made by asking (``auto.create.topics.enable``), and those of the others that there are;
    None stands for all."""
    named = sorted(set(topics))
    answer = _existing(protocol, named, patience_s) if named else None
    wanted = None if others is None else sorted({*named, *others})
    if wanted != named:
        asked = None if wanted is None else [MetadataRequestTopic(name=name) for name in wanted]
        answer = protocol.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    assert answer is not None, "no topic at all"
    found = [topic for topic in answer.topics if topic.partitions and not topic.is_internal]
    brokers = {one.node_id: Address(one.node_id, one.host, one.port) for one in answer.brokers}
    return _targets(found, brokers, _limits(protocol, [topic.name for topic in found]))


def _targets(topics: list[Any], brokers: dict[int, Address], limits: dict[str, int]) -> Targets:
    counts = {topic.name: len(topic.partitions) for topic in topics}
    first = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    leaders = {
        TopicPartition(topic.name, one.partition_index): one.leader_id
        for topic in topics
        for one in topic.partitions
    }
    return Targets(counts, first, limits, leaders, brokers)


def _existing(protocol: Protocol, names: list[str], patience_s: float) -> Any:
    """The answer about these topics once each has leaders; asking makes a missing one where the broker allows that.

    A topic that is being created is unknown until it exists, so the question is repeated.
    """
    deadline_s = time.monotonic() + patience_s
    creation = CreationWait(lambda: creates_topics(protocol))
    while True:
        asked = [MetadataRequestTopic(name=name) for name in names]
        answer = protocol.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        waiting = [topic for topic in answer.topics if not _is_ready(topic)]
        if not waiting:
            return answer
        unknown = [
            topic.name for topic in waiting if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        is_late = time.monotonic() > deadline_s
        if unknown and (is_late or creation.is_over()):
            raise missing(unknown)
        if is_late:
            raise ClientError(
                f"topic {waiting[0].name!r} has partitions without a leader",
                hint="see that all brokers are up: `millstream topics describe`",
                code=ErrorCode.LEADER_NOT_AVAILABLE,
            )
        time.sleep(RETRY_S)


def _is_ready(topic: Any) -> bool:
    if topic.error_code and topic.error_code not in _COMING:
        raise refusal(topic.error_code, doing=f"write to topic {topic.name!r}", subject=topic.name)
    return not topic.error_code and all(one.leader_id >= 0 for one in topic.partitions)


def missing(names: Iterable[str]) -> TopicMissing:
    """The error for rows whose topics do not exist; ``missing_names`` reads it."""
    listed = sorted(names)
    what = "topic" if len(listed) == 1 else "topics"
    return TopicMissing(
        f"{what} {', '.join(map(repr, listed))} {'does' if len(listed) == 1 else 'do'} not exist",
        hint=f"create {'it' if len(listed) == 1 else 'them'} with `millstream topics create NAME`, "
        "or let the broker do it (auto.create.topics.enable)",
    )


def missing_names(error: TopicMissing) -> list[str]:
    """The topics that an error of ``missing`` names, also when it came back as text from a task."""
    return error.message.split(" not exist")[0].split("'")[1::2]


def _limits(protocol: Protocol, topics: list[str]) -> dict[str, int]:
    """max.message.bytes of each topic; nothing where the cluster does not say."""
    if not topics:
        return {}
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=["max.message.bytes"]
        )
        for name in topics
    ]
    answer = protocol.ask(DescribeConfigsRequest(resources=resources))
    return {
        one.resource_name: int(entry.value)
        for one in answer.results
        if not one.error_code
        for entry in one.configs
        if entry.name == "max.message.bytes" and entry.value
    }
