"""The topics and partitions that a broker must check when one image replaces another."""

from __future__ import annotations

from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, TopicImage


def difference(old: ClusterImage, new: ClusterImage) -> list[Change]:
    """Return changed topics, and for other topics the partitions whose state changed.

    A topic changes when it is created, deleted, reassigned or configured.
    """
    changes = [NOT_A_TOPIC] if _outside_topics(old) != _outside_topics(new) else []
    changes += [Change(name) for name in old.topics if name not in new.topics]
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is None or _topic_differs(before, topic) or _configs_differ(old, new, name):
            changes.append(Change(name))
        else:
            changes += [
                Change(name, index)
                for index, state in topic.states.items()
                if before.states.get(index) != state
            ]
    return changes


def _outside_topics(image: ClusterImage) -> tuple[object, ...]:
    return (
        image.brokers,
        image.stopping,
        image.broker_configs,
        image.group_configs,
        image.feature_levels,
    )


def _topic_differs(before: TopicImage, after: TopicImage) -> bool:
    return (
        before.topic_id != after.topic_id
        or before.replicas != after.replicas
        or before.reassigning != after.reassigning
        or before.states.keys() != after.states.keys()
    )


def _configs_differ(old: ClusterImage, new: ClusterImage, name: str) -> bool:
    return old.topic_configs.get(name) != new.topic_configs.get(name)
