"""Logs in the data directories that the metadata does not know.

They are topics written by Apache Kafka, and remains of deletions and reassignments. A topic is
adopted with the topic id and leader epochs of its logs. Ambiguous logs are kept as they are, and
reported.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from millstream.control.image import ClusterImage
from millstream.control.topics import name_problem
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog

log = logging.getLogger("millstream.adoption")


@dataclass(frozen=True, slots=True)
class UnknownTopic:
    """A topic on disk that the metadata does not know."""

    name: str
    topic_id: bytes
    epochs: tuple[int, ...]
    configs: tuple[tuple[str, str], ...]


def finish_deletions(image: ClusterImage, logs: LogManager) -> None:
    """Remove directories of topics whose deletion was decided before a crash.

    A power cut may have erased the id of a log that was never flushed. Its name alone does not show
    that it belongs to the current topic of that name, so it is moved away.
    """
    for tp, partition_log in list(logs.logs.items()):
        deleted = image.being_deleted.get(tp.topic, ())
        if _id(partition_log) in deleted:
            logs.delete(tp)
        elif deleted and partition_log.topic_id is None:
            log.warning(
                "%s may belong to a deleted topic and is renamed to -stray", partition_log.directory
            )
            logs.mark_stray(tp)
    for tp in list(logs.offline):
        if tp.topic in image.being_deleted and tp.topic not in image.topics:
            logs.delete(tp)


def move_away_strays(image: ClusterImage, logs: LogManager) -> None:
    """Move directories of an earlier topic of the same name out of the way."""
    for tp, partition_log in list(logs.logs.items()):
        topic = image.topics.get(tp.topic)
        if topic is not None and _id(partition_log) not in (None, topic.topic_id):
            log.warning(
                "%s belongs to an earlier topic of the same name and is renamed to -stray",
                partition_log.directory,
            )
            logs.mark_stray(tp)


def move_away_reassigned(image: ClusterImage, logs: LogManager, node_id: int) -> None:
    """Move away replicas that were reassigned to other brokers while this one was down.

    A replica that came back here later would otherwise continue from them, and bring back records
    that compaction has removed since. They are not deleted: the metadata may be older than what
    this broker had, restored from a backup. Then these may be the only replicas left.
    """
    for tp, partition_log in list(logs.logs.items()):
        topic = image.topics.get(tp.topic)
        if topic is None or _id(partition_log) != topic.topic_id:
            continue
        replicas = topic.replicas.get(tp.partition)
        if replicas is None or node_id in replicas:
            continue
        log.warning(
            "%s was reassigned to brokers %s. The replica here is renamed to a directory that ends "
            "with -stray, which can be deleted when those brokers have the partition",
            tp,
            replicas,
        )
        logs.mark_stray(tp)


def unknown_topics(
    image: ClusterImage, logs: LogManager, new_id: Callable[[], bytes]
) -> list[UnknownTopic]:
    """Return the complete topics that can be adopted; report the others."""
    if any(not log_dir.online for log_dir in logs.dirs.values()):
        return []  # a failed directory may have the missing partitions
    by_topic: dict[str, dict[int, PartitionLog]] = defaultdict(dict)
    for tp, partition_log in logs.logs.items():
        if tp.topic not in image.topics and name_problem(tp.topic) is None:
            by_topic[tp.topic][tp.partition] = partition_log
    adopted = []
    for name, partitions in sorted(by_topic.items()):
        ids = {_id(partition_log) for partition_log in partitions.values()} - {None}
        if len(ids) > 1 or set(partitions) != set(range(len(partitions))):
            log.warning(
                "the directories of topic %s do not form a complete topic; they are kept as they are",
                name,
            )
            continue
        # The next epoch of a log must not be below its latest one.
        epochs = tuple(max(partitions[index].epochs.latest, 0) for index in sorted(partitions))
        topic_id = (ids.pop() if ids else None) or new_id()
        adopted.append(UnknownTopic(name, topic_id, epochs, _configs(list(partitions.values()))))
    return adopted


def _configs(partitions: list[PartitionLog]) -> tuple[tuple[str, str], ...]:
    """Return settings that delete nothing; a topic that was compacted stays compacted.

    The topic's real settings are in Kafka's metadata, which is not read.
    """
    compacted = any(log.cleaned_offset >= 0 for log in partitions)
    return (("cleanup.policy", "compact"),) if compacted else (("retention.ms", "-1"),)


def highest_producer_id(logs: LogManager) -> int:
    """Return the highest producer id in any log, or -1. New ids must be above it."""
    return max(
        (pid for log in logs.logs.values() for pid in log.producer_state.producers), default=-1
    )


# How logs of unknown topics are opened: compaction may have left gaps in their offsets, and nothing
# may be deleted.
UNKNOWN_TOPIC = LogConfig.from_topic_settings(
    {"cleanup.policy": ("compact", "delete"), "retention.ms": -1}
)
# How they are kept afterwards: whether they may be compacted is not known either.
_PRESERVED = LogConfig.from_topic_settings({"cleanup.policy": ("delete",), "retention.ms": -1})


def preserve_unknown(image: ClusterImage, logs: LogManager) -> None:
    for tp in logs.logs:
        if tp.topic not in image.topics:
            preserve(logs, tp)


def preserve(logs: LogManager, tp: TopicPartition) -> None:
    """Stop retention and compaction of a log whose purpose is unknown."""
    partition_log = logs.logs.get(tp)
    if partition_log is not None:
        partition_log.update_config(_PRESERVED)


def _id(partition_log: PartitionLog) -> bytes | None:
    return partition_log.topic_id.bytes if partition_log.topic_id is not None else None
