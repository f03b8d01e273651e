"""Reassigning partitions to brokers, and electing preferred leaders: ``admin.reassignments``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.client.errors import ClientError, refusal
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millstream.wire.schema import Struct

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

PREFERRED, UNCLEAN = 0, 1
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@dataclass(frozen=True, slots=True)
class Moving:
    """A partition in reassignment; ``replicas`` has all its current replicas, old and new."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.removing)


class ReassignmentsAdmin:
    """``admin.reassignments``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def current(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the replicas of every partition of these topics, or of all."""
        names = list(topics) if topics is not None else list(self._admin.topics.names())
        return {
            TopicPartition(topic.name, partition.id): partition.replicas
            for topic in self._admin.topics.describe(names)
            for partition in topic.partitions
        }

    def start(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, ClientError]:
        """Start to reassign partitions; None cancels. Return those that were rejected, and why."""
        topics: dict[str, ReassignableTopic] = {}
        for tp, replicas in sorted(targets.items()):
            row = ReassignablePartition(
                partition_index=tp.partition, replicas=None if replicas is None else list(replicas)
            )
            topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(row)
        request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
        response = self._request(request, "move partitions")
        return {
            TopicPartition(topic.name, result.partition_index): refusal(
                result.error_code,
                doing=f"move {topic.name}-{result.partition_index}",
                reason=result.error_message,
            )
            for topic in response.responses
            for result in topic.partitions
            if result.error_code
        }

    def _request(self, request: Struct, doing: str, through: int | None = None) -> Any:
        """Send a request to any broker, or to ``through``, which forwards it to the controller.

        It may be repeated after an attempt without a response: each of these requests either states
        a target or reads.
        """

        def request_once() -> Any:
            protocol = self._admin.protocol
            response = (
                protocol.ask(request) if through is None else protocol.ask(request, node=through)
            )
            if response.error_code:
                reason = getattr(response, "error_message", None)
                raise refusal(response.error_code, doing=doing, reason=reason)
            return response

        return self._admin.protocol.patiently(request_once, doing=doing)

    def moving(
        self, partitions: Iterable[TopicPartition] | None = None, *, through: int | None = None
    ) -> list[Moving]:
        """Return the running reassignments, of these partitions or of all.

        ``through`` names the broker that forwards the request to the controller.
        """
        topics = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for tp in partitions:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in by_topic.items()
            ]
        response = self._request(
            ListPartitionReassignmentsRequest(topics=topics), "list moves", through
        )
        return sorted(
            (
                Moving(
                    TopicPartition(topic.name, result.partition_index),
                    tuple(result.replicas),
                    tuple(result.adding_replicas),
                    tuple(result.removing_replicas),
                )
                for topic in response.topics
                for result in topic.partitions
            ),
            key=lambda moving: moving.partition,
        )

    def throttle(self, targets: Mapping[TopicPartition, Sequence[int]], bytes_per_s: int) -> None:
        """Limit the bandwidth of reassignments per broker. ``unthrottle`` removes the limit."""
        current = self.current({tp.topic for tp in targets})
        brokers = {node for tp, nodes in targets.items() for node in (*nodes, *current.get(tp, ()))}
        live = {broker.id for broker in self._admin.cluster.describe().brokers}
        known = live.union(*current.values())
        if missing := sorted(brokers - known):  # check before any setting is changed
            raise ClientError(f"broker {missing[0]} does not exist")
        # Brokers that are down come first: another Kafka may reject them.
        for node in sorted(brokers, key=lambda node: (node in live, node)):
            self._admin.configs.alter("broker", node, dict.fromkeys(_RATES, str(bytes_per_s)))
        for topic in sorted({tp.topic for tp in targets}):
            self._admin.configs.alter("topic", topic, dict.fromkeys(_THROTTLED, "*"))

    def unthrottle(self, topics: Iterable[str]) -> None:
        """Remove the limit; running reassignments continue at full speed."""
        self._delete_topic_limits(topics)
        self._delete_rates()

    def unthrottle_moved(self, topics: Iterable[str]) -> bool:
        """Remove the limits of topics without a running reassignment.

        All reassignments share the rates of the brokers, so these are removed when none is running.
        Return whether that is the case.
        """
        moving = {reassignment.partition.topic for reassignment in self.moving()}
        self._delete_topic_limits(topic for topic in topics if topic not in moving)
        if not moving:
            self._delete_rates()
        return not moving

    def _delete_rates(self) -> None:
        """Delete the rates of all brokers, including those that are down: they would start with
        them.

        A broker that is down cannot return its settings, so its rates are deleted unconditionally.
        """
        for broker in self._admin.cluster.describe().brokers:
            self._delete_settings("broker", broker.id, _RATES)
        for node in self._admin.configs.brokers_down():
            self._admin.configs.alter("broker", node, delete=_RATES)

    def _delete_topic_limits(self, topics: Iterable[str]) -> None:
        for topic in sorted(set(topics)):
            self._delete_settings("topic", topic, _THROTTLED)

    def _delete_settings(self, kind: str, name: str | int, settings: Sequence[str]) -> None:
        overrides = self._admin.configs.overrides(kind, name)  # type: ignore[arg-type]
        if present := [setting for setting in settings if setting in overrides]:
            self._admin.configs.alter(kind, name, {}, delete=present)  # type: ignore[arg-type]

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, ClientError | None]:
        """Elect the preferred replica of these partitions, or of all that need it.

        ``unclean`` elects any live replica. The result is None for a partition with a new leader;
        ELECTION_NOT_NEEDED is left out.
        """
        topics = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for tp in partitions:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            topics = [
                TopicPartitions(topic=name, partitions=indexes)
                for name, indexes in by_topic.items()
            ]
        request = ElectLeadersRequest(
            election_type=UNCLEAN if unclean else PREFERRED,
            topic_partitions=topics,
            timeout_ms=int(self._admin.connection.request_timeout_s * 1000),
        )
        response = self._request(request, "elect leaders")
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                tp = TopicPartition(topic.topic, result.partition_id)
                if result.error_code == ErrorCode.NONE:
                    results[tp] = None
                elif result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    results[tp] = refusal(
                        result.error_code,
                        doing=f"elect a leader of {tp}",
                        reason=result.error_message,
                    )
        return results
