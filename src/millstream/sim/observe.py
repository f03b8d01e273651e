"""Looks at simulated brokers from outside: samples of their partitions while they run, whole logs in the end."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

from millstream.cluster import replica_fetcher
from millstream.cluster.partition import Partition
from millstream.core.types import TopicPartition
from millstream.log.partition_log import PartitionLog
from millstream.sim.broker import SimBroker
from millstream.sim.state_checkers import Batch, Replica, Sample
from millstream.wire.batch import parse_header, read_marker, read_records

_ALL = 1 << 26


def partitions_of(broker: SimBroker) -> Iterator[Partition]:
    if broker.broker is not None and hasattr(broker.broker, "replicas"):
        for partitions in list(broker.broker.replicas._topics.values()):
            yield from list(partitions.values())


def _key(partition: Partition) -> str:
    return _named(partition.tp, partition.topic_id)


@functools.lru_cache(1000)
def _named(tp: TopicPartition, topic_id: bytes) -> str:
    """A topic that is deleted and made again is another one."""
    return f"{tp}@{topic_id.hex()[:8]}"


def samples(broker: SimBroker) -> Iterator[Sample]:
    """Every partition of a running broker, as it believes it to be."""
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
    """Counts what replication did, as far as samples show it: elections and changes of an ISR."""

    def __init__(self, activity: Counter[str]) -> None:
        self._activity = activity
        self._epochs: dict[str, int] = {}
        self._isrs: dict[str, tuple[int, ...]] = {}

    def look(self, broker: SimBroker) -> None:
        for partition in partitions_of(broker):
            key = _key(partition)
            # One that does not know yet that it leads no more is not counted.
            if partition.leader == broker.node_id and partition.leader_epoch >= self._epochs.get(key, 0):
                if partition.leader_epoch > self._epochs.get(key, 0):
                    self._epochs[key] = partition.leader_epoch
                    self._activity["elections"] += 1
                if self._isrs.setdefault(key, partition.isr) != partition.isr:
                    self._isrs[key] = partition.isr
                    self._activity["isr changes"] += 1


@contextlib.contextmanager
def truncations_counted(activity: Counter[str]) -> Iterator[None]:
    """Logs that followers cut back; between two samples much is cut and filled again."""
    decide: Any = getattr(replica_fetcher, "truncation_point")  # noqa: B009 - as the fetcher knows it, a mutant perhaps

    def counted(*args: Any, log_end: int, **more: Any) -> int:
        cut: int = decide(*args, log_end=log_end, **more)
        activity["truncations"] += cut < log_end
        return cut

    with mock.patch.object(replica_fetcher, "truncation_point", counted):
        yield


def whole_logs(brokers: Iterable[SimBroker]) -> dict[str, list[Replica]]:
    """Every log of every broker."""
    return by_topic(
        (partition.tp, partition.topic_id, replica(broker.node_id, partition.log))
        for broker in brokers
        for partition in partitions_of(broker)
        if partition.log is not None
    )


def by_topic(found: Iterable[tuple[TopicPartition, bytes, Replica]]) -> dict[str, list[Replica]]:
    """Replicas that ought to be the same. A broker that was away while a topic was deleted and made again still has another one."""
    topics: dict[TopicPartition, dict[bytes, list[Replica]]] = {}
    for tp, topic_id, one in found:
        topics.setdefault(tp, {}).setdefault(topic_id, []).append(one)
    return {
        str(tp) if len(lives) == 1 else _named(tp, topic_id): replicas
        for tp, lives in topics.items()
        for topic_id, replicas in lives.items()
    }


def replica(node: int, log: PartitionLog) -> Replica:
    """A whole log, decoded."""
    batches = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True, may_block=True)
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
    """One batch."""
    header = parse_header(data)
    marker = read_marker(data) if header.control else None
    values = () if header.control else tuple(_text(r.value) for r in read_records(data, max_bytes=_ALL))
    return Batch(
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.transactional,
        marker.commit if marker is not None else None,
        values,
        header.crc,
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
