"""The controller's deletion of topics: a note of their ids first or in the same write, so that neither a crash nor a broker that comes back later brings them back.

ZooKeeper deletes node by node, two for each partition, and takes only so many at once. Small topics go several in one write. A large one is noted first;
then the nodes of its partitions go in slices, and with the topic's own node brokers hear that it is gone. Where that is interrupted, the note says that it is
to be finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.cluster.controller.term import ControllerState
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.topics import deletion_record, plan_delete

# Partitions that are deleted by one write, with the longest names there are.
PARTITIONS_AT_ONCE = 800
# And topics: their paths through the image take milliseconds that others wait.
_TOPICS_AT_ONCE = 200


def batches(image: ClusterImage, names: Iterable[str], partitions_at_once: int) -> Iterator[list[str]]:
    """Topics that go together; a large one goes alone."""
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
    """With the lock."""
    image, feed = state.image, state.term.feed
    behind = [node for node in image.brokers if feed.taken_in(node) != feed.position]
    for name in names:
        if image.topics[name].partition_count > partitions_at_once:
            await state.commit([deletion_record(image, name, behind)])
            indexes = image.topics[name].replicas
            await state.erase([znodes.partition_path(name, index) for index in indexes])
    await state.commit(*(plan_delete(image, name, behind) for name in names))


async def finish_deletions(state: ControllerState) -> None:
    """Of topics that are noted as deleted and still there. With the lock."""
    image = state.image
    begun = [
        name
        for name, ids in image.being_deleted.items()
        if (topic := image.topics.get(name)) is not None and topic.topic_id in ids
    ]
    for name in begun:
        await delete_batch(state, [name])
