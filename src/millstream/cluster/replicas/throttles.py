"""Replication throttles of this broker: the replicas concerned, and the current rate.

``leader.replication.throttled.*`` limits what this broker sends to replicas of partitions that it
leads, ``follower.replication.throttled.*`` what it fetches. Both only concern replicas outside the
ISR.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig, stored_topic_overrides
from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition
from millstream.ports.clock import Clock, steady_ms
from millstream.replication.throttle import ThrottledRate, throttled_partitions

_NO_SETTINGS: Mapping[str, str] = {}


class Throttle:
    """The throttle of one side: ``leader`` or ``follower``."""

    def __init__(
        self, side: str, node_id: int, image: ClusterImage, config: BrokerConfig, clock: Clock
    ) -> None:
        self._replicas = f"{side}.replication.throttled.replicas"
        self._limit = f"{side}.replication.throttled.rate"
        self._node_id = node_id
        self._image = image
        self._config = config
        self._clock = clock
        self._rate = ThrottledRate(
            windows=config.integer("replication.quota.window.num"),
            window_ms=config.integer("replication.quota.window.size.seconds") * 1000,
        )
        # By topic: its settings in the image, and the partitions that they list.
        self._known: dict[str, tuple[Mapping[str, str], Collection[int] | None]] = {}
        self.reconfigure()

    def reconfigure(self) -> None:
        """Apply a change of the broker's settings."""
        limit = self._config.integer(self._limit)
        self._rate.limit = None if limit == LONG_MAX else float(limit)

    @property
    def active(self) -> bool:
        return self._rate.limit is not None

    def concerns(self, tp: TopicPartition) -> bool:
        """Return whether the operator has listed this replica and set a rate."""
        if self._rate.limit is None:
            return False
        settings = self._image.topic_configs.get(tp.topic, _NO_SETTINGS)
        known = self._known.get(tp.topic)
        if known is None or known[0] is not settings:
            known = self._known[tp.topic] = settings, self._listed(settings)
        return known[1] is None or tp.partition in known[1]

    def _listed(self, settings: Mapping[str, str]) -> Collection[int] | None:
        value = stored_topic_overrides(settings).values.get(self._replicas, ())
        return throttled_partitions(value, self._node_id) if isinstance(value, tuple) else ()

    @property
    def exceeded(self) -> bool:
        return self._rate.exceeded(steady_ms(self._clock))

    def record(self, size: int) -> None:
        self._rate.record(size, steady_ms(self._clock))
