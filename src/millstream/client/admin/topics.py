"""Topics: create, list, describe, add partitions, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.client.errors import (
    ClientError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    unknown_topic,
)
from millstream.client.library import (
    NewPartitions,
    NewTopic,
    TopicCollection,
    cluster_metadata,
)
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

BROKER_DEFAULT = -1
# Limits of the library for one request. It raises a ValueError, or an OverflowError above 2^31.
MAX_PARTITIONS = 100_000
MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as the cluster sees it now; ``leader`` is None while it has none."""

    id: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def unavailable(self) -> bool:
        return self.leader is None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic with its partitions, in order of their numbers."""

    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


Topics: TypeAlias = list[Topic]


class TopicsAdmin:
    """``admin.topics``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def names(self) -> Sequence[str]:
        """Return the names of all topics, sorted."""
        admin, doing = self._admin, "list the topics"
        metadata = cluster_metadata(
            admin.client,
            None,
            admin.retries,
            lambda error: admin.explain(error, doing=doing),
            doing,
        )
        return sorted(metadata.topics)

    def list(self) -> Topics:
        """Return all topics, sorted by name."""
        names = self.names()
        return [topic for topic in self._describe(names).values() if isinstance(topic, Topic)]

    def describe(self, names: Iterable[str]) -> Topics:
        """Return these topics in order; UnknownTopic for the first that does not exist."""
        return [self._existing(name, result) for name, result in self._describe([*names]).items()]

    def get(self, name: str) -> Topic:
        """Return one topic; UnknownTopic, with the nearest names, if it does not exist."""
        return self.describe([name])[0]

    def exists(self, name: str) -> bool:
        try:
            self.get(name)
        except UnknownTopic:
            return False
        return True

    def partitions(self, name: str, only: Iterable[int] | None = None) -> Sequence[TopicPartition]:
        """Return the partitions of a topic, or those with the numbers in ``only``."""
        known = [partition.id for partition in self.get(name).partitions]
        numbers = known if only is None else sorted(set(only))
        for number in numbers:
            if number not in known:
                raise UnknownPartition(
                    f"topic {name!r} has no partition {number}",
                    hint=f"its partitions are 0 to {len(known) - 1}",
                )
        return [TopicPartition(name, number) for number in numbers]

    def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic, with the broker's defaults for what is not given.

        ``assignment`` lists the replicas of each partition.
        """
        if assignment is not None and (partitions is not None or replication_factor is not None):
            raise ClientError(
                "a replica assignment already determines the number of partitions and replicas"
            )
        doing = f"create topic {name!r}"
        _check_count(partitions, "number of partitions", MAX_PARTITIONS, doing)
        _check_count(replication_factor, "replication factor", MAX_REPLICAS, doing)
        replicas: dict[str, Any] = (
            {
                "replica_assignment": [[*nodes] for nodes in assignment],
                "num_partitions": len(assignment),
            }
            if assignment is not None
            else {
                "num_partitions": BROKER_DEFAULT if partitions is None else partitions,
                "replication_factor": BROKER_DEFAULT
                if replication_factor is None
                else replication_factor,
            }
        )
        topic = NewTopic(name, config=dict(configs or {}), **replicas)

        def create_once(limit_s: float) -> None:
            futures = self._admin.client.create_topics(
                [topic], validate_only=validate_only, **self._timeouts()
            )
            self._admin.wait(futures[name], doing=doing, subject=name)

        def accept_existing(error: ClientError) -> None:
            """Accept the topic that an attempt without a response has created as requested."""
            if not isinstance(error, TopicExists) or not self._is_as_requested(topic):
                raise error

        self._admin.retries.run(
            create_once, doing=doing, done=None if validate_only else accept_existing
        )

    def _is_as_requested(self, requested: NewTopic) -> bool:
        topic = self.get(requested.topic)
        settings = self._admin.configs.overrides("topic", requested.topic)
        if requested.replica_assignment:
            same = [
                [*partition.replicas] for partition in topic.partitions
            ] == requested.replica_assignment
        else:
            same = requested.num_partitions in (BROKER_DEFAULT, len(topic.partitions)) and (
                requested.replication_factor in (BROKER_DEFAULT, topic.replication_factor)
            )
        return same and settings.items() >= (requested.config or {}).items()

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions to ``total``."""
        self.get(name)
        doing = f"set topic {name!r} to {counted(total, 'partition')}"
        if total < 1:
            raise ClientError(f"cannot {doing}: a topic has at least 1 partition")
        _check_count(total, "number of partitions", MAX_PARTITIONS, doing)

        def add_once(limit_s: float) -> None:
            futures = self._admin.client.create_partitions(
                [NewPartitions(name, total)], **self._timeouts()
            )
            self._admin.wait(futures[name], doing=doing, subject=name)

        def accept_added(error: ClientError) -> None:
            """Accept the partitions that an attempt without a response has added."""
            if (
                error.code is not ErrorCode.INVALID_PARTITIONS
                or len(self.get(name).partitions) != total
            ):
                raise error

        self._admin.retries.run(add_once, doing=doing, done=accept_added)

    def delete(self, *names: str) -> None:
        """Delete topics with all their records. None is deleted unless all of them exist."""
        ids = {topic.name: topic.id for topic in self.describe(names)}
        tried: set[str] = set()

        def delete_once(limit_s: float) -> None:
            # A topic that is gone or has another id was deleted by an attempt without a response.
            left = [name for name in ids if name not in tried or self._id(name) == ids[name]]
            futures = self._admin.client.delete_topics(left, **self._timeouts()) if left else {}
            already_tried = set(tried)
            tried.update(left)
            for name, future in futures.items():
                try:
                    self._admin.wait(future, doing=f"delete topic {name!r}", subject=name)
                except UnknownTopic:
                    if name not in already_tried:
                        raise

        self._admin.retries.run(delete_once, doing=f"delete {', '.join(map(repr, names))}")

    def _id(self, name: str) -> str | None:
        result = self._describe([name])[name]
        return result.id if isinstance(result, Topic) else None

    def _describe(self, names: Sequence[str]) -> dict[str, Topic | Exception]:
        if not names:
            return {}
        return self._admin.retries.run(
            lambda limit_s: self._describe_once(names, limit_s), doing="describe topics"
        )

    def _describe_once(self, names: Sequence[str], limit_s: float) -> dict[str, Topic | Exception]:
        admin = self._admin
        try:
            futures = admin.client.describe_topics(
                TopicCollection([*names]), request_timeout=limit_s
            )
        except ValueError as error:
            raise ClientError(f"cannot describe {', '.join(map(repr, names))}: {error}") from None
        results: dict[str, Topic | Exception] = {}
        for name, future in futures.items():
            try:
                results[name] = _topic(
                    admin.wait(future, doing=f"describe topic {name!r}", subject=name)
                )
            except UnknownTopic as error:
                results[name] = error
        return results

    def _existing(self, name: str, result: Topic | Exception) -> Topic:
        if isinstance(result, Topic):
            return result
        raise unknown_topic(name, self.names())

    def _timeouts(self) -> dict[str, float]:
        timeout_s = self._admin.connection.request_timeout_s
        return {"request_timeout": timeout_s, "operation_timeout": timeout_s}


def _topic(described: Any) -> Topic:
    partitions = sorted(map(_partition, described.partitions), key=lambda partition: partition.id)
    return Topic(
        described.name, _topic_id(described.topic_id), described.is_internal, tuple(partitions)
    )


def _topic_id(uuid: Any) -> str:
    """Return the id in the URL-safe alphabet, as Kafka prints it; librdkafka uses the other."""
    return str(uuid).replace("+", "-").replace("/", "_")


def _partition(described: Any) -> Partition:
    leader = (
        described.leader.id if described.leader is not None and described.leader.id >= 0 else None
    )
    return Partition(
        described.id,
        leader,
        tuple(node.id for node in described.replicas),
        tuple(node.id for node in described.isr),
    )


def _check_count(count: int | None, name: str, maximum: int, doing: str) -> None:
    """Reject a number that librdkafka cannot send; the broker rejects other wrong ones."""
    if count is not None and count > maximum:
        raise ClientError(f"cannot {doing}: the {name} is 1 to {maximum:,}, not {count}")
