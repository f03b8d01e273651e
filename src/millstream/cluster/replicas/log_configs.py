"""The settings of each topic's logs: broker settings, overridden by those stored with the topic."""

from __future__ import annotations

import logging

from millstream.cluster.membership import adoption
from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig, stored_topic_overrides, topic_values
from millstream.log.config import LogConfig

log = logging.getLogger("millstream.replicas")


class LogConfigs:
    """Caches the settings of each topic until ``forget``."""

    def __init__(self, image: ClusterImage, config: BrokerConfig) -> None:
        self._image = image
        self._config = config
        self._by_topic: dict[str, LogConfig] = {}

    def of(self, topic: str) -> LogConfig:
        known = self._by_topic.get(topic)
        if known is None:
            known = self._by_topic[topic] = self._read(topic)
        return known

    def of_stored(self, topic: str) -> LogConfig:
        """Return the settings of a log on disk, whose topic may be unknown."""
        return self.of(topic) if topic in self._image.topics else adoption.UNKNOWN_TOPIC

    def forget(self, topic: str) -> None:
        """Drop the cached settings of a topic, which may have changed."""
        self._by_topic.pop(topic, None)

    def _read(self, topic: str) -> LogConfig:
        stored = stored_topic_overrides(self._image.topic_configs.get(topic, {}))
        for problem in stored.problems:
            log.error("a setting of topic %s is not understood and left out: %s", topic, problem)
        return LogConfig.from_topic_settings(topic_values(self._config, stored.values))
