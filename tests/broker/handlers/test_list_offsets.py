"""ListOffsets by timestamp, while leadership changes during the search (KIP-207)."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replicas.test_manager_elected_while_truncating import HERE, OTHER, TP, World
from millstream.broker.handlers import list_offsets
from millstream.core.errors import ErrorCode
from millstream.log.partition_log import PartitionLog
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from millstream.wire.records.batch import Record, build_batch


def test_a_leader_that_is_replaced_while_it_searches_does_not_say_that_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not know how far its predecessor had committed; a client that is told "nothing" goes to the end and skips what was there."""

    async def story() -> None:
        world = World()
        await world.led()
        raw = build_batch([Record(0, 100, None, b"acknowledged by the leader before")])
        world.replicas.leader(*TP).append(memoryview(bytearray(raw)), now_ms=0, needs_all=False)
        await world.state(HERE, 3)
        go, search = threading.Event(), PartitionLog.timestamp_search

        def slow(log: PartitionLog, timestamp: int | None) -> Any:
            found = search(log, timestamp)
            return lambda: go.wait(120) and found()

        monkeypatch.setattr(PartitionLog, "timestamp_search", slow)
        broker: Any = SimpleNamespace(replicas=world.replicas)
        context: Any = SimpleNamespace(version=7)
        one = ListOffsetsPartition(partition_index=0, timestamp=50)
        asking = asyncio.create_task(
            list_offsets._one_later(broker, context, ListOffsetsRequest(), TP.topic, one)
        )
        await asyncio.sleep(0.05)
        await world.state(OTHER, 4)
        go.set()
        assert (await asking).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())
