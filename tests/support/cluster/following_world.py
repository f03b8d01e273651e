"""Shared by the tests of followers: fetchers of a leader that the test plays."""

from __future__ import annotations

from typing import Any

from millstream.cluster.replicas.fetcher import ReplicaFetchers
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.throttles import Throttle
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerEndpoint
from millstream.core.config import BrokerConfig
from millstream.ports.clock import SystemClock

_CLOCK = SystemClock()


async def _nothing(*partitions: Partition) -> None:
    pass


def fetchers_before(leader: Any) -> ReplicaFetchers:
    """Return the fetchers of broker 0; ``leader`` responds instead of connections."""
    config = BrokerConfig.from_texts({"replica.fetch.backoff.ms": "10"})
    return ReplicaFetchers(
        0,
        leader,
        config,
        _CLOCK,
        address=lambda node: BrokerEndpoint("PLAINTEXT", "h", 9092),
        broker_epoch=lambda: 25,
        throttle=Throttle("follower", 0, ClusterImage(), config, _CLOCK),
        log_starts_durable=_nothing,
    )
