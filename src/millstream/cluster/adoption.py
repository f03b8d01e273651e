"""Data directories that hold more than the store knows: topics written by Apache Kafka, and leftovers of deletions.

A directory is taken in with the topic id and leader epochs it has. What cannot be told for certain is left alone and said.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass

from millstream.control.image import ClusterImage
from millstream.control.topics import name_problem
from millstream.log.manager import LogManager
from millstream.log.partition_log import PartitionLog

log = logging.getLogger("millstream.adoption")


@dataclass(frozen=True, slots=True)
class Found:
    """A topic on disk that the store does not know."""

    name: str
    topic_id: bytes
    epochs: tuple[int, ...]


def finish_deletions(image: ClusterImage, logs: LogManager) -> None:
    """Removes directories of topics whose deletion was decided before a crash."""
    for tp, found in list(logs.logs.items()):
        if _id(found) in image.being_deleted.get(tp.topic, ()):
            logs.delete(tp)


def put_strays_aside(image: ClusterImage, logs: LogManager) -> None:
    """Directories of another incarnation of a topic are kept, but out of the way."""
    for tp, found in list(logs.logs.items()):
        topic = image.topics.get(tp.topic)
        if topic is not None and _id(found) not in (None, topic.topic_id):
            log.warning("%s belongs to an earlier topic of the same name and is put aside", found.directory)
            logs.put_aside(tp)


def unknown_topics(image: ClusterImage, logs: LogManager, new_id: bytes) -> list[Found]:
    """Whole topics that can be taken in; the rest is reported."""
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
        adopted.append(Found(name, ids.pop() or new_id if ids else new_id, epochs))
    return adopted


def _id(found: PartitionLog) -> bytes | None:
    return found.topic_id.bytes if found.topic_id is not None else None
