"""The controller's deletion of topics.

The ids of a deleted topic are recorded before its nodes are deleted, or in the same write. So
neither a crash nor a broker that comes back later restores it.

ZooKeeper deletes node by node, two for each partition, and limits the size of a write. Small topics
share a write. A large topic is recorded first. Then the nodes of its partitions are deleted in
slices. Brokers learn of the deletion with the topic's own node, which is deleted last. If this is
interrupted, the record shows that it must be finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.cluster.controller.term import ControllerState
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.topics import deletion_record, plan_delete

# Maximum number of partitions that are deleted by one write, with names of maximum length.
PARTITIONS_AT_ONCE = 800
# Maximum number of topics in one write: applying them to the image takes milliseconds.
_TOPICS_AT_ONCE = 200


def batches(
    image: ClusterImage, names: Iterable[str], partitions_at_once: int
) -> Iterator[list[str]]:
    """Yield the topics that are deleted together; a large one is deleted alone."""
    batch: list[str] = []
    partitions = 0
    for name in names:
        more = image.topics[name].partition_count
        if batch and (partitions + more > partitions_at_once or len(batch) >= _TOPICS_AT_ONCE):
            yield batch
            batch, partitions = [], 0
        batch.append(name)
        partitions += more
    if batch:
        yield batch


async def delete_batch(
    state: ControllerState, names: list[str], partitions_at_once: int = PARTITIONS_AT_ONCE
) -> None:
    """Delete topics; the caller holds the lock."""
    image, feed = state.image, state.term.feed
    behind = [node for node in image.brokers if feed.applied_position(node) != feed.position]
    for name in names:
        if image.topics[name].partition_count > partitions_at_once:
            await state.commit([deletion_record(image, name, behind)])
            indexes = image.topics[name].replicas
            await state.erase([znodes.partition_path(name, index) for index in indexes])
    await state.commit(*(plan_delete(image, name, behind) for name in names))


async def finish_deletions(state: ControllerState) -> None:
    """Finish the deletion of topics that are recorded as deleted and still exist.

    The caller holds the lock.
    """
    image = state.image
    unfinished = [
        name
        for name, ids in image.being_deleted.items()
        if (topic := image.topics.get(name)) is not None and topic.topic_id in ids
    ]
    for name in unfinished:
        await delete_batch(state, [name])
