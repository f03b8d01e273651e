"""A broker that is not registered, or whose id belongs to another one, does not fetch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from millstream.cluster.membership.registration import NOT_REGISTERED
from millstream.cluster.replicas.fetcher import ReplicaFetchers
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.cluster.replicas.throttles import Throttle
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerEndpoint, PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.types import TopicPartition
from millstream.ports.clock import SystemClock
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from support.cluster.host_world import new_log

PATIENCE_S = 120.0
CLOCK = SystemClock()


class Leader:
    """Receives the fetches, if there are any."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.asked = asyncio.Event()

    async def ask(
        self, purpose: str, host: str, port: int, request: FetchRequest, **more: Any
    ) -> FetchResponse:
        self.epochs.append(request.replica_state.replica_epoch)
        self.asked.set()
        await asyncio.sleep(0.01)
        return FetchResponse(session_id=1)

    def drop(self, purposes: tuple[str, ...]) -> None:
        pass


async def nothing(*partitions: Partition) -> None:
    pass


def test_an_unregistered_broker_does_not_fetch(tmp_path: Path) -> None:
    async def story() -> None:
        leader, config, epoch = Leader(), BrokerConfig.from_texts({}), NOT_REGISTERED
        fetchers = ReplicaFetchers(
            0,
            leader,  # type: ignore[arg-type]
            config,
            CLOCK,
            address=lambda node: BrokerEndpoint("PLAINTEXT", "h", 9092),
            broker_epoch=lambda: epoch,
            throttle=Throttle("follower", 0, ClusterImage(), config, CLOCK),
            log_starts_durable=nothing,
        )
        partition = Partition(
            TopicPartition("orders", 0), bytes(16), new_log(tmp_path), PendingSequences(lambda: 0)
        )
        partition.follow(PartitionState(1, 1, (0, 1)))
        fetchers.follow(partition)
        for _turn in range(20):
            await asyncio.sleep(0)
        assert leader.epochs == []
        epoch = 25
        async with asyncio.timeout(PATIENCE_S):
            await leader.asked.wait()
        await fetchers.close()
        assert set(leader.epochs) == {25}

    asyncio.run(story())
