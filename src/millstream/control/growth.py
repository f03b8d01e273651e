"""More replicas for topics that were made when the cluster was small: which brokers get them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millstream.control.image import TopicImage


def grown(topic: TopicImage, factor: int, brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each partition with fewer replicas than ``factor``, and not on its way already, those it should have: the old ones first, and
    new ones on the brokers that have the fewest of this topic."""
    load = Counter(dict.fromkeys(brokers, 0))
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
            wanted[index] = (*replicas, *more)
    return wanted
