"""Moving partitions between brokers, and giving leadership back: ``admin.reassignments``."""

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
    """A partition on its way: ``replicas`` are all that it has meanwhile."""

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
        """The replicas of every partition of these topics, or of all."""
        names = list(topics) if topics is not None else list(self._admin.topics.names())
        return {
            TopicPartition(topic.name, one.id): one.replicas
            for topic in self._admin.topics.describe(names)
            for one in topic.partitions
        }

    def start(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, ClientError]:
        """Begin to move (None: go back). Returns those that were refused, and why."""
        topics: dict[str, ReassignableTopic] = {}
        for tp, replicas in sorted(wanted.items()):
            row = ReassignablePartition(
                partition_index=tp.partition, replicas=None if replicas is None else list(replicas)
            )
            topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(row)
        request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
        answer = self._ask(request, "move partitions")
        return {
            TopicPartition(topic.name, one.partition_index): refusal(
                one.error_code,
                doing=f"move {topic.name}-{one.partition_index}",
                reason=one.error_message,
            )
            for topic in answer.responses
            for one in topic.partitions
            if one.error_code
        }

    def _ask(self, request: Struct, doing: str, through: int | None = None) -> Any:
        """Of any broker, or of this one, which passes it on to the controller; again after a try without an answer, because each of these requests says how
        things are to be, or asks how they are."""

        def ask() -> Any:
            protocol = self._admin.protocol
            answer = protocol.ask(request) if through is None else protocol.ask(request, node=through)
            if answer.error_code:
                reason = getattr(answer, "error_message", None)
                raise refusal(answer.error_code, doing=doing, reason=reason)
            return answer

        return self._admin.protocol.patiently(ask, doing=doing)

    def moving(
        self, partitions: Iterable[TopicPartition] | None = None, *, through: int | None = None
    ) -> list[Moving]:
        """What is on its way, of these partitions or of all. The controller is asked ``through`` a broker, if one is named."""
        asked = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for tp in partitions:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            asked = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in by_topic.items()
            ]
        answer = self._ask(ListPartitionReassignmentsRequest(topics=asked), "list moves", through)
        return sorted(
            (
                Moving(
                    TopicPartition(topic.name, one.partition_index),
                    tuple(one.replicas),
                    tuple(one.adding_replicas),
                    tuple(one.removing_replicas),
                )
                for topic in answer.topics
                for one in topic.partitions
            ),
            key=lambda one: one.partition,
        )

    def throttle(self, wanted: Mapping[TopicPartition, Sequence[int]], bytes_per_s: int) -> None:
        """Bound what the moves may take of every broker. ``unthrottle`` lifts it."""
        current = self.current({tp.topic for tp in wanted})
        brokers = {node for tp, nodes in wanted.items() for node in (*nodes, *current.get(tp, ()))}
        live = {broker.id for broker in self._admin.cluster.describe().brokers}
        there = live.union(*current.values())
        if missing := sorted(brokers - there):  # before anything is set that would stay
            raise ClientError(f"there is no broker {missing[0]}")
        # Those that are away first: another Kafka may refuse them.
        for node in sorted(brokers, key=lambda node: (node in live, node)):
            self._admin.configs.alter("broker", node, dict.fromkeys(_RATES, str(bytes_per_s)))
        for topic in sorted({tp.topic for tp in wanted}):
            self._admin.configs.alter("topic", topic, dict.fromkeys(_THROTTLED, "*"))

    def unthrottle(self, topics: Iterable[str]) -> None:
        """What still moves goes on at full speed."""
        self._forget_throttled(topics)
        self._forget_rates()

    def unthrottle_moved(self, topics: Iterable[str]) -> bool:
        """Where nothing of a topic moves any more; the rates of the brokers, which all moves share, when nothing moves at all. Whether that is so."""
        moving = {one.partition.topic for one in self.moving()}
        self._forget_throttled(topic for topic in topics if topic not in moving)
        if not moving:
            self._forget_rates()
        return not moving

    def _forget_rates(self) -> None:
        """Also of brokers that are away: they would come back with them. Nobody tells what those have, so it is deleted unseen."""
        for broker in self._admin.cluster.describe().brokers:
            self._forget("broker", broker.id, _RATES)
        for node in self._admin.configs.brokers_away():
            self._admin.configs.alter("broker", node, delete=_RATES)

    def _forget_throttled(self, topics: Iterable[str]) -> None:
        for topic in sorted(set(topics)):
            self._forget("topic", topic, _THROTTLED)

    def _forget(self, kind: str, name: str | int, settings: Sequence[str]) -> None:
        there = self._admin.configs.overrides(kind, name)  # type: ignore[arg-type]
        if known := [one for one in settings if one in there]:
            self._admin.configs.alter(kind, name, {}, delete=known)  # type: ignore[arg-type]

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, ClientError | None]:
        """Give leadership to the preferred replica (or, unclean, to any live one) of these partitions, or of all that need it.
        None for those that have a new leader; ELECTION_NOT_NEEDED is left out."""
        asked = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for tp in partitions:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            asked = [TopicPartitions(topic=name, partitions=indexes) for name, indexes in by_topic.items()]
        request = ElectLeadersRequest(
            election_type=UNCLEAN if unclean else PREFERRED,
            topic_partitions=asked,
            timeout_ms=int(self._admin.connection.request_timeout_s * 1000),
        )
        answer = self._ask(request, "elect leaders")
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.replica_election_results:
            for one in topic.partition_result:
                tp = TopicPartition(topic.topic, one.partition_id)
                if one.error_code == ErrorCode.NONE:
                    results[tp] = None
                elif one.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    results[tp] = refusal(
                        one.error_code, doing=f"elect a leader of {tp}", reason=one.error_message
                    )
        return results
