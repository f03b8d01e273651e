"""Data directories that hold more than the store knows: topics written by Apache Kafka, and leftovers of deletions.

A directory is taken in with the topic id and leader epochs it has. What cannot be told for certain is left alone and said.
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
class Found:
    """A topic on disk that the store does not know."""

    name: str
    topic_id: bytes
    epochs: tuple[int, ...]
    configs: tuple[tuple[str, str], ...]


def finish_deletions(image: ClusterImage, logs: LogManager) -> None:
    """Removes directories of topics whose deletion was decided before a crash. A power cut may have taken the id of one that was never
    flushed: then its name alone does not say that it belongs to the topic that has this name now."""
    for tp, found in list(logs.logs.items()):
        deleted = image.being_deleted.get(tp.topic, ())
        if _id(found) in deleted:
            logs.delete(tp)
        elif deleted and found.topic_id is None:
            log.warning("%s may belong to a topic that was deleted and is put aside", found.directory)
            logs.mark_stray(tp)
    for tp in list(logs.offline):
        if tp.topic in image.being_deleted and tp.topic not in image.topics:
            logs.delete(tp)


def put_strays_aside(image: ClusterImage, logs: LogManager) -> None:
    """Directories of another incarnation of a topic are kept, but out of the way."""
    for tp, found in list(logs.logs.items()):
        topic = image.topics.get(tp.topic)
        if topic is not None and _id(found) not in (None, topic.topic_id):
            log.warning("%s belongs to an earlier topic of the same name and is put aside", found.directory)
            logs.mark_stray(tp)


def put_moved_aside(image: ClusterImage, logs: LogManager, node_id: int) -> None:
    """Replicas that were moved to other brokers while this one was away. One that came back here later would otherwise go on
    from them, and what compaction has removed meanwhile would be in them still. They are not deleted: a broker that starts cannot tell whether the metadata is
    older than what it had, put back from a copy, and then these may be the only ones that are left."""
    for tp, found in list(logs.logs.items()):
        topic = image.topics.get(tp.topic)
        if topic is None or _id(found) != topic.topic_id:
            continue
        replicas = topic.replicas.get(tp.partition)
        if replicas is None or node_id in replicas:
            continue
        log.warning(
            "%s was moved to brokers %s. What is here is put aside in a directory that ends with -stray, and can be deleted when they have it",
            tp,
            replicas,
        )
        logs.mark_stray(tp)


def unknown_topics(image: ClusterImage, logs: LogManager, new_id: Callable[[], bytes]) -> list[Found]:
    """Whole topics that can be taken in; the rest is reported."""
    if any(not log_dir.online for log_dir in logs.dirs.values()):
        return []  # what is missing may be there: nobody can tell whether a topic is whole
    by_topic: dict[str, dict[int, PartitionLog]] = defaultdict(dict)
    for tp, found in logs.logs.items():
        if tp.topic not in image.topics and name_problem(tp.topic) is None:
            by_topic[tp.topic][tp.partition] = found
    adopted = []
    for name, partitions in sorted(by_topic.items()):
        ids = {_id(found) for found in partitions.values()} - {None}
        if len(ids) > 1 or set(partitions) != set(range(len(partitions))):
            log.warning("the directories of topic %s do not form a whole topic; they are left alone", name)
            continue
        # A log's next epoch must not lie below those it has.
        epochs = tuple(max(partitions[index].epochs.latest, 0) for index in sorted(partitions))
        topic_id = (ids.pop() if ids else None) or new_id()
        adopted.append(Found(name, topic_id, epochs, _configs(list(partitions.values()))))
    return adopted


def _configs(partitions: list[PartitionLog]) -> tuple[tuple[str, str], ...]:
    """Settings that delete nothing: the topic's own ones are in Kafka's metadata, which is not read. A topic that was
    compacted stays so."""
    compacted = any(log.cleaned_offset >= 0 for log in partitions)
    return (("cleanup.policy", "compact"),) if compacted else (("retention.ms", "-1"),)


def highest_producer_id(logs: LogManager) -> int:
    """Of all that any log remembers; -1 where none does. Whoever hands out ids must stay above."""
    return max((pid for log in logs.logs.values() for pid in log.producer_state.producers), default=-1)


# How logs of unknown topics are opened: compaction may have left gaps in them, and nothing may be deleted.
UNKNOWN_TOPIC = LogConfig.from_topic_settings({"cleanup.policy": ("compact", "delete"), "retention.ms": -1})
# And how they are kept: whether they may be compacted is not known either.
_LEFT_ALONE = LogConfig.from_topic_settings({"cleanup.policy": ("delete",), "retention.ms": -1})


def leave_unknown_alone(image: ClusterImage, logs: LogManager) -> None:
    for tp in logs.logs:
        if tp.topic not in image.topics:
            leave_alone(logs, tp)


def leave_alone(logs: LogManager, tp: TopicPartition) -> None:
    """A log of which nobody can tell what it is for: nothing is removed from it."""
    found = logs.logs.get(tp)
    if found is not None:
        found.update_config(_LEFT_ALONE)


def _id(found: PartitionLog) -> bytes | None:
    return found.topic_id.bytes if found.topic_id is not None else None
