"""The throttles of replication on this broker: which of its replicas they concern, and whether there is room.

``leader.replication.throttled.*`` holds back what this broker sends to replicas it leads, ``follower.replication.throttled.*`` what it
fetches for its own. Both only replicas that are not in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig, stored_topic_overrides
from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition
from millstream.ports.clock import Clock, steady_ms
from millstream.replication.throttle import ThrottledRate, throttled_partitions

_NOTHING: Mapping[str, str] = {}


class Throttle:
    """One side: ``leader`` or ``follower``."""

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
        # By topic: its settings, as the image had them, and what they say.
        self._known: dict[str, tuple[Mapping[str, str], Collection[int] | None]] = {}
        self.reconfigure()

    def reconfigure(self) -> None:
        """After a change of the broker's settings."""
        limit = self._config.integer(self._limit)
        self._rate.limit = None if limit == LONG_MAX else float(limit)

    @property
    def active(self) -> bool:
        return self._rate.limit is not None

    def concerns(self, tp: TopicPartition) -> bool:
        """Whether the operator has listed this replica, and there is a rate."""
        if self._rate.limit is None:
            return False
        settings = self._image.topic_configs.get(tp.topic, _NOTHING)
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
