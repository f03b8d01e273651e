"""Observes simulated brokers: samples of their partitions while they run, whole logs at the end."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

from millstream.cluster.replicas import follower_logs
from millstream.cluster.replicas.partition import Partition
from millstream.control.image import ClusterImage
from millstream.control.znodes import TOPICS, Assignment, PartitionState
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.partition_log import PartitionLog
from millstream.sim.broker import SimBroker
from millstream.sim.checks.convergence import Assigned, Hosted
from millstream.sim.checks.state_checks import Batch, Replica, Sample
from millstream.sim.world.zookeeper import SimZooKeeper
from millstream.wire.records.batch import parse_header, read_marker, read_records

_MAX_DECOMPRESSED = 1 << 26


def partitions_of(broker: SimBroker) -> Iterator[Partition]:
    if broker.broker is not None and broker.broker.parts is not None:
        for partitions in list(broker.broker.parts.replicas.partitions.values()):
            yield from list(partitions.values())


def _key(partition: Partition) -> str:
    return _named(partition.tp, partition.topic_id)


@functools.lru_cache(1000)
def _named(tp: TopicPartition, topic_id: bytes) -> str:
    """Return a key with the topic id: a topic that is deleted and recreated is another one."""
    return f"{tp}@{topic_id.hex()[:8]}"


def samples(broker: SimBroker) -> Iterator[Sample]:
    """Yield every partition of a running broker, as the broker sees it."""
    now, incarnation = broker.world.scheduler.now, broker.machine.starts
    for partition in partitions_of(broker):
        log = partition.log
        if log is not None:
            yield Sample(
                now,
                broker.node_id,
                incarnation,
                _key(partition),
                partition.leader_epoch,
                partition.leader == broker.node_id,
                log.high_watermark,
                log.log_end_offset,
            )


class ChangeCounter:
    """Counts the elections and ISR changes that samples show."""

    def __init__(self, activity: Counter[str]) -> None:
        self._activity = activity
        self._epochs: dict[str, int] = {}
        self._isrs: dict[str, tuple[int, ...]] = {}

    def observe(self, broker: SimBroker) -> None:
        for partition in partitions_of(broker):
            key = _key(partition)
            # Ignore a deposed leader that has not noticed yet.
            if partition.leader == broker.node_id and partition.leader_epoch >= self._epochs.get(
                key, 0
            ):
                if partition.leader_epoch > self._epochs.get(key, 0):
                    self._epochs[key] = partition.leader_epoch
                    self._activity["elections"] += 1
                if self._isrs.setdefault(key, partition.isr) != partition.isr:
                    self._isrs[key] = partition.isr
                    self._activity["isr changes"] += 1


@contextlib.contextmanager
def truncations_counted(activity: Counter[str]) -> Iterator[None]:
    """Count truncations by followers. Samples would miss many of them."""
    decide: Any = getattr(follower_logs, "truncation_point")  # noqa: B009 - a mutant perhaps

    def counted(*args: Any, log_end: int, **more: Any) -> int:
        offset: int = decide(*args, log_end=log_end, **more)
        activity["truncations"] += offset < log_end
        return offset

    with mock.patch.object(follower_logs, "truncation_point", counted):
        yield


def image_in(zookeeper: SimZooKeeper) -> ClusterImage:
    """Return the topics as ZooKeeper has them, whatever brokers believe."""
    image = ClusterImage()
    for path, node in sorted(zookeeper.tree.load().items()):  # a topic before its partitions
        if path.startswith(TOPICS):
            image.apply(path, node.data, node.version)
    return image


def assigned(image: ClusterImage) -> list[Assigned]:
    """Return every partition that should exist."""
    return [
        _assigned(
            TopicPartition(name, index),
            topic.topic_id,
            topic.assignment(index),
            topic.states.get(index),
        )
        for name, topic in sorted(image.topics.items())
        for index in sorted(topic.replicas)
    ]


def _assigned(
    tp: TopicPartition, topic_id: bytes, assignment: Assignment, state: PartitionState | None
) -> Assigned:
    leader, epoch, isr = (
        (state.leader, state.leader_epoch, state.isr) if state is not None else (NO_LEADER, 0, ())
    )
    return Assigned(
        str(tp), topic_id, assignment.replicas, leader, epoch, isr, assignment.reassigning
    )


def hosted(brokers: Iterable[SimBroker]) -> list[Hosted]:
    """Return every replica that exists."""
    return [
        Hosted(
            broker.node_id,
            str(partition.tp),
            partition.topic_id,
            partition.leader,
            partition.leader_epoch,
            partition.log.high_watermark if partition.log is not None else None,
            partition.log.log_end_offset if partition.log is not None else None,
        )
        for broker in brokers
        for partition in partitions_of(broker)
    ]


def whole_logs(brokers: Iterable[SimBroker], image: ClusterImage) -> dict[str, list[Replica]]:
    """Return every log of every broker by partition, with the leader's log first."""
    by_key = by_topic(
        (
            (partition.tp, partition.topic_id, replica(broker.node_id, partition.log))
            for broker in brokers
            for partition in partitions_of(broker)
            if partition.log is not None
        ),
        {name: topic.topic_id for name, topic in image.topics.items()},
    )
    leaders = {partition.key: partition.leader for partition in assigned(image)}
    return {
        key: sorted(replicas, key=lambda replica: replica.node != leaders.get(key))
        for key, replicas in by_key.items()
    }


def by_topic(
    replicas: Iterable[tuple[TopicPartition, bytes, Replica]], topics: Mapping[str, bytes]
) -> dict[str, list[Replica]]:
    """Group replicas that should be equal. `topics` has the ids of the existing topics.

    A broker that was down while a topic was deleted and recreated still has the old one. It gets
    another key.
    """
    logs: dict[str, list[Replica]] = {}
    for tp, topic_id, log in replicas:
        key = str(tp) if topics.get(tp.topic) == topic_id else _named(tp, topic_id)
        logs.setdefault(key, []).append(log)
    return logs


def replica(node: int, log: PartitionLog) -> Replica:
    """Return a whole log, decoded."""
    batches = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(
            offset, 1 << 20, upto=log.log_end_offset, at_least_one=True, may_block=True
        )
        if result.slice is None:
            break
        data = memoryview(result.slice.read())
        start = 0
        while start < len(data):
            header = parse_header(data, start)
            batches.append(decode(data[start : start + header.size]))
            start += header.size
        offset = result.end_offset
    return Replica(node, log.high_watermark, log.log_start_offset, tuple(batches))


def decode(data: memoryview) -> Batch:
    """Decode one batch."""
    header = parse_header(data)
    marker = read_marker(data) if header.control else None
    records = () if header.control else tuple(read_records(data, max_bytes=_MAX_DECOMPRESSED))
    return Batch(
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.transactional,
        marker.commit if marker is not None else None,
        tuple(_text(record.value) for record in records),
        header.crc,
        tuple(
            (record.offset, bytes(record.key), record.value is not None)
            for record in records
            if record.key is not None
        ),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
