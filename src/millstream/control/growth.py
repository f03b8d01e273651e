"""More replicas for topics that were made when the cluster was small: which brokers get them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.control.image import ClusterImage, TopicImage
from millstream.core.types import TopicPartition


def grown(topic: TopicImage, factor: int, brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each partition with fewer replicas than ``factor``, and not on its way already, those it should have: the old ones, and new
    ones on the brokers that have the fewest of this topic. The first, which is to lead, is the one that is the first of the fewest: else
    all coordinators would stay with the broker that was there alone."""
    load = Counter(dict.fromkeys(brokers, 0))
    firsts = Counter(replicas[0] for replicas in topic.replicas.values())
    for replicas in topic.replicas.values():
        load.update(node for node in replicas if node in load)
    wanted: dict[int, tuple[int, ...]] = {}
    for index, replicas in topic.replicas.items():
        if index in topic.moving or len(replicas) >= factor:
            continue
        others = sorted(
            (node for node in brokers if node not in replicas), key=lambda node: (load[node], node)
        )
        more = others[: factor - len(replicas)]
        if len(replicas) + len(more) == factor:
            load.update(more)
            firsts[replicas[0]] -= 1
            nodes = (*replicas, *more)
            first = min(nodes, key=lambda node: (node not in load, firsts[node]))
            firsts[first] += 1
            wanted[index] = (first, *(node for node in nodes if node != first))
    return wanted


def kept_small(
    image: ClusterImage, wishes: Mapping[TopicPartition, Sequence[int] | None]
) -> frozenset[bytes]:
    """The internal topics that are not to grow by themselves when these wishes of an operator come true (None calls a move off): who gives one fewer replicas
    means it, until all its partitions have as many again. Else they would be back on a broker that was emptied to be taken out."""
    small = set(image.kept_small)
    for name in {tp.topic for tp in wishes}:
        topic = image.topics.get(name)
        if topic is None or not topic.internal:
            continue
        before = {index: len(topic.assignment(index).target) for index in topic.replicas}
        after = before | {
            tp.partition: len(topic.assignment(tp.partition).origin if target is None else target)
            for tp, target in wishes.items()
            if tp.topic == name
        }
        if any(after[index] < count for index, count in before.items()):
            small.add(topic.topic_id)
        elif after != before and len(set(after.values())) == 1:
            small.discard(topic.topic_id)
    return frozenset(small)
