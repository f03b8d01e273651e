"""More replicas for topics that were created when the cluster was small: the choice of brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.control.image import ClusterImage, TopicImage
from millstream.core.types import TopicPartition


def expanded_replicas(
    topic: TopicImage, factor: int, brokers: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Return the new replicas of each partition with fewer than ``factor``.

    Partitions under reassignment are left out. New replicas go to the brokers with the fewest
    replicas of this topic. The preferred leader is the replica that is preferred leader of the
    fewest partitions: otherwise all coordinators would stay on the first broker of the cluster.
    """
    load = Counter(dict.fromkeys(brokers, 0))
    leaders = Counter(replicas[0] for replicas in topic.replicas.values())
    for replicas in topic.replicas.values():
        load.update(node for node in replicas if node in load)
    expanded: dict[int, tuple[int, ...]] = {}
    for index, replicas in topic.replicas.items():
        if index in topic.reassigning or len(replicas) >= factor:
            continue
        candidates = sorted(
            (node for node in brokers if node not in replicas), key=lambda node: (load[node], node)
        )
        added = candidates[: factor - len(replicas)]
        if len(replicas) + len(added) == factor:
            load.update(added)
            leaders[replicas[0]] -= 1
            nodes = (*replicas, *added)
            first = min(nodes, key=lambda node: (node not in load, leaders[node]))
            leaders[first] += 1
            expanded[index] = (first, *(node for node in nodes if node != first))
    return expanded


def kept_small_after(
    image: ClusterImage, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> frozenset[bytes]:
    """Return the internal topics that must not grow automatically after these reassignments.

    ``targets`` are an operator's requests; None cancels a reassignment. An internal topic that an
    operator gave fewer replicas keeps them until an increase gives all its partitions the same
    number. Otherwise replicas would return to a broker that was drained for removal.
    """
    small = set(image.kept_small)
    for name in {tp.topic for tp in targets}:
        topic = image.topics.get(name)
        if topic is None or not topic.internal:
            continue
        before = {index: len(topic.assignment(index).target) for index in topic.replicas}
        after = before | {
            tp.partition: len(topic.assignment(tp.partition).origin if target is None else target)
            for tp, target in targets.items()
            if tp.topic == name
        }
        if any(after[index] < count for index, count in before.items()):
            small.add(topic.topic_id)
        elif after != before and len(set(after.values())) == 1:
            small.discard(topic.topic_id)
    return frozenset(small)
