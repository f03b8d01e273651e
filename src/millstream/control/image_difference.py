"""What differs between two images: which topics and partitions a broker has to look at when one replaces the other."""

from __future__ import annotations

from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, TopicImage


def difference(old: ClusterImage, new: ClusterImage) -> list[Change]:
    """Topics that came, went, moved or were configured as a whole; else the partitions whose state changed."""
    changes = [NOT_A_TOPIC] if _beside_topics(old) != _beside_topics(new) else []
    changes += [Change(name) for name in old.topics if name not in new.topics]
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is None or _differs_as_a_whole(before, topic) or _configured(old, new, name):
            changes.append(Change(name))
        else:
            changes += [
                Change(name, index)
                for index, state in topic.states.items()
                if before.states.get(index) != state
            ]
    return changes


def _beside_topics(image: ClusterImage) -> tuple[object, ...]:
    return image.brokers, image.stopping, image.broker_configs, image.group_configs, image.feature_levels


def _differs_as_a_whole(before: TopicImage, after: TopicImage) -> bool:
    return (
        before.topic_id != after.topic_id
        or before.replicas != after.replicas
        or before.moving != after.moving
        or before.states.keys() != after.states.keys()
    )


def _configured(old: ClusterImage, new: ClusterImage, name: str) -> bool:
    return old.topic_configs.get(name) != new.topic_configs.get(name)
